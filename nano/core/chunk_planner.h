// The chunk planner: how many tokens a sequence gets in this step. A pure function.
// Flag: --[no-]enable-chunked-prefill. Off = a prompt is computed whole or waits.
// Source: Agrawal et al. 2023, "SARATHI: efficient LLM inference by piggybacking decodes with chunked prefills".
// Not here: whose turn it is, and finding blocks. The scheduler asks for one sequence after the other, running ones
// first, and takes what each got from the budget, because what the next may have depends on the blocks left, too.
#pragma once

#include <cstdint>

namespace nano {

struct ChunkLimits {
  int32_t budget = 2048;               // --max-num-batched-tokens left in this step
  bool chunked = true;                 // --enable-chunked-prefill
  int32_t long_prefill_threshold = 0;  // --long-prefill-token-threshold; 0 = none
};

// How many of `to_compute` tokens one sequence may have: 0 = none in this step.
int32_t plan_chunk(int32_t to_compute, const ChunkLimits& limits);

}  // namespace nano
