#include "llm/options.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"  // Error

namespace nano {

namespace {

using O = EngineOptions;
const char* const kModel = "Model";
const char* const kMemory = "Memory and KV cache";
const char* const kScheduler = "Scheduler";
const char* const kOutput = "Sampling and reports";

const Flag kFlags[] = {
    {"device", &O::device, kModel, "",
     "where it computes: ref = plain loops to step through, cpu = SIMD and threads", "auto|ref|cpu"},
    {"dtype", &O::dtype, kModel, "", "type of activations between ops",
     "auto|float32|float|float16|half|bfloat16"},
    {"load-format", &O::load_format, kModel, "", "dummy = random weights from a config.json", "auto|dummy"},
    {"quantization", &O::quantization, kModel, "quantized linear",
     "must be what the checkpoint is, if given"},
    {"quantized-linear", &O::quantized_linear, kModel, "quantized linear",
     "off: the same checkpoint expanded to float32"},
    {"activation-dtype", &O::activation_dtype, kModel, "quantized linear",
     "what a quantised matrix is multiplied with", "auto|float32|int8"},
    {"max-model-len", &O::max_model_len, kModel, "",
     "longest prompt + output; default: the model's context; -1 = what the memory allows"},
    {"seed", &O::seed, kModel, "sampler", "of requests that bring none"},
    {"threads", &O::threads, kModel, "", "0 = the cores that this process may use"},
    {"cpu-isa", &O::cpu_isa, kModel, "",
     "instructions that the cpu backend may use; auto = the best that this machine has",
     "auto|plain|avx2|avxvnni|avx512|amx|neon"},

    {"gpu-memory-utilization", &O::gpu_memory_utilization, kMemory, "block manager",
     "share of the device's memory for weights, scratch and KV cache"},
    {"device-memory", &O::device_memory, kMemory, "block manager",
     "the memory of the \"GPU\" on ref and cpu, e.g. 80GB; default: half of the machine's, of which the KV "
     "cache takes no more than 4 GiB unless one sequence of max-model-len needs it"},
    {"kv-cache-memory-bytes", &O::kv_cache_memory_bytes, kMemory, "block manager",
     "the KV cache's bytes; overrides the two above"},
    {"num-gpu-blocks-override", &O::num_gpu_blocks_override, kMemory, "block manager", "this many blocks"},
    {"kv-cache-dtype", &O::kv_cache_dtype, kMemory, "block manager", "auto: float32 on ref, float16 on cpu",
     "auto|float32|float16|bfloat16"},
    {"block-size", &O::block_size, kMemory, "block manager", "tokens a block"},
    {"kv-cache", &O::kv_cache, kMemory, "block manager",
     "off: every step recomputes the whole sequence, O(n²)"},
    {"paged-kv", &O::paged_kv, kMemory, "block manager", "off: one block of max-model-len a sequence"},
    {"enable-prefix-caching", &O::enable_prefix_caching, kMemory, "prefix cache",
     "off: a prompt's beginning is never found again"},

    {"scheduling", &O::scheduling, kScheduler, "scheduler", "static: a batch starts and ends together",
     "continuous|static"},
    {"scheduling-policy", &O::scheduling_policy, kScheduler, "scheduler", "which waiting request is next",
     "fcfs|priority"},
    {"max-num-batched-tokens", &O::max_num_batched_tokens, kScheduler, "chunked prefill",
     fmt::format(
         "tokens a step may compute; default {}, or max-model-len if that is more and a prompt has to be "
         "computed whole",
         kDefaultBatchedTokens)},
    {"max-num-seqs", &O::max_num_seqs, kScheduler, "scheduler",
     fmt::format("sequences that run at once; default {}, or what max-num-batched-tokens allows",
                 kDefaultSeqs)},
    {"enable-chunked-prefill", &O::enable_chunked_prefill, kScheduler, "chunked prefill",
     "off: a prompt is computed whole or waits"},
    {"long-prefill-token-threshold", &O::long_prefill_token_threshold, kScheduler, "chunked prefill",
     "most tokens of one prompt in a step; 0 = no limit"},

    {"sampler", &O::sampler, kOutput, "sampler", "off: always the most likely token"},
    {"max-logprobs", &O::max_logprobs, kOutput, "sampler",
     "most log-probabilities a request may ask for; -1 = all"},
    {"generation-config", &O::generation_config, kOutput, "sampler",
     "vllm = no sampling defaults from the model's generation_config.json", "auto|vllm"},
    {"trace", &O::trace, kOutput, "scheduler", "write every step to this file as JSON lines"},
    {"warmup", &O::warmup, kOutput, "",
     "a step of no request at the start (not on ref); off: the first token waits for untouched pages", ""},
    {"stats", &O::stats, kOutput, "", "off: no start report and no figures at the end, on stderr"},
};

}  // namespace

std::span<const Flag> engine_flags() { return kFlags; }

void check_choice(const std::string& value, const std::string& choices, const std::string& where) {
  const bool one = value.find('|') == std::string::npos;
  if (choices.empty() || (one && ("|" + choices + "|").find("|" + value + "|") != std::string::npos)) return;
  std::string list;
  for (char c : choices) list += c == '|' ? std::string(", ") : std::string(1, c);
  throw Error("'" + value + "' is not known", where, "one of " + list);
}

void check_choices(const EngineOptions& options) {
  for (const Flag& flag : kFlags)
    if (auto field = std::get_if<std::string EngineOptions::*>(&flag.field))
      check_choice(options.**field, flag.choices, std::string("--") + flag.name);
}

std::string options_json(const EngineOptions& options) {
  nlohmann::ordered_json json;
  json["model"] = options.model;
  for (const Flag& flag : kFlags)
    std::visit(
        [&](auto field) {
          const auto& value = options.*field;
          if constexpr (requires { value.has_value(); }) {
            if (value) json[flag.name] = *value;
          } else {
            json[flag.name] = value;
          }
        },
        flag.field);
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace nano
