// Which sizes a model has and which tensors follow from them, and what each is called: by nano, in GGUF, in Hugging
// Face files. Two tables; the loaders walk the lists they give and never spell these names themselves. Not here: any
// other key of a config (hf_config.cpp, weights_gguf.cpp).
#pragma once

#include <cstdint>
#include <span>
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

// A size, in the order in which sizes are read: defaults of later ones are made of earlier ones.
struct SizeName {
  int32_t ModelConfig::*field;
  const char* hf;
  const char* gguf;  // behind the architecture: "llama.block_count"
  int32_t most;      // what a hostile file may make us count
};
std::span<const SizeName> size_names();

// REQUIRES: a config that passed check_config.
std::vector<ModelTensor> model_tensors(const ModelConfig& config);

// Error when sizes, each in its range, do not fit together.
void check_config(const ModelConfig& config, const std::string& where);

// Error that lists the architectures nano knows, unless this is one of them.
void check_architecture(const std::string& architecture, const std::string& where);

}  // namespace nano
