// How much memory there is, what takes it, and how many KV blocks that leaves. Pure arithmetic, as vLLM does it:
//   requested = device memory × gpu_memory_utilization;  KV = requested − weights − scratch;
//   blocks = KV / bytes of a block.
// It measures and allocates nothing: llm/resolve.cpp fills in what there is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/format.h"  // ceil_div

namespace nano {

struct MemoryPlan {
  // In.
  int64_t device_memory = 0;         // bytes; --device-memory
  double utilization = 0.92;         // --gpu-memory-utilization
  int64_t weights = 0, scratch = 0;  // bytes
  int64_t kv_bytes_per_token = 0;
  int32_t block_size = 16, max_model_len = 0;
  std::optional<int64_t> kv_cache_memory_bytes;  // overrides device_memory × utilization
  std::optional<int64_t> num_gpu_blocks_override;
  int64_t slack = 0;  // while weights are an estimate: what packing may add. Hints leave room for it.
  int32_t least_model_len = 1;  // other flags refuse a shorter one, so no hint names it
  // Out of plan_memory().
  int64_t kv_bytes = 0;
  int32_t num_blocks = 0;

  int64_t total() const { return weights + scratch + kv_bytes; }
  int64_t block_bytes() const { return kv_bytes_per_token * block_size; }
  int64_t blocks_per_seq() const { return ceil_div(max_model_len, block_size); }
  // "Maximum concurrency": full-length sequences that fit at once.
  double max_concurrency() const { return double(num_blocks) / double(blocks_per_seq()); }
};

// Fills the second part. Error with the whole sum, and with the flag values that would do, when not one
// full-length sequence fits (an override of the number of blocks is taken as it is: it is for tests).
void plan_memory(MemoryPlan& plan);
// Does a sequence of max_model_len fit? For --max-model-len auto (-1).
bool holds_one_sequence(const MemoryPlan& plan);

std::string format_sum(const MemoryPlan& plan);  // one line

}  // namespace nano
