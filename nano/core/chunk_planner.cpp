#include "core/chunk_planner.h"

#include <algorithm>

namespace nano {

int32_t plan_chunk(int32_t to_compute, const ChunkLimits& limits) {
  if (!limits.chunked) return to_compute <= limits.budget ? to_compute : 0;
  int32_t chunk = std::min(to_compute, limits.budget);
  if (limits.long_prefill_threshold > 0) chunk = std::min(chunk, limits.long_prefill_threshold);
  return std::max(chunk, 0);
}

std::vector<int32_t> plan_chunks(std::span<const int32_t> running, std::span<const int32_t> waiting,
                                 ChunkLimits limits) {
  std::vector<int32_t> chunks(running.size() + waiting.size(), 0);
  size_t i = 0;
  for (int32_t to_compute : running) {
    chunks[i] = plan_chunk(to_compute, limits);
    limits.budget -= chunks[i++];
  }
  for (int32_t to_compute : waiting) {
    chunks[i] = plan_chunk(to_compute, limits);
    if (chunks[i] == 0) break;
    limits.budget -= chunks[i++];
  }
  return chunks;
}

}  // namespace nano
