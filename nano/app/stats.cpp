#include "app/stats.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace nano {

double percentile(std::vector<double> values, double p) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const double at = std::clamp(p, 0.0, 100.0) / 100 * double(values.size() - 1);
  const auto below = size_t(std::floor(at));
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (at - double(below));
}

double mean(const std::vector<double>& values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

}  // namespace nano
