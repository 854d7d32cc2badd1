// RequestOutput as vLLM-like JSON, one object a line: what scripts and notebooks read.
//   {"request_id","prompt","prompt_token_ids",
//    "outputs":[{"index","text","token_ids","cumulative_logprob","logprobs","finish_reason","stop_reason"}],
//    "prompt_logprobs","num_cached_tokens","finished","metrics":{…},"error"}
// logprobs: one object a token, {"token id":{"logprob","rank","decoded_token"}}; null when not asked for.
// "error" is there only when the request failed. Invalid UTF-8 becomes U+FFFD.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "llm/llm.h"  // RequestOutput

namespace nano {

nlohmann::ordered_json request_output_json(const RequestOutput& output, const Tokenizer& tokenizer);
// On one line, or indented; never throws for what a text holds.
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);
inline nlohmann::ordered_json or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}
// What people read, from what programs read: {key} and {key:.2f} in `text` are replaced as fmt does it, but a real
// number without a format has three digits. A member of an inner object is {outer_inner}; a whole number whose key
// speaks of bytes is said as "3.20 MB".
std::string filled(const std::string& text, const nlohmann::ordered_json& values);

}  // namespace nano
