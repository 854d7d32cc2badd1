// What a decoder looks like: one struct for all families. The one decoder block in transformer.cpp is driven by
// these fields and nothing else; every quirk of a file format is resolved before, in checkpoint/. Which ids begin and
// end a text is not here but in the tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"  // DType

namespace nano {

enum class Activation : uint8_t { silu, gelu_tanh };

// RoPE of one kind of layer: angle of pair i at position p is p · inv_freq[i]; half-split: (i, i + D/2) rotate.
struct RopeConfig {
  double theta = 10000.0;
  double factor = 1.0;  // linear: frequencies divided by it
  bool llama3 = false;  // scaling by wavelength (Llama 3.1, "llama3")
  double low_freq_factor = 1.0, high_freq_factor = 4.0;
  int32_t original_max_position = 8192;
  std::vector<float> freq_divisors;  // [D/2] from GGUF rope_freqs.weight; overrides llama3
};
// inv_freq [D/2], in float32 steps as transformers computes it.
std::vector<float> rope_inv_freq(const RopeConfig& rope, int32_t head_dim);

struct ModelConfig {
  std::string architecture;       // "llama", "mistral", "qwen2", "qwen3", "gemma3", "smollm3"
  int32_t L = 0, C = 0, F = 0;    // layers, hidden, ffn
  int32_t H = 0, KVH = 0, D = 0;  // heads, kv heads, head dim
  int32_t V = 0;                  // rows of the embedding (may be padded past the tokenizer)
  int32_t max_position = 2048;    // as derived for max_model_len
  float norm_eps = 1e-6f;
  float attention_scale = 0;  // 1/√D or gemma's query_pre_attn_scalar^-½
  float embedding_scale = 1;  // gemma: √C
  Activation activation = Activation::silu;
  bool tied = false;  // LM head = embedding
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;         // qwen3, gemma3: RMSNorm on each head of q and k before RoPE
  bool sandwich_norms = false;  // gemma3: norms on the outputs of attention and FFN too
  int32_t sliding_window = 0;   // tokens, the current one included; 0 = none
  std::vector<bool> sliding;    // [L]: which layers use the window and rope_local
  std::vector<bool> no_rope;    // [L] or empty: which layers leave q and k as they are (SmolLM3)
  RopeConfig rope, rope_local;
  DType dtype = DType::f32;  // of the checkpoint's dense weights
};

}  // namespace nano
