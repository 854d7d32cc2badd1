#include "base/options.h"

#include <cmath>
#include <cstdlib>

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
    {"device", &O::device, kModel, "", "where it computes: ref = plain loops to step through, cpu = SIMD and threads",
     "auto|ref|cpu"},
    {"dtype", &O::dtype, kModel, "", "type of activations between ops", "auto|float32|float|float16|half|bfloat16"},
    {"load-format", &O::load_format, kModel, "", "dummy = random weights from a config.json", "auto|dummy"},
    {"quantization", &O::quantization, kModel, "quantized linear", "must be what the checkpoint is, if given", ""},
    {"quantized-linear", &O::quantized_linear, kModel, "quantized linear",
     "off: the same checkpoint expanded to float32", ""},
    {"activation-dtype", &O::activation_dtype, kModel, "quantized linear",
     "what a quantised matrix is multiplied with", "auto|float32|int8"},
    {"max-model-len", &O::max_model_len, kModel, "", "longest prompt + output; -1 = what the memory allows", ""},
    {"seed", &O::seed, kModel, "sampler", "of requests that bring none", ""},
    {"threads", &O::threads, kModel, "", "0 = the cores that this process may use", ""},

    {"gpu-memory-utilization", &O::gpu_memory_utilization, kMemory, "block manager",
     "share of the device's memory for weights, scratch and KV cache", ""},
    {"device-memory", &O::device_memory, kMemory, "block manager",
     "the memory of the \"GPU\" on ref and cpu, e.g. 80GB; default: half of the machine's", ""},
    {"kv-cache-memory-bytes", &O::kv_cache_memory_bytes, kMemory, "block manager",
     "the KV cache's bytes; overrides the two above", ""},
    {"num-gpu-blocks-override", &O::num_gpu_blocks_override, kMemory, "block manager", "this many blocks", ""},
    {"kv-cache-dtype", &O::kv_cache_dtype, kMemory, "block manager", "auto: float32 on ref, float16 on cpu",
     "auto|float32|float16|bfloat16"},
    {"block-size", &O::block_size, kMemory, "block manager", "tokens a block", ""},
    {"kv-cache", &O::kv_cache, kMemory, "block manager", "off: every step recomputes the whole sequence, O(n²)", ""},
    {"paged-kv", &O::paged_kv, kMemory, "block manager", "off: one block of max-model-len a sequence", ""},
    {"enable-prefix-caching", &O::enable_prefix_caching, kMemory, "prefix cache",
     "off: a prompt's beginning is never found again", ""},

    {"scheduling", &O::scheduling, kScheduler, "scheduler", "static: a batch starts and ends together",
     "continuous|static"},
    {"scheduling-policy", &O::scheduling_policy, kScheduler, "scheduler", "which waiting request is next",
     "fcfs|priority"},
    {"max-num-batched-tokens", &O::max_num_batched_tokens, kScheduler, "chunked prefill",
     "tokens a step may compute; default 2048", ""},
    {"max-num-seqs", &O::max_num_seqs, kScheduler, "scheduler", "sequences that run at once; default 128", ""},
    {"enable-chunked-prefill", &O::enable_chunked_prefill, kScheduler, "chunked prefill",
     "off: a prompt is computed whole or waits", ""},
    {"long-prefill-token-threshold", &O::long_prefill_token_threshold, kScheduler, "chunked prefill",
     "most tokens of one prompt in a step; 0 = no limit", ""},

    {"sampler", &O::sampler, kOutput, "sampler", "off: always the most likely token", ""},
    {"max-logprobs", &O::max_logprobs, kOutput, "sampler", "most log-probabilities a request may ask for; -1 = all", ""},
    {"trace", &O::trace, kOutput, "scheduler", "write every step to this file as JSON lines", ""},
    {"stats", &O::stats, kOutput, "", "a line of figures on stderr at the end", ""},
};

}  // namespace

std::span<const Flag> engine_flags() { return kFlags; }

int64_t parse_human_int(const std::string& text, const std::string& where) {
  const char* begin = text.c_str();
  char* end = nullptr;
  const double number = std::strtod(begin, &end);
  std::string unit = end;
  double factor = 1;
  if (!unit.empty()) {
    const bool bytes = unit.back() == 'B', binary = unit.size() == 3 && unit[1] == 'i' && bytes;
    const size_t powers = std::string("kmg").find(char(std::tolower(unsigned(unit[0]))));
    const bool plain_b = unit == "B";
    if (!plain_b && (powers == std::string::npos || unit.size() > (binary ? 3u : bytes ? 2u : 1u)))
      throw Error("'" + text + "' is not a number", where, "examples: 4096, 1k = 1000, 1K = 1024, 80GB, 80GiB");
    const bool upper_count = !bytes && unit[0] != char(std::tolower(unsigned(unit[0])));
    if (!plain_b) factor = std::pow(binary || upper_count ? 1024.0 : 1000.0, double(powers) + 1);
  }
  const double value = number * factor;
  if (end == begin || !(std::fabs(value) < 9.0e18) || value != std::floor(value))
    throw Error("'" + text + "' is not a whole number", where, "examples: 4096, 1k = 1000, 1K = 1024, 80GB, 80GiB");
  return int64_t(value);
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
