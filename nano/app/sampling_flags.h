// The sampling flags of run and chat, made from the table in llm/sampling_json, and what is said about their values.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "app/cli.h"               // ArgParser
#include "core/sampling_params.h"  // SamplingParams

namespace nano {

// What was given is collected in `given`, under vLLM's names ("top_p").
void add_sampling_flags(ArgParser& parser, nlohmann::json& given);

// The model's defaults (llm/sampling_json), then `given`. Error: no model could do that.
SamplingParams make_sampling_params(const EngineOptions& options, const nlohmann::json& given);

// "seed 0 (--seed N for another)" if another run would say the same though tokens are drawn; "" otherwise.
std::string seed_note(const EngineOptions& options, const SamplingParams& params);

// As validate() will, but said on stderr, as vLLM does.
void raise_low_temperature(SamplingParams& params, const std::string& where);

}  // namespace nano
