// The engine's flags: ONE table of flag, field, default, lesson and help. The command line, `--help` and the
// trace header are made from it. Names and defaults are vLLM's wherever vLLM has the flag.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>

namespace nano {

constexpr int64_t kDefaultBatchedTokens = 2048, kDefaultSeqs = 128;

struct EngineOptions {
  // Model.
  std::string model;            // .gguf file, Hugging Face directory, or a name in models/
  std::string device = "auto";  // ref | cpu
  std::string dtype = "auto";
  std::string load_format = "auto";  // auto | dummy
  std::string quantization;          // must agree with the checkpoint when given
  bool quantized_linear = true;
  std::string activation_dtype = "auto";  // float32 | int8
  std::optional<int64_t> max_model_len;   // -1 = as long as the memory allows
  int64_t seed = 0;
  int64_t threads = 0;  // 0 = cores within affinity and quota
  std::string cpu_isa = "auto";
  // Memory.
  double gpu_memory_utilization = 0.92;
  std::optional<int64_t> device_memory;
  std::optional<int64_t> kv_cache_memory_bytes;
  std::optional<int64_t> num_gpu_blocks_override;
  std::string kv_cache_dtype = "auto";  // float32 | float16 | bfloat16
  int64_t block_size = 16;
  bool kv_cache = true;
  bool paged_kv = true;
  bool enable_prefix_caching = true;
  // Scheduler.
  std::string scheduling = "continuous";   // continuous | static
  std::string scheduling_policy = "fcfs";  // fcfs | priority
  std::optional<int64_t>
      max_num_batched_tokens;           // none: kDefaultBatchedTokens, kDefaultSeqs, as far as they fit
  std::optional<int64_t> max_num_seqs;  // the other flags (llm/resolve)
  bool enable_chunked_prefill = true;
  int64_t long_prefill_token_threshold = 0;
  // Sampler and reports.
  bool sampler = true;
  int64_t max_logprobs = 20;
  std::string generation_config = "auto";  // auto | vllm
  std::string trace;
  bool warmup = true;
  bool stats = true;
};

struct Flag {
  using Field = std::variant<std::string EngineOptions::*, bool EngineOptions::*, int64_t EngineOptions::*,
                             double EngineOptions::*, std::optional<int64_t> EngineOptions::*>;
  const char* name;  // "block-size"; a bool field has a --no- twin
  Field field;
  const char* group;   // heading in --help
  const char* lesson;  // which module's lesson toggles it; "" = none
  std::string help;
  const char* choices = "";  // "continuous|static"; "" = free
};

std::span<const Flag> engine_flags();

// Error naming `where` unless `value` is one of `choices`, "a|b|c"; "" = free.
void check_choice(const std::string& value, const std::string& choices, const std::string& where);
// The same for all fields: options that a program filled in have met no command line.
void check_choices(const EngineOptions& options);

// The options as a JSON object, flag names as keys, for the trace header.
std::string options_json(const EngineOptions& options);

}  // namespace nano
