// The load of the benchmarks: which prompts come when. Pure, and a function of these options and the vocabulary's
// size alone: the same seed gives the same load, whatever the engine's other flags.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace nano {

struct LoadOptions {
  int64_t num_prompts = 1000;
  int64_t input_len = 1024, output_len = 128;    // tokens
  std::vector<std::pair<int64_t, int64_t>> mix;  // (input, output), taken in turn in place of these two
  double range_ratio = 0;                        // lengths are uniform within this share of those, both ways
  int64_t prefix_len = 0;                        // tokens that all prompts begin with, beside input_len
  double request_rate = std::numeric_limits<double>::infinity();  // a second; infinity = all at once
  // gamma distributed gaps: 1 = Poisson arrivals, below 1 = in bursts, above 1 = more even
  double burstiness = 1;
  uint64_t seed = 0;
};

struct LoadItem {
  double arrival = 0;                     // seconds after the start
  int64_t input_len = 0, output_len = 0;  // input_len: with the prefix
};

// Error if the arrivals would take months.
std::vector<LoadItem> make_load(const LoadOptions& options);
// The ids of item i, drawn when they are needed: all of a load's may be more than fits in memory.
std::vector<int32_t> prompt_ids(const LoadOptions& options, size_t i, int64_t input_len, int32_t vocab_size);

}  // namespace nano
