#include "checkpoint/tensor_names.h"

#include <cmath>

#include "base/error.h"          // Error
#include "checkpoint/foreign.h"  // shown_name

namespace nano {

namespace {

// Extents of a tensor in terms of the config.
enum class Extent : uint8_t { none, hidden, ffn, queries, keys, head };

enum class Bias : uint8_t { never, qkv, o, mlp };
enum class When : uint8_t { always, qk_norm, sandwich };

struct LayerRow {
  const char* name;
  const char* gguf;
  const char* hf;
  const char* hf_sandwich;  // Gemma 3 calls the norms otherwise; nullptr = as hf
  Extent rows, columns;
  Bias bias;
  When when;
  bool rotary;
};

constexpr LayerRow kLayer[] = {
    // name, gguf, hf, hf_sandwich, rows, columns, bias, when, rotary
    {"attn_norm", "attn_norm", "input_layernorm", nullptr, Extent::hidden, Extent::none, Bias::never,
     When::always, false},
    {"q", "attn_q", "self_attn.q_proj", nullptr, Extent::queries, Extent::hidden, Bias::qkv, When::always,
     true},
    {"k", "attn_k", "self_attn.k_proj", nullptr, Extent::keys, Extent::hidden, Bias::qkv, When::always, true},
    {"v", "attn_v", "self_attn.v_proj", nullptr, Extent::keys, Extent::hidden, Bias::qkv, When::always,
     false},
    {"o", "attn_output", "self_attn.o_proj", nullptr, Extent::hidden, Extent::queries, Bias::o, When::always,
     false},
    {"q_norm", "attn_q_norm", "self_attn.q_norm", nullptr, Extent::head, Extent::none, Bias::never,
     When::qk_norm, false},
    {"k_norm", "attn_k_norm", "self_attn.k_norm", nullptr, Extent::head, Extent::none, Bias::never,
     When::qk_norm, false},
    {"post_attn_norm", "post_attention_norm", "post_attention_layernorm", nullptr, Extent::hidden,
     Extent::none, Bias::never, When::sandwich, false},
    {"ffn_norm", "ffn_norm", "post_attention_layernorm", "pre_feedforward_layernorm", Extent::hidden,
     Extent::none, Bias::never, When::always, false},
    {"gate", "ffn_gate", "mlp.gate_proj", nullptr, Extent::ffn, Extent::hidden, Bias::mlp, When::always,
     false},
    {"up", "ffn_up", "mlp.up_proj", nullptr, Extent::ffn, Extent::hidden, Bias::mlp, When::always, false},
    {"down", "ffn_down", "mlp.down_proj", nullptr, Extent::hidden, Extent::ffn, Bias::mlp, When::always,
     false},
    {"post_ffn_norm", "post_ffw_norm", "post_feedforward_layernorm", nullptr, Extent::hidden, Extent::none,
     Bias::never, When::sandwich, false},
};

int64_t extent(const ModelConfig& c, Extent e) {
  switch (e) {
    case Extent::none: return 0;
    case Extent::hidden: return c.C;
    case Extent::ffn: return c.F;
    case Extent::queries: return int64_t(c.H) * c.D;
    case Extent::keys: return int64_t(c.KVH) * c.D;
    case Extent::head: return c.D;
  }
  return 0;
}

bool has_bias(const ModelConfig& c, Bias bias) {
  switch (bias) {
    case Bias::never: return false;
    case Bias::qkv: return c.qkv_bias;
    case Bias::o: return c.o_bias;
    case Bias::mlp: return c.mlp_bias;
  }
  return false;
}

bool present(const ModelConfig& c, When when) {
  return when == When::always || (when == When::qk_norm && c.qk_norm) ||
         (when == When::sandwich && c.sandwich_norms);
}

}  // namespace

std::vector<ModelTensor> model_tensors(const ModelConfig& c) {
  std::vector<ModelTensor> out;
  out.push_back({"embed", "token_embd", "model.embed_tokens", c.V, c.C, false, false});
  for (int32_t i = 0; i < c.L; ++i) {
    const std::string layer = std::to_string(i);
    for (const LayerRow& row : kLayer) {
      if (!present(c, row.when)) continue;
      const char* hf = c.sandwich_norms && row.hf_sandwich ? row.hf_sandwich : row.hf;
      out.push_back({layer + "." + row.name, "blk." + layer + "." + row.gguf,
                     "model.layers." + layer + "." + hf, extent(c, row.rows), extent(c, row.columns),
                     has_bias(c, row.bias), row.rotary});
    }
  }
  out.push_back({"final_norm", "output_norm", "model.norm", c.C, 0, false, false});
  if (!c.tied) out.push_back({"lm_head", "output", "lm_head", c.V, c.C, false, false});
  return out;
}

void check_config(const ModelConfig& c, const std::string& where) {
  const struct {
    const char* what;
    int64_t value, limit;
  } fields[] = {{"number of layers", c.L, kMaxLayers},
                {"hidden size", c.C, 1 << 24},
                {"feed-forward size", c.F, 1 << 26},
                {"number of heads", c.H, 1 << 20},
                {"number of key/value heads", c.KVH, 1 << 20},
                {"head dimension", c.D, 1 << 16},
                {"vocabulary size", c.V, 1 << 30},
                {"maximum position", c.max_position, INT32_MAX}};
  for (const auto& f : fields)
    if (f.value < 1 || f.value > f.limit)
      throw Error(
          std::string(f.what) + " is " + std::to_string(f.value) + ", outside 1 … " + std::to_string(f.limit),
          where);
  if (c.H % c.KVH != 0)
    throw Error(
        std::to_string(c.H) + " heads are not a multiple of " + std::to_string(c.KVH) + " key/value heads",
        where);
  if (c.D % 2 != 0) throw Error("head dimension " + std::to_string(c.D) + " is odd: RoPE needs pairs", where);
  if (!(c.norm_eps > 0)) throw Error("the epsilon of RMSNorm must be positive", where);
  if (!(c.attention_scale > 0) || !std::isfinite(c.attention_scale)) throw Error("the attention scale must be positive", where);
  for (const RopeConfig* r : {&c.rope, &c.rope_local})
    if (!(r->theta > 0) || !(r->factor > 0)) throw Error("RoPE base and factor must be positive", where);
}

void check_architecture(const std::string& architecture, const std::string& where) {
  for (const char* known : {"llama", "qwen2", "qwen3", "gemma3"})
    if (architecture == known) return;
  throw Error("unsupported architecture " + shown_name(architecture), where,
              "known: llama, qwen2, qwen3, gemma3");
}

}  // namespace nano
