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
