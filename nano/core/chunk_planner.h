// The chunk planner: how many tokens each sequence gets in this step. A pure function.
// Flag: --[no-]enable-chunked-prefill. Off = a prompt is computed whole or waits.
// Source: Agrawal et al. 2023, "SARATHI: efficient LLM inference by piggybacking decodes with chunked prefills";
// the order is vLLM V1's: running sequences first, then waiting ones, until the budget is used up.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nano {

struct ChunkLimits {
  int32_t budget = 2048;               // --max-num-batched-tokens left in this step
  bool chunked = true;                 // --enable-chunked-prefill
  int32_t long_prefill_threshold = 0;  // --long-prefill-token-threshold; 0 = none
};

// How many of `to_compute` tokens one sequence may have: 0 = none in this step.
int32_t plan_chunk(int32_t to_compute, const ChunkLimits& limits);

// The whole step at once: tokens for each running, then each waiting sequence (to_compute after prefix-cache
// hits). Waiting ones stop at the first that gets nothing (no overtaking). The scheduler walks the same rule one
// sequence at a time through plan_chunk, because it must also find blocks.
std::vector<int32_t> plan_chunks(std::span<const int32_t> running, std::span<const int32_t> waiting,
                                 ChunkLimits limits);

}  // namespace nano
