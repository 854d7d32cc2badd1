// `bench latency`: the time of one batch of random prompts from arrival to the last token, again and again.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "bench/measure.h"   // Watch
#include "bench/roofline.h"  // Profile

namespace nano {

struct LatencyOptions {
  int64_t input_len = 32, output_len = 128, batch_size = 8, n = 1;  // tokens; prompts; answers a prompt
  int64_t num_iters_warmup = 10, num_iters = 30;
  uint64_t seed = 0;
};

// Error: this load does not fit what the engine was made for.
void check(const LatencyOptions& options, const Resolved& resolved);
// vLLM's keys and some of our own. `profile`, if there is one, is of the iterations that count.
nlohmann::ordered_json measure_latency(LLM& llm, const LatencyOptions& options, Profile* profile,
                                       const Watch& watch);
std::string latency_text(const nlohmann::ordered_json& result);

}  // namespace nano
