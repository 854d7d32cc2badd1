// What the measurements of a loaded model have in common: random prompts, answers of an exact length, and their sums.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "bench/stats.h"  // IdsDigest
#include "llm/llm.h"      // LLM, RequestOutput, Progress

namespace nano {

// Who looks on. Both may be empty.
struct Watch {
  Progress progress;                    // (done, total), of what is counted
  std::function<void()> between_steps;  // may end the program, or throw
};

// Random prompts are not cut to fit: the figures would be of another load than the one asked for. Error.
void check_lengths(const Resolved& resolved, int64_t input, int64_t output);
SamplingParams exactly(int64_t tokens, int64_t n);
// generate(), watched. Error: one of them failed.
std::vector<RequestOutput> generate_all(LLM& llm, const std::vector<Prompt>& prompts,
                                        const std::vector<SamplingParams>& params, const Watch& watch,
                                        const LLM::OnUpdate& on_update = {});
void add_ids(const std::vector<RequestOutput>& results, IdsDigest& digest);

// The sums of the requests that ran. Times as in RequestMetrics: the earliest arrival and first token, the last end.
struct Totals {
  int64_t prompt = 0, cached = 0, generated = 0;
  double begin = 1e300, first_token = 1e300, end = 0;
};
Totals add_up(const std::vector<RequestOutput>& results);

}  // namespace nano
