// Which tensors a model of a given config has, and what each is called: by nano, in GGUF, in Hugging Face files.
// One table; the loaders walk the list it gives and never spell a name themselves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model_config.h"  // ModelConfig

namespace nano {

// One matrix or norm vector of a model. The names in files lack the ending ".weight" (or ".bias").
struct ModelTensor {
  std::string name;      // "embed", "3.q", "3.attn_norm"
  std::string gguf, hf;  // "blk.3.attn_q", "model.layers.3.self_attn.q_proj"
  int64_t N = 0, K = 0;  // matrix [N, K]; K = 0: a vector of N
  bool bias = false;     // a bias [N] belongs to it
  bool rotary = false;   // q or k: its rows may be stored in another order (GGUF llama)
};

constexpr int32_t kMaxLayers = 10000;  // what a hostile file may make us count

// REQUIRES: a config that passed check_config.
std::vector<ModelTensor> model_tensors(const ModelConfig& config);

// Error, naming the field, when sizes are out of range or do not fit together.
void check_config(const ModelConfig& config, const std::string& where);

// Error that lists the architectures nano knows, unless this is one of them.
void check_architecture(const std::string& architecture, const std::string& where);

}  // namespace nano
