// A checkpoint, opened: its ModelConfig and its matrices under one set of names, whatever the file called them. Not
// its tokenizer (text/tokenizer.h), and nothing packed for computing (a backend's pack()).
// All quirks are settled here, once: RoPE row order (GGUF llama), 1 + w norms (Gemma in HF form), tied heads,
// nested names, fused q/k/v. Nothing is copied that a view can show.
//
// Names: embed, final_norm, lm_head (absent when tied), and per layer i: "i.attn_norm", "i.q", "i.k", "i.v",
// "i.o", "i.q_norm", "i.k_norm", "i.post_attn_norm", "i.ffn_norm", "i.gate", "i.up", "i.down",
// "i.post_ffn_norm".
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/model_config.h"  // ModelConfig
#include "quant/linear.h"        // QuantLinear

namespace nano {

class Weights {
 public:
  virtual ~Weights() = default;
  ModelConfig config;
  std::string format;                       // "GGUF", "safetensors", "dummy"
  std::string quantization;                 // "" = none, "gguf", later "gptq", "awq", …
  std::vector<std::string> unused_tensors;  // in the file but not in the model

  // The matrix of that name, bias included. REQUIRES: has(name). What the config asks for is there and has the right
  // shape: opening refuses everything else, in the file's own names.
  const QuantLinear& linear(std::string_view name) const;
  bool has(std::string_view name) const;
  // A vector (norm weight) as float32; for Gemma in HF form already 1 + w.
  std::vector<float> vector(std::string_view name) const;
  const std::map<std::string, QuantLinear, std::less<>>& linears() const { return linears_; }
  // The bytes of this matrix have been repacked: its file pages may go.
  virtual void drop_pages(const QuantLinear& w) const = 0;

 protected:
  friend void expand_to_float32(Weights& weights);
  std::map<std::string, QuantLinear, std::less<>> linears_;
  std::map<std::string, std::vector<float>, std::less<>> vectors_;
};

// The three sources of weights; open_weights chooses.
std::unique_ptr<Weights> open_gguf(const std::string& path);
std::unique_ptr<Weights> open_hf(const std::string& directory);
std::unique_ptr<Weights> open_dummy(const std::string& path, uint64_t seed);

// `path`: a .gguf file (told by its first bytes, not its name), a Hugging Face directory, or with `dummy` also a
// config.json alone: seeded random weights. A tied config wins over an output matrix in the file (Hugging Face), which
// is then listed as unused unless it equals the embedding. Error: unknown architecture lists the known ones; a
// quantised Hugging Face checkpoint names its method.
std::unique_ptr<Weights> open_weights(const std::string& path, bool dummy, uint64_t seed);
// Only the config: for `info --config`.
ModelConfig read_hf_config(const std::string& config_json_path);

// --no-quantized-linear: the same matrices expanded to float32 (each its own copy).
void expand_to_float32(Weights& weights);

}  // namespace nano
