// From what the user asked for to what the engine runs with: defaults that depend on each other, and refusals.
// Pure: no file is read and nothing is allocated. vLLM's rules and messages (flags, max-model-len derivation).
#pragma once

#include <cstdint>
#include <string>

#include "backend/backend.h"     // Backend, ActivationDtype
#include "core/scheduler.h"      // SchedulerConfig
#include "engine/memory_plan.h"  // MemoryPlan
#include "llm/options.h"         // EngineOptions
#include "model/model_config.h"  // ModelConfig

namespace nano {

struct DeviceChoice {
  std::string device;  // "ref" or "cpu"
  ActivationDtype activations = ActivationDtype::float32;
  DType kv_dtype = DType::f32;
};
DeviceChoice choose_device(const EngineOptions& options);

struct Resolved {
  DeviceChoice device;
  int32_t block_size = 16;
  bool enable_prefix_caching = true;
  SchedulerConfig scheduler;
  MemoryPlan memory;  // planned: num_blocks is set
  std::string notes;  // what one flag made of another, a line each; "" = nothing to say
};

// `weight_bytes` as they are (or will be) in memory. Error: flags that contradict each other or the model, or do
// not fit.
Resolved resolve(const EngineOptions& options, const ModelConfig& config, int64_t weight_bytes,
                 const Backend& backend);
// The same whether it fits or not: all but memory.num_blocks and kv_bytes, which plan_memory() fills.
Resolved resolve_unplanned(const EngineOptions& options, const ModelConfig& config, int64_t weight_bytes,
                           const Backend& backend);

// Error: longer than the model's context.
int32_t resolve_max_model_len(const EngineOptions& options, const ModelConfig& config);
// Without weights: how many there are in a decoder of this shape (embedding and head, matrices, norms, biases).
int64_t count_parameters(const ModelConfig& config);
// Error unless it is in (0, 1].
void check_utilization(double gpu_memory_utilization);
// What the machine has, or the control groups allow (`root`: as in base/cgroup.h).
int64_t physical_memory(const std::string& root = "");
// --device-memory, else half of the machine's.
int64_t most_device_memory(const EngineOptions& options);

}  // namespace nano
