// A checkpoint, opened: a model's Weights (model/weights.h), filled from a file. Not its tokenizer
// (text/tokenizer.h). All quirks are settled here, once: RoPE row order (GGUF llama), 1 + w norms (Gemma in HF
// form), tied heads, nested names, fused q/k/v. Nothing is copied that a view can show.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "model/weights.h"  // Weights, ModelConfig

namespace nano {

// The three sources of weights; open_weights chooses.
std::unique_ptr<Weights> open_gguf(const std::string& path);
std::unique_ptr<Weights> open_hf(const std::string& directory);
std::unique_ptr<Weights> open_dummy(const std::string& path, uint64_t seed);

// `path`: a .gguf file (told by its first bytes, not its name), a Hugging Face directory, or with `dummy` also a
// config.json alone: seeded random weights. A tied config wins over an output matrix in the file (Hugging Face),
// which is then listed as unused unless it equals the embedding. Error: unknown architecture lists the known ones; a
// quantised Hugging Face checkpoint names its method.
std::unique_ptr<Weights> open_weights(const std::string& path, bool dummy, uint64_t seed);
// Only the config: for `info --config`.
ModelConfig read_hf_config(const std::string& config_json_path);

}  // namespace nano
