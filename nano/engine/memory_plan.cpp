#include "engine/memory_plan.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"   // Error
#include "base/format.h"  // format_bytes

namespace nano {

namespace {

int64_t requested(const MemoryPlan& plan) {
  return int64_t(std::ceil(double(plan.device_memory) * plan.utilization));
}

int64_t available_for_kv(const MemoryPlan& plan) {
  if (plan.kv_cache_memory_bytes) return *plan.kv_cache_memory_bytes;
  return requested(plan) - plan.weights - plan.scratch;
}

// Of the flag that sets the limit, the value that leaves `need` bytes for the KV cache. In whole bytes, so that it
// can be typed in as it is.
std::string flag_that_would_do(const MemoryPlan& plan, int64_t need) {
  if (plan.kv_cache_memory_bytes) return fmt::format("give --kv-cache-memory-bytes {}", need);
  const double device = std::ceil(double(plan.weights + plan.slack + plan.scratch + need) / plan.utilization);
  return fmt::format("give --device-memory {} ({})", int64_t(device), format_bytes(int64_t(device)));
}

}  // namespace

std::string format_sum(const MemoryPlan& plan) {
  if (plan.kv_cache_memory_bytes)
    return fmt::format("--kv-cache-memory-bytes {}", format_bytes(*plan.kv_cache_memory_bytes));
  return fmt::format("{} device memory × {} = {}, less {} weights, less {} scratch = {} for the KV cache",
                     format_bytes(plan.device_memory), plan.utilization, format_bytes(requested(plan)),
                     format_bytes(plan.weights), format_bytes(plan.scratch),
                     format_bytes(available_for_kv(plan)));
}

void plan_memory(MemoryPlan& plan) {
  const auto most = double(std::max(plan.num_gpu_blocks_override.value_or(1), plan.blocks_per_seq()));
  if (const double bytes = most * double(plan.kv_bytes_per_token) * plan.block_size; bytes > 9e18)
    throw Error(fmt::format("a KV cache of {:.3g} bytes is too large", bytes), "memory");
  const int64_t available = available_for_kv(plan);
  if (plan.num_gpu_blocks_override) {
    plan.num_blocks = int32_t(*plan.num_gpu_blocks_override);
    plan.kv_bytes = plan.num_blocks * plan.block_bytes();
    return;
  }
  const int64_t blocks = available <= 0 ? 0 : available / plan.block_bytes();
  const int64_t need = plan.blocks_per_seq() * plan.block_bytes();
  if (blocks == 0)
    throw Error(
        "no memory for the cache blocks: " + format_sum(plan), "memory",
        fmt::format("one block of {} tokens takes {}; {} for one sequence of {} tokens", plan.block_size,
                    format_bytes(plan.block_bytes()), flag_that_would_do(plan, need), plan.max_model_len));
  if (blocks < plan.blocks_per_seq()) {
    const int64_t sure = available - (plan.kv_cache_memory_bytes ? 0 : plan.slack);
    const int64_t tokens = sure < 0 ? 0 : sure / plan.block_bytes() * plan.block_size;
    throw Error(
        fmt::format("one sequence of max-model-len {} needs {} of KV cache, and there are {}: {}",
                    plan.max_model_len, format_bytes(need), format_bytes(available), format_sum(plan)),
        "memory",
        (tokens < plan.least_model_len ? "" : fmt::format("--max-model-len {} would fit; or ", tokens)) +
            flag_that_would_do(plan, need));
  }
  plan.num_blocks = int32_t(std::min<int64_t>(blocks, INT32_MAX));
  plan.kv_bytes = plan.num_blocks * plan.block_bytes();
}

bool holds_one_sequence(const MemoryPlan& plan) {
  const int64_t blocks = plan.num_gpu_blocks_override.value_or(std::max<int64_t>(0, available_for_kv(plan)) /
                                                               plan.block_bytes());
  return blocks >= plan.blocks_per_seq();
}

}  // namespace nano
