// SamplingParams by name: from flags, from the lines of a --prompts file, from generation_config.json, and (later)
// from request bodies. One table knows the fields; the ranges are core/sampling_params' business.
#pragma once

#include <span>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/sampling_params.h"  // SamplingParams
#include "llm/options.h"           // EngineOptions

namespace nano {

struct SamplingField {
  using P = SamplingParams;
  using Set = void (*)(P& p, const nlohmann::json& value,
                       const std::string& where);  // what no member alone says
  const char* name;                                // vLLM's; the flag has dashes
  std::variant<float P::*, bool P::*, int32_t P::*, std::optional<int32_t> P::*, std::vector<int32_t> P::*,
               Set>
      field;
  const char* value;  // of the flag: X, N, 1,2,3, JSON or TEXT; "" = on or off; null = there is no flag
  const char* help;
};
std::span<const SamplingField> sampling_fields();

// Sets one field by vLLM's name ("top_p"). null leaves it as it is. False: no field of this name.
// Error naming `where` and the key: a value of the wrong type or too large for the field.
bool set_sampling_field(SamplingParams& params, const std::string& key, const nlohmann::json& value,
                        const std::string& where);

// A value of 32 bits, and a list of them, as strictly as above.
int32_t integer32(const nlohmann::json& value, const std::string& where, const std::string& key);
std::vector<int32_t> id_list(const nlohmann::json& value, const std::string& where, const std::string& key);

// Defaults as vLLM takes them: the model's generation_config.json (Hugging Face directories; unless
// --generation-config vllm). max_tokens is 256.
SamplingParams default_sampling_params(const EngineOptions& options);
std::string generation_config_file(const EngineOptions& options);  // it need not be there

}  // namespace nano
