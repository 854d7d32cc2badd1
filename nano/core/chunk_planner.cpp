// Example: a prompt of 1,000 tokens and a budget of 512, of which three decoding sequences have taken 3. Chunked, the
// prompt gets 509 now and 491 in the next step, and the three get their tokens in both; with a threshold of 128 it
// gets 128. Not chunked it waits until 1,000 are free, and then holds up everybody for one long step.
// vLLM's counterpart: the token counts in vllm/v1/core/sched/scheduler.py, Scheduler.schedule.
#include "core/chunk_planner.h"

#include <algorithm>

namespace nano {

int32_t plan_chunk(int32_t to_compute, const ChunkLimits& limits) {
  if (!limits.chunked) return to_compute <= limits.budget ? to_compute : 0;
  int32_t chunk = std::min(to_compute, limits.budget);
  if (limits.long_prefill_threshold > 0) chunk = std::min(chunk, limits.long_prefill_threshold);
  return std::max(chunk, 0);
}

}  // namespace nano
