#include "checkpoint/tensor_names.h"

#include <fmt/format.h>

#include "base/error.h"          // Error
#include "checkpoint/foreign.h"  // shown_name

namespace nano {

namespace {

// Extents of a tensor in terms of the config; head = D, none = a vector has no columns.
enum class Extent : uint8_t { none, hidden, ffn, queries, keys, head };
using enum Extent;

using Switch = bool ModelConfig::*;
constexpr Switch kAlways = nullptr, kNever = nullptr;
constexpr Switch kQkvBias = &ModelConfig::qkv_bias, kMlpBias = &ModelConfig::mlp_bias;
constexpr Switch kQkNorm = &ModelConfig::qk_norm, kSandwich = &ModelConfig::sandwich_norms;

struct LayerRow {
  const char* name;
  const char* gguf;
  const char* hf;
  Extent rows, columns;
  Switch bias = kNever, when = kAlways;
  bool rotary = false;
  const char* hf_sandwich = nullptr;  // with sandwich norms Hugging Face calls it otherwise
};

constexpr LayerRow kLayer[] = {
    {"attn_norm", "attn_norm", "input_layernorm", hidden, none},
    {"q", "attn_q", "self_attn.q_proj", queries, hidden, kQkvBias, kAlways, /*rotary=*/true},
    {"k", "attn_k", "self_attn.k_proj", keys, hidden, kQkvBias, kAlways, /*rotary=*/true},
    {"v", "attn_v", "self_attn.v_proj", keys, hidden, kQkvBias},
    {"o", "attn_output", "self_attn.o_proj", hidden, queries, &ModelConfig::o_bias},
    {"q_norm", "attn_q_norm", "self_attn.q_norm", head, none, kNever, kQkNorm},
    {"k_norm", "attn_k_norm", "self_attn.k_norm", head, none, kNever, kQkNorm},
    {"post_attn_norm", "post_attention_norm", "post_attention_layernorm", hidden, none, kNever, kSandwich},
    {"ffn_norm", "ffn_norm", "post_attention_layernorm", hidden, none, kNever, kAlways, false,
     "pre_feedforward_layernorm"},
    {"gate", "ffn_gate", "mlp.gate_proj", ffn, hidden, kMlpBias},
    {"up", "ffn_up", "mlp.up_proj", ffn, hidden, kMlpBias},
    {"down", "ffn_down", "mlp.down_proj", hidden, ffn, kMlpBias},
    {"post_ffn_norm", "post_ffw_norm", "post_feedforward_layernorm", hidden, none, kNever, kSandwich},
};

constexpr SizeName kSizes[] = {
    {&ModelConfig::L, "num_hidden_layers", "block_count", 10000},
    {&ModelConfig::C, "hidden_size", "embedding_length", 1 << 24},
    {&ModelConfig::F, "intermediate_size", "feed_forward_length", 1 << 26},
    {&ModelConfig::H, "num_attention_heads", "attention.head_count", 1 << 20},
    {&ModelConfig::KVH, "num_key_value_heads", "attention.head_count_kv", 1 << 20},
    {&ModelConfig::D, "head_dim", "attention.key_length", 1 << 16},
    {&ModelConfig::V, "vocab_size", "vocab_size", 1 << 30},
    {&ModelConfig::max_position, "max_position_embeddings", "context_length", INT32_MAX},
};

int64_t extent(const ModelConfig& c, Extent e) {
  switch (e) {
    case none: return 0;
    case hidden: return c.C;
    case ffn: return c.F;
    case queries: return int64_t(c.H) * c.D;
    case keys: return int64_t(c.KVH) * c.D;
    case head: return c.D;
  }
  return 0;
}

}  // namespace

std::vector<ModelTensor> model_tensors(const ModelConfig& c) {
  std::vector<ModelTensor> out;
  out.push_back({"embed", "token_embd", "model.embed_tokens", c.V, c.C, false, false});
  for (int32_t i = 0; i < c.L; ++i) {
    const std::string layer = std::to_string(i);
    for (const LayerRow& row : kLayer) {
      if (row.when && !(c.*row.when)) continue;
      const char* hf = c.sandwich_norms && row.hf_sandwich ? row.hf_sandwich : row.hf;
      out.push_back({layer + "." + row.name, "blk." + layer + "." + row.gguf,
                     "model.layers." + layer + "." + hf, extent(c, row.rows), extent(c, row.columns),
                     row.bias && c.*row.bias, row.rotary});
    }
  }
  out.push_back({"final_norm", "output_norm", "model.norm", c.C, 0, false, false});
  if (!c.tied) out.push_back({"lm_head", "output", "lm_head", c.V, c.C, false, false});
  return out;
}

std::span<const SizeName> size_names() { return kSizes; }

void check_config(const ModelConfig& c, const std::string& where) {
  if (c.H % c.KVH != 0)
    throw Error(fmt::format("{} heads are not a multiple of {} key/value heads", c.H, c.KVH), where);
  if (c.D % 2 != 0) throw Error(fmt::format("head dimension {} is odd: RoPE needs pairs", c.D), where);
}

void check_architecture(const std::string& architecture, const std::string& where) {
  for (const char* known : {"llama", "mistral", "qwen2", "qwen3", "gemma3", "smollm3"})
    if (architecture == known) return;
  throw Error("unsupported architecture " + shown_name(architecture), where,
              "known: llama, mistral, qwen2, qwen3, gemma3, smollm3");
}

}  // namespace nano
