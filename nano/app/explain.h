// `run --explain`: how the sampler came to each token, for a projector (a table) or a program (JSON). It runs the
// sampler's own functions over a copy of the row, with one filter more at each step, and chooses nothing itself.
#pragma once

#include <functional>
#include <span>
#include <string>

#include <nlohmann/json.hpp>

#include "core/sampler.h"  // SamplingParams, SamplerContext
#include "llm/llm.h"       // LLM

namespace nano {

// Of one row, params as after validate():
//   {"token_id", "token", "random": u, "range": [a, b],
//    "steps": [{"name", "kept": tokens with p > 0, "least": the smallest p among them}],
//    "candidates": [{"token_id", "token", "logit", "probs": [p after each step]}]}
// The steps are the model, and those that are on: masks and penalties, temperature, top_k, min_p, top_p. Candidates
// are the five best before and after masks and penalties, and the chosen; the best first. The token is the one for
// which a <= u < b: Σp of the tokens with lower ids, and with its own. random and range are null if nothing was
// drawn. A row from which nothing can be sampled: {"error"}. `text` tells a token's bytes.
nlohmann::ordered_json explain(std::span<const float> logits, const SamplingParams& params,
                               const SamplerContext& context, bool sampler,
                               const std::function<std::string(int32_t)>& text);
std::string explain_table(const nlohmann::ordered_json& explained, const std::string& title);

// From now on `use` gets every token that is sampled, of which request.
void explain_all(LLM& llm, std::function<void(const std::string& request_id, nlohmann::ordered_json)> use);

}  // namespace nano
