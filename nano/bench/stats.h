// The arithmetic of the benchmarks. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nano {

// numpy.percentile with linear interpolation; p in [0, 100]. NaN for no values.
double percentile(std::vector<double> values, double p);
// One rule for few samples: a percentile is said where one value at least lies beyond it (P90: 10 values, P99: 100,
// P99.9: 1,000); the median and the extremes always. No value: none.
std::optional<double> percentile_if_enough(const std::vector<double>& values, double p);
constexpr const char* kPercentileRule =
    "A percentile is given where at least one value lies beyond it: P90 of 10 values or more, P99 of\n"
    "100, P99.9 of 1,000; the median always.";
double mean(const std::vector<double>& values);  // NaN for no values

// FNV-1a, 64 bits, over token ids: two runs with equal digests gave the same answers in the same order.
class IdsDigest {
 public:
  void add(const std::vector<int32_t>& answer);
  std::string text() const;  // 16 hexadecimal digits

 private:
  uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace nano
