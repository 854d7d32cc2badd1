#include "bench/serve_load.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <fmt/format.h>

#include "base/error.h"  // Error
#include "base/rng.h"    // random_bits

namespace nano {

namespace {

constexpr double kLongestLoad = 1e7;  // seconds
// Streams of random numbers; the others are the prompts' own.
constexpr uint32_t kPrefix = UINT32_MAX, kLengths = UINT32_MAX - 1;

// Whole numbers from floor(middle · (1 − ratio)) to ceil(middle · (1 + ratio)), but at least 1.
int64_t random_length(int64_t middle, double ratio, uint64_t bits) {
  const auto low = std::max<int64_t>(1, int64_t(std::floor(double(middle) * (1 - ratio))));
  const auto high = std::max<int64_t>(low, int64_t(std::ceil(double(middle) * (1 + ratio))));
  return low + int64_t(bits % uint64_t(high - low + 1));
}

}  // namespace

std::vector<LoadItem> make_load(const LoadOptions& o) {
  const std::vector<std::pair<int64_t, int64_t>> one = {{o.input_len, o.output_len}};
  const auto& lengths = o.mix.empty() ? one : o.mix;
  std::mt19937_64 arrivals(o.seed);
  std::gamma_distribution<double> gap(o.burstiness, 1 / (o.request_rate * o.burstiness));  // mean 1 / rate
  std::vector<LoadItem> load(static_cast<size_t>(o.num_prompts));
  for (size_t i = 0; i < load.size(); ++i) {
    const auto [input, output] = lengths[i % lengths.size()];
    load[i].input_len =
        o.prefix_len + random_length(input, o.range_ratio, random_bits({o.seed, kLengths}, 2 * i));
    load[i].output_len = random_length(output, o.range_ratio, random_bits({o.seed, kLengths}, 2 * i + 1));
    if (i > 0 && std::isfinite(o.request_rate)) load[i].arrival = load[i - 1].arrival + gap(arrivals);
  }
  if (!load.empty() && !(load.back().arrival < kLongestLoad))
    throw Error(fmt::format("the last request would come after {:.3g} seconds", load.back().arrival),
                "--request-rate");
  return load;
}

std::vector<int32_t> prompt_ids(const LoadOptions& o, size_t i, int64_t input_len, int32_t vocab_size) {
  std::vector<int32_t> ids;
  auto append = [&](int64_t count, uint32_t stream) {
    for (int64_t k = 0; k < count; ++k)
      ids.push_back(int32_t(random_bits({o.seed, stream}, uint64_t(k)) % uint64_t(vocab_size)));
  };
  append(o.prefix_len, kPrefix);
  append(input_len - o.prefix_len, uint32_t(i));
  return ids;
}

}  // namespace nano
