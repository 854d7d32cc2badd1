// The arithmetic of the benchmarks. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nano {

// numpy.percentile with linear interpolation; p in [0, 100]. NaN for no values.
double percentile(std::vector<double> values, double p);
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
