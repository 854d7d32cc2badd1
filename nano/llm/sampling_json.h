// SamplingParams by name: from flags, from the lines of a --prompts file, from generation_config.json, and (later)
// from request bodies. One function knows the fields; the ranges are core/sampling_params' business.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "app/cli.h"               // ArgParser
#include "llm/options.h"          // EngineOptions
#include "core/sampling_params.h"  // SamplingParams

namespace nano {

// Sets one field by vLLM's name ("top_p"). null leaves it as it is. False: no field of this name.
// Error naming `where` and the key: a value of the wrong type or too large for the field.
bool set_sampling_field(SamplingParams& params, const std::string& key, const nlohmann::json& value,
                        const std::string& where);

// A value of 32 bits, and a list of them, as strictly as above.
int32_t integer32(const nlohmann::json& value, const std::string& where, const std::string& key);
std::vector<int32_t> id_list(const nlohmann::json& value, const std::string& where, const std::string& key);

// The sampling flags. What was given is collected in `given`, under the names above.
void add_sampling_flags(ArgParser& parser, nlohmann::json& given);

// Defaults as vLLM takes them: the model's generation_config.json (Hugging Face directories; unless
// --generation-config vllm), then `given`. max_tokens is 256 if nobody says otherwise.
SamplingParams make_sampling_params(const EngineOptions& options, const nlohmann::json& given);

// As vLLM does: on stderr, if the sampler is going to raise it.
void warn_of_low_temperature(const SamplingParams& params, const std::string& where);

}  // namespace nano
