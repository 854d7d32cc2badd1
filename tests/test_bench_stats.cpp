// app/stats: percentiles.
#include <cmath>

#include "app/stats.h"
#include "catch.h"

namespace {

bool close(double a, double b) { return std::fabs(a - b) <= 1e-6; }

}  // namespace

TEST_CASE("percentiles are numpy's, with linear interpolation") {
  const std::vector<double> values = {4, 1, 3, 2};  // numpy.percentile([4, 1, 3, 2], p)
  CHECK(close(nano::percentile(values, 0), 1));
  CHECK(close(nano::percentile(values, 10), 1.3));
  CHECK(close(nano::percentile(values, 25), 1.75));
  CHECK(close(nano::percentile(values, 50), 2.5));
  CHECK(close(nano::percentile(values, 99), 3.97));
  CHECK(close(nano::percentile(values, 100), 4));
  CHECK(close(nano::percentile({7}, 99), 7));
  CHECK(std::isnan(nano::percentile({}, 50)));
  CHECK(close(nano::mean({1, 2, 6}), 3));
  CHECK(std::isnan(nano::mean({})));
}
