// bench/stats, app/start and llm/output_json: percentiles, the line of figures, and text made from JSON.
#include <cmath>

#include "llm/output_json.h"  // filled
#include "app/start.h"        // stats_line
#include "bench/stats.h"      // percentile, percentile_if_enough, mean
#include "catch.h"            // Catch2, version 2 or 3

namespace {

bool close(double a, double b) { return std::fabs(a - b) <= 1e-6; }

nano::RequestOutput answer_of(size_t tokens) {
  nano::RequestOutput out;
  out.prompt_token_ids = {1, 2, 3};
  out.num_cached_tokens = 2;
  out.outputs.emplace_back().token_ids.assign(tokens, 7);
  out.metrics = {1.0, 1.5, 3.5};
  return out;
}

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

TEST_CASE("one rule for percentiles of few samples: a value at least must lie beyond") {
  auto said = [](size_t n, double p) {
    return nano::percentile_if_enough(std::vector<double>(n, 1.0), p).has_value();
  };
  for (const auto& [p, least] : std::vector<std::pair<double, size_t>>{{99.9, 1000},
                                                                       {99.99, 10000},
                                                                       {99, 100},
                                                                       {95, 20},
                                                                       {90, 10},
                                                                       {75, 4},
                                                                       {25, 4},
                                                                       {10, 10},
                                                                       {0.1, 1000}}) {
    CAPTURE(p);
    CHECK(!said(least - 1, p));
    CHECK(said(least, p));
  }
  for (double p : {0.0, 50.0, 100.0}) CHECK((said(1, p) && !said(0, p)));
}

TEST_CASE("a screen gets three digits, or all of the whole number") {
  const std::pair<double, const char*> cases[] = {
      {0.00123456, "0.00123"}, {1.23456, "1.23"}, {12.3456, "12.3"},    {99.94, "99.9"}, {99.96, "100"},
      {123.456, "123"},        {999.6, "1000"},   {123456.7, "123457"}, {-1.5, "-1.50"}, {0, "0.00"}};
  for (const auto& [value, text] : cases) CHECK(nano::three_digits(value) == text);
  CHECK(nano::filled("{x} {x:.5f} {x:>8.1f}", {{"x", 1.23456789}}) == "1.23 1.23457      1.2");
}

TEST_CASE("the line of figures has a rate where enough tokens were generated to have one") {
  const std::string few = nano::stats_line({answer_of(2)});
  CHECK(few == "3 prompt tokens (2 cached), first token after 0.50 s; 2 tokens in 2.50 s");
  CHECK(nano::stats_line({answer_of(9)}) ==
        "3 prompt tokens (2 cached), first token after 0.50 s; 9 tokens in 2.50 s, decode 4.0 tokens/s");
  nano::RequestOutput failed = answer_of(9);
  failed.metrics = {1.0, 0, 0};
  CHECK(nano::stats_line({failed}) == "0 prompt tokens, nothing generated");
}

TEST_CASE("text is filled from JSON: formats, inner objects, bytes") {
  const nlohmann::ordered_json values = {{"name", "a {b}"},
                                         {"rate", 2.345},
                                         {"on", true},
                                         {"kv_bytes", 2500},
                                         {"inner", {{"count", 3}, {"7", 0.5}}}};
  CHECK(nano::filled("{name} {rate:.1f} {on} {kv_bytes} {inner_count:>3} {inner_7} {{}}", values) ==
        "a {b} 2.3 true 2.50 kB   3 0.5 {}");
}
