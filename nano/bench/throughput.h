// `bench throughput`: all random prompts at once, and how many tokens a second the engine gets through.
#pragma once

#include "bench/measure.h"     // Watch
#include "bench/roofline.h"    // Profile
#include "bench/serve_load.h"  // LoadOptions

namespace nano {

struct ThroughputOptions {
  LoadOptions load;  // its arrivals are not looked at
  int64_t n = 1;     // answers a prompt
};

// Error: a prompt and its answer are too long for the engine.
void check(const ThroughputOptions& options, const Resolved& resolved);
// vLLM's keys and some of our own.
nlohmann::ordered_json measure_throughput(LLM& llm, const ThroughputOptions& options, Profile* profile,
                                          const Watch& watch);
std::string throughput_text(const nlohmann::ordered_json& result);

}  // namespace nano
