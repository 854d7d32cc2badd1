// What a request asks of the sampler: vLLM's SamplingParams, its names, defaults and ranges.
// It is data: who obeys a field is said beside it. It does not read JSON or flags.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace nano {

// Of a request that is not greedy, as in vLLM. validate() raises lower ones: logits over less could overflow.
constexpr float kLeastTemperature = 0.01f;

struct SamplingParams {
  int32_t n = 1;             // [1, 16384]; above 1 not with greedy: all would be equal
  float temperature = 1.0f;  // [0, 2]; 0 = greedy: the largest logit, and the lowest id among equal ones
  float top_p = 1.0f;        // (0, 1]
  int32_t top_k = 0;         // 0 or -1 = off
  float min_p = 0.0f;        // [0, 1]
  float repetition_penalty = 1.0f;         // > 0; tokens of the prompt or the output
  float frequency_penalty = 0.0f;          // [-2, 2]; counts in the output
  float presence_penalty = 0.0f;           // [-2, 2]; in the output at all
  std::optional<int64_t> seed;             // none = from the engine's seed and a request counter
  std::optional<int32_t> max_tokens = 16;  // none = up to max_model_len
  int32_t min_tokens = 0;                  // until reached, every stop id is masked
  std::vector<std::string> stop;  // at most 1024, none empty; searched in the text, by whoever detokenises
  std::vector<int32_t> stop_token_ids;
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
  std::optional<int32_t> logprobs;  // k: the top k and the sampled token; -1 = the whole vocabulary
  std::optional<int32_t> prompt_logprobs;
  std::map<int32_t, float> logit_bias;     // added, clamped to ±100
  std::vector<int32_t> allowed_token_ids;  // empty = all
  bool skip_special_tokens = true;

  bool greedy() const { return temperature < 1e-5f; }
  bool temperature_too_low() const { return temperature > 0 && temperature < kLeastTemperature; }
};

// Checks every range above and that ids are inside the vocabulary; Error{what, "SamplingParams.field", hint}.
// NaN and infinities are refused everywhere. Raises a temperature in (0, 0.01) to 0.01 as vLLM does, clamps
// logit_bias, and turns seed -1 into none. `max_logprobs` caps logprobs and prompt_logprobs; -1 = no cap (only then
// may a request ask for the whole vocabulary, unless that is smaller than the cap).
void validate(SamplingParams& params, int32_t vocab_size, int32_t max_logprobs = 20);

}  // namespace nano
