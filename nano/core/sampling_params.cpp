#include "core/sampling_params.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"  // Error

namespace nano {

namespace {

// Far above any sane use; without a limit one small request could fill the memory.
constexpr int32_t kMaxN = 16384;
constexpr size_t kMaxStopStrings = 1024;

[[noreturn]] void refuse(const char* field, std::string problem, std::string hint) {
  throw Error(std::move(problem), std::string("SamplingParams.") + field, std::move(hint));
}

// Written so that NaN fails.
void check_range(const char* field, float x, float low, float high) {
  if (!(x >= low && x <= high))
    refuse(field, fmt::format("{} is out of range", x), fmt::format("use a value in [{}, {}]", low, high));
}

void check_id(const char* field, int32_t id, int32_t vocab_size) {
  if (id < 0 || id >= vocab_size)
    refuse(field, fmt::format("token id {} is not in the vocabulary", id),
           fmt::format("ids are 0 to {}", vocab_size - 1));
}

void check_logprobs(const char* field, const std::optional<int32_t>& k, int32_t vocab_size,
                    int32_t max_logprobs) {
  if (!k) return;
  if (*k < -1)
    refuse(field, fmt::format("{} is out of range", *k), "use 0 or more, or -1 for the vocabulary");
  const int32_t asked = *k == -1 ? vocab_size : *k;
  const int32_t cap = max_logprobs == -1 ? vocab_size : max_logprobs;
  if (asked > cap)
    refuse(field,
           fmt::format("{} log-probabilities a token are more than the limit of {}",
                       *k == -1 ? "all" : std::to_string(asked), cap),
           max_logprobs == -1 ? "the vocabulary has no more" : "ask for fewer, or raise --max-logprobs");
}

void check_filters(const SamplingParams& p) {
  check_range("temperature", p.temperature, 0.0f, 2.0f);
  if (!(p.top_p > 0.0f && p.top_p <= 1.0f))
    refuse("top_p", fmt::format("{} is out of range", p.top_p), "use a value in (0, 1]; 1 = off");
  if (p.top_k < -1)
    refuse("top_k", fmt::format("{} is out of range", p.top_k), "use 1 or more; 0 or -1 = off");
  check_range("min_p", p.min_p, 0.0f, 1.0f);
  if (!(p.repetition_penalty > 0.0f && std::isfinite(p.repetition_penalty)))
    refuse("repetition_penalty", fmt::format("{} is out of range", p.repetition_penalty),
           "use a finite value above 0; 1 = off");
  check_range("frequency_penalty", p.frequency_penalty, -2.0f, 2.0f);
  check_range("presence_penalty", p.presence_penalty, -2.0f, 2.0f);
}

void check_lengths(const SamplingParams& p) {
  if (p.n < 1 || p.n > kMaxN)
    refuse("n", fmt::format("{} is out of range", p.n), fmt::format("use 1 to {}", kMaxN));
  if (p.n > 1 && p.greedy())
    refuse("n", fmt::format("{} answers at temperature {} would all be the same", p.n, p.temperature),
           "use n = 1, or a temperature above 0");
  if (p.max_tokens && *p.max_tokens < 1)
    refuse("max_tokens", fmt::format("{} is out of range", *p.max_tokens), "use 1 or more");
  if (p.min_tokens < 0)
    refuse("min_tokens", fmt::format("{} is out of range", p.min_tokens), "use 0 or more");
  if (p.max_tokens && p.min_tokens > *p.max_tokens)
    refuse("min_tokens", fmt::format("{} is more than max_tokens, {}", p.min_tokens, *p.max_tokens),
           "lower min_tokens or raise max_tokens");
  if (p.stop.size() > kMaxStopStrings)
    refuse("stop", fmt::format("{} stop strings are too many", p.stop.size()),
           fmt::format("use at most {}", kMaxStopStrings));
  for (const std::string& s : p.stop)
    if (s.empty()) refuse("stop", "a stop string is empty", "it would stop at once; leave it out");
}

}  // namespace

void validate(SamplingParams& p, int32_t vocab_size, int32_t max_logprobs) {
  check_filters(p);
  if (p.temperature_too_low()) p.temperature = kLeastTemperature;  // no longer greedy, so n may be above 1
  check_lengths(p);
  check_logprobs("logprobs", p.logprobs, vocab_size, max_logprobs);
  check_logprobs("prompt_logprobs", p.prompt_logprobs, vocab_size, max_logprobs);
  for (int32_t id : p.stop_token_ids) check_id("stop_token_ids", id, vocab_size);
  for (int32_t id : p.allowed_token_ids) check_id("allowed_token_ids", id, vocab_size);
  for (auto& [id, bias] : p.logit_bias) {
    check_id("logit_bias", id, vocab_size);
    if (!std::isfinite(bias))
      refuse("logit_bias", fmt::format("the bias of token {} is {}", id, bias), "use a value in [-100, 100]");
    bias = std::clamp(bias, -100.0f, 100.0f);
  }
  if (p.seed == -1) p.seed.reset();
}

}  // namespace nano
