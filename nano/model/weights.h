// What a model consists of: its config, its vectors and its matrices under one set of names, whatever a file calls
// them. checkpoint/ fills it (checkpoint/weights.h) and settles all quirks of files there; the model asks for one
// matrix at a time. Not here: files, the tokenizer, and anything packed for computing (a backend's pack()).
//
// Names: embed, final_norm, lm_head (absent when tied), and per layer i: "i.attn_norm", "i.q", "i.k", "i.v",
// "i.o", "i.q_norm", "i.k_norm", "i.post_attn_norm", "i.ffn_norm", "i.gate", "i.up", "i.down",
// "i.post_ffn_norm".
#pragma once

#include <map>
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

  // REQUIRES of both: has(name). What the config asks for is there and has the right shape: opening refuses
  // everything else, in the file's own names.
  bool has(std::string_view name) const;
  // A vector (norm weight) as float32; for Gemma in HF form already 1 + w.
  const std::vector<float>& vector(std::string_view name) const;
  // A matrix with its bias, ready to be read. Bytes that are in no file (random or expanded weights) are made by this
  // call and live as long as a copy of what it returns: who goes on reading them keeps a copy.
  QuantLinear linear(std::string_view name) const;

  // All matrices as the ledger sees them: shapes and formats. `data` is null where linear() makes the bytes.
  const std::map<std::string, QuantLinear, std::less<>>& linears() const { return linears_; }
  // An embedding that is not the head as well is not multiplied with: it is neither packed nor expanded.
  bool only_looked_up(std::string_view name) const { return name == "embed" && !config.tied; }
  // The bytes of this matrix have been repacked: its file pages may go.
  virtual void drop_pages(const QuantLinear& w) const = 0;
  // --no-quantized-linear: from now on every matrix that is multiplied with comes expanded to float32.
  void expand_to_float32();
  // The table that token ids look up: never expanded, so as small as the file has it.
  QuantLinear embedding() const { return as_stored("embed"); }
  // What it takes beside the packed matrices: nothing where it stays in its file.
  int64_t embedding_bytes() const;

 protected:
  // Makes the bytes of a matrix that is in no file.
  virtual void generate(QuantLinear&, std::string_view /*name*/) const {}
  std::map<std::string, QuantLinear, std::less<>> linears_;
  std::map<std::string, std::vector<float>, std::less<>> vectors_;

 private:
  const QuantLinear& entry(std::string_view name) const;
  QuantLinear as_stored(std::string_view name) const;
  std::map<std::string, QuantLinear, std::less<>> stored_;  // what expand_to_float32() replaced in linears_
};

}  // namespace nano
