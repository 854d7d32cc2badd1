// config.json of a Hugging Face model as a ModelConfig: old and new spelling, nested text models, defaults as
// transformers has them. What nano would compute differently (another RoPE scaling, activation, soft cap, a
// quantised checkpoint) is an Error by name, never a guess. Not here: which ids begin and end a text
// (text/tokenizer.h), and tensors.
// Source: huggingface/transformers models/{llama,qwen2,qwen3,gemma3,mistral,smollm3}/configuration_*.py.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "model/model_config.h"  // ModelConfig

namespace nano {

// `where` names the file in messages.
ModelConfig parse_hf_config(const nlohmann::json& config, const std::string& where);

// read_hf_config, which also looks at the files beside config.json, is declared in checkpoint/weights.h.

}  // namespace nano
