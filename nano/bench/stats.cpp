#include "bench/stats.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

namespace nano {

double percentile(std::vector<double> values, double p) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const double at = std::clamp(p, 0.0, 100.0) / 100 * double(values.size() - 1);
  const auto below = size_t(std::floor(at));
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (at - double(below));
}

std::optional<double> percentile_if_enough(const std::vector<double>& values, double p) {
  const double beyond = double(values.size()) * std::min(p, 100 - p) / 100;
  const bool always = p == 0 || p == 50 || p == 100;
  if (values.empty() || (!always && beyond < 1 - 1e-9)) return {};
  return percentile(values, p);
}

double mean(const std::vector<double>& values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

void IdsDigest::add(const std::vector<int32_t>& answer) {
  auto mix = [this](uint32_t word) {
    for (int shift = 0; shift < 32; shift += 8) hash_ = (hash_ ^ (word >> shift & 255)) * 0x100000001b3;
  };
  mix(uint32_t(answer.size()));
  for (const int32_t id : answer) mix(uint32_t(id));
}

std::string IdsDigest::text() const { return fmt::format("{:016x}", hash_); }

}  // namespace nano
