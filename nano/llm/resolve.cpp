#include "llm/resolve.h"

#include <algorithm>
#include <cmath>
#include <unistd.h>

#include <fmt/format.h>

#include "base/cgroup.h"              // cgroup_memory_limit
#include "base/error.h"               // Error
#include "checkpoint/tensor_names.h"  // model_tensors
#include "engine/runner.h"            // Runner::batch_bytes
#include "model/kv_cache.h"           // kv_bytes_per_token
#include "model/transformer.h"        // Transformer::activation_bytes, limits

namespace nano {

namespace {

int32_t in_range(int64_t value, int64_t low, const char* flag) {
  if (value < low || value > INT32_MAX)
    throw Error(fmt::format("{} is out of range: at least {}, at most {}", value, low, INT32_MAX), flag);
  return int32_t(value);
}

void resolve_scheduler(const EngineOptions& options, Resolved& r) {
  SchedulerConfig& s = r.scheduler;
  s.continuous = options.scheduling == "continuous";
  s.priority_policy = options.scheduling_policy == "priority";
  s.kv_cache = options.kv_cache;
  s.enable_chunked_prefill = options.enable_chunked_prefill;
  auto off = [&](bool& feature, const char* line) {
    if (feature) r.notes += std::string(line) + "\n";
    feature = false;
  };
  if (!options.kv_cache) {  // nothing computed stays, so there is nothing to share and a chunk leads nowhere
    off(s.enable_chunked_prefill, "--no-kv-cache implies --no-enable-chunked-prefill");
    off(r.enable_prefix_caching, "--no-kv-cache implies --no-enable-prefix-caching");
  }
  if (!options.paged_kv)
    off(r.enable_prefix_caching, "--no-paged-kv implies --no-enable-prefix-caching: one block a sequence");

  const int32_t max_model_len = s.max_model_len;
  if (options.max_num_batched_tokens) {
    s.max_num_batched_tokens = in_range(*options.max_num_batched_tokens, 1, "--max-num-batched-tokens");
  } else {
    s.max_num_batched_tokens =
        int32_t(s.enable_chunked_prefill ? kDefaultBatchedTokens
                                         : std::max<int64_t>(kDefaultBatchedTokens, max_model_len));
  }
  s.max_num_seqs = options.max_num_seqs ? in_range(*options.max_num_seqs, 1, "--max-num-seqs")
                                        : int32_t(std::min<int64_t>(kDefaultSeqs, s.max_num_batched_tokens));
  s.long_prefill_token_threshold =
      in_range(options.long_prefill_token_threshold, 0, "--long-prefill-token-threshold");
  check_limits(s);
}

// This may be somebody's laptop: where nobody said how much memory there is, the KV cache gets no more than 4 GiB,
// or what one sequence needs.
int64_t default_device_memory(const EngineOptions& options, const MemoryPlan& m) {
  const int64_t kv = std::max(int64_t(4) << 30, m.blocks_per_seq() * m.block_bytes());
  const double enough = std::ceil(double(m.weights + m.scratch + kv) / m.utilization);
  return int64_t(std::min(double(most_device_memory(options)), enough));
}

void check_countable(const ModelConfig& c, const SchedulerConfig& s, int64_t kv_bytes_per_token) {
  const double kv = double(kv_bytes_per_token) * s.max_model_len * s.max_num_seqs;
  const double step = double(s.max_num_batched_tokens) * (double(c.C) + c.F + double(c.H) * c.D);
  if (kv > 4e18 || step > 1e17) throw Error("the memory of this shape is too large to count", "memory");
}

}  // namespace

DeviceChoice choose_device(const EngineOptions& options) {
  check_choices(options);
  DeviceChoice r;
  r.device = options.device == "auto" ? "cpu" : options.device;
  const std::string &dtype = options.dtype, &kv = options.kv_cache_dtype;
  if (dtype != "auto" && dtype != "float32" && dtype != "float")
    throw Error(dtype + " activations are not supported on " + r.device, "--dtype", "use auto or float32");
  const bool int8 =
      options.activation_dtype == "int8" || (options.activation_dtype == "auto" && r.device == "cpu");
  r.activations = int8 ? ActivationDtype::int8 : ActivationDtype::float32;
  r.kv_dtype = kv == "float16" || (kv == "auto" && r.device == "cpu") ? DType::f16
               : kv == "bfloat16"                                     ? DType::bf16
                                                                      : DType::f32;
  return r;
}

void check_utilization(double gpu_memory_utilization) {
  if (!(gpu_memory_utilization > 0 && gpu_memory_utilization <= 1))
    throw Error("must be above 0 and at most 1", "--gpu-memory-utilization");
}

int64_t physical_memory(const std::string& root) {
  const int64_t bytes = int64_t(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  const double limit = cgroup_memory_limit(root);
  return limit > 0 && limit < double(bytes) ? int64_t(limit) : bytes;
}

int64_t most_device_memory(const EngineOptions& options) {
  return options.device_memory.value_or(physical_memory() / 2);
}

int32_t resolve_max_model_len(const EngineOptions& options, const ModelConfig& config) {
  const int32_t derived = config.max_position;
  if (!options.max_model_len || *options.max_model_len == -1) return derived;
  const int32_t asked = in_range(*options.max_model_len, 1, "--max-model-len");
  if (asked > derived)
    throw Error(fmt::format("User-specified max_model_len ({}) is greater than the derived max_model_len "
                            "(max_position_embeddings={})",
                            asked, derived),
                "--max-model-len", "give a smaller one");
  return asked;
}

int64_t count_parameters(const ModelConfig& c) {
  double count = 0;  // exact for whole numbers up to 2^53, and does not overflow beyond
  for (const ModelTensor& t : model_tensors(c))
    count += double(t.N) * double(t.K == 0 ? 1 : t.K) + (t.bias ? double(t.N) : 0.0);
  if (!(count <= 1e15)) throw Error(fmt::format("too large: {:.3g} parameters", count), "model config");
  return int64_t(count);
}

namespace {

// Everything but the number of blocks, for this max_model_len.
Resolved plan_for(int32_t max_model_len, const EngineOptions& options, const ModelConfig& config,
                  int64_t weight_bytes, const Backend& backend) {
  Resolved r;
  r.device = choose_device(options);
  r.enable_prefix_caching = options.enable_prefix_caching;
  const int32_t asked = options.paged_kv ? in_range(options.block_size, 1, "--block-size") : max_model_len;
  r.block_size = std::min(asked, max_model_len);  // a longer block could never be full
  if (r.block_size < asked)
    r.notes += fmt::format("--block-size {} is longer than max-model-len: {} does\n", asked, r.block_size);
  r.scheduler.max_model_len = max_model_len;
  resolve_scheduler(options, r);
  const SchedulerConfig& s = r.scheduler;

  MemoryPlan& m = r.memory;
  m.utilization = options.gpu_memory_utilization;
  m.weights = weight_bytes;
  m.kv_bytes_per_token = kv_bytes_per_token(config, r.device.kv_dtype);
  check_countable(config, s, m.kv_bytes_per_token);
  m.kv_cache_memory_bytes = options.kv_cache_memory_bytes;
  m.num_gpu_blocks_override = options.num_gpu_blocks_override;
  if (m.num_gpu_blocks_override) in_range(*m.num_gpu_blocks_override, 1, "--num-gpu-blocks-override");
  m.block_size = r.block_size;
  m.max_model_len = max_model_len;
  m.least_model_len = std::max(1, s.long_prefill_token_threshold);
  m.scratch = Transformer::activation_bytes(config, s.max_num_batched_tokens) +
              Runner::batch_bytes(s.max_num_batched_tokens, s.max_num_seqs, int32_t(m.blocks_per_seq())) +
              backend.scratch_bytes(Transformer::limits(config, s.max_num_batched_tokens, s.max_model_len));
  m.device_memory = options.device_memory.value_or(default_device_memory(options, m));
  return r;
}

}  // namespace

Resolved resolve_unplanned(const EngineOptions& options, const ModelConfig& config, int64_t weight_bytes,
                           const Backend& backend) {
  check_utilization(options.gpu_memory_utilization);
  in_range(options.max_logprobs, -1, "--max-logprobs");
  const int32_t longest = resolve_max_model_len(options, config);
  Resolved r = plan_for(longest, options, config, weight_bytes, backend);
  if (options.max_model_len != -1 || holds_one_sequence(r.memory)) return r;
  // The longest that fits. A shorter one needs less: of the cache, and without chunked prefill of the scratch too.
  int32_t fits = r.memory.least_model_len - 1, too_long = longest;
  while (too_long - fits > 1) {
    const int32_t middle = fits + (too_long - fits) / 2;
    const Resolved shorter = plan_for(middle, options, config, weight_bytes, backend);
    (holds_one_sequence(shorter.memory) ? fits : too_long) = middle;
  }
  if (fits < r.memory.least_model_len) return r;  // none: plan_memory says what is missing
  return plan_for(fits, options, config, weight_bytes, backend);
}

Resolved resolve(const EngineOptions& options, const ModelConfig& config, int64_t weight_bytes,
                 const Backend& backend) {
  Resolved r = resolve_unplanned(options, config, weight_bytes, backend);
  plan_memory(r.memory);
  return r;
}

}  // namespace nano
