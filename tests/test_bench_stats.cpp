// app/stats: percentiles and the latencies of a request.
#include <cmath>

#include <nlohmann/json.hpp>

#include "app/stats.h"
#include "base/mapped_file.h"
#include "catch.h"
#include "data.h"

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

TEST_CASE("H1 TTFT is no ITL, one token has no TPOT, a chunk of tokens is one gap") {
  const auto given = nlohmann::json::parse(nano::read_file(nano_test::data_path("golden/give-h-bench.json")));
  REQUIRE(given["trace"].size() == 3);
  for (const auto& request : given["trace"]) {
    const auto& expected = given["expected"][request["id"].get<std::string>()];
    CAPTURE(request["id"].get<std::string>());
    std::vector<nano::Chunk> chunks;
    for (const auto& chunk : request["chunks"]) chunks.push_back({chunk[0], chunk[1]});
    const nano::RequestLatency got = nano::request_latency(request["send"], chunks);
    CHECK(got.tokens == expected["tokens"].get<int64_t>());
    REQUIRE(got.ttft.has_value());
    CHECK(close(*got.ttft, expected["ttft"]));
    CHECK(got.tpot.has_value() == !expected["tpot"].is_null());
    if (got.tpot) CHECK(close(*got.tpot, expected["tpot"]));
    REQUIRE(got.itl.size() == expected["itl"].size());
    for (size_t i = 0; i < got.itl.size(); ++i) CHECK(close(got.itl[i], expected["itl"][i]));
  }
}

TEST_CASE("a request that got nothing has no latencies") {
  const nano::RequestLatency got = nano::request_latency(1.0, {});
  CHECK(!got.ttft.has_value());
  CHECK(!got.tpot.has_value());
  CHECK(got.itl.empty());
  CHECK(got.tokens == 0);
}
