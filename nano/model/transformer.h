// The decoder: ONE block for all families (Llama, Mistral, Qwen2, Qwen3, Gemma 3, SmolLM3), driven by ModelConfig. It
// sees no sequence, only a batch of rows; it does no arithmetic, only calls the backend.
// Sources: Vaswani et al. 2017; Touvron et al. 2023 (pre-norm, SwiGLU, RoPE); Gemma 3 report 2025 (sandwich norms).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "backend/backend.h"     // Backend, Batch, PackedLinear
#include "model/kv_cache.h"      // KvCache
#include "model/model_config.h"  // ModelConfig
#include "model/weights.h"       // Weights

namespace nano {

struct LayerWeights {
  const float* attn_norm = nullptr;       // [C]
  const PackedLinear* qkv = nullptr;      // [(H + 2·KVH)·D, C]
  const float* q_norm = nullptr;          // [D] or null
  const float* k_norm = nullptr;          // [D] or null
  const PackedLinear* o = nullptr;        // [C, H·D]
  const float* post_attn_norm = nullptr;  // [C] or null: the norm of the attention's output (Gemma 3)
  const float* ffn_norm = nullptr;        // [C]
  const PackedLinear* gate_up = nullptr;  // [2·F, C]
  const PackedLinear* down = nullptr;     // [C, F]
  const float* post_ffn_norm = nullptr;   // [C] or null
};

class Transformer {
 public:
  // Packs one matrix after the other for the backend and lets go of its bytes. progress(done, total) in bytes.
  Transformer(const Weights& weights, Backend& backend,
              const std::function<void(int64_t, int64_t)>& progress = {});

  static Limits limits(const ModelConfig& config, int32_t max_tokens, int32_t max_model_len);
  // Bytes of activations that reserve() allocates.
  static int64_t activation_bytes(const ModelConfig& config, int32_t max_tokens);
  void reserve(int32_t max_tokens);

  // All layers for the batch's rows; K and V of every row are written to the cache.
  void forward(const Batch& batch, const KvCache& kv);
  // Logits [R, V] of R ≤ kMaxLogitRows of those rows: final norm, then the LM head. Call after forward().
  Act logits(const int32_t* rows, int32_t R);

  const ModelConfig config;

 private:
  template <class Next>
  static void lay_out(const ModelConfig& config, int32_t max_tokens, Next next);
  void decoder_block(int32_t layer, const Batch& batch, const KvLayer& kv);
  const float* upload_vector(const std::vector<float>& v);

  Backend& backend_;
  std::vector<LayerWeights> layers_;
  const PackedLinear* embedding_ = nullptr;
  const PackedLinear* lm_head_ = nullptr;
  const float* final_norm_ = nullptr;
  const float* inv_freq_ = nullptr;        // [D/2]
  const float* inv_freq_local_ = nullptr;  // [D/2] for sliding layers, or null

  // Activations, for max_tokens rows.
  Act x_, h_, qkv_, attn_, ffn_, rows_, logits_, cos_sin_, cos_sin_local_;
};

}  // namespace nano
