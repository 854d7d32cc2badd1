#include "model/transformer.h"

#include <algorithm>
#include <string>

#include "base/error.h"  // NANO_CHECK

namespace nano {

namespace {

int64_t qkv_width(const ModelConfig& c) { return int64_t(c.H + 2 * c.KVH) * c.D; }

}  // namespace

Transformer::Transformer(const Weights& weights, Backend& backend,
                         const std::function<void(int64_t, int64_t)>& progress)
    : config(weights.config), backend_(backend) {
  int64_t total = 0, done = 0;
  for (const auto& [name, w] : weights.linears())
    if (!weights.only_looked_up(name)) total += w.file_bytes();
  auto pack = [&](std::initializer_list<std::string> names) {
    std::vector<QuantLinear> matrices;
    for (const std::string& name : names) matrices.push_back(weights.linear(name));
    std::vector<const QuantLinear*> parts;
    for (const QuantLinear& w : matrices) parts.push_back(&w);
    const PackedLinear* packed = backend_.pack(parts);
    for (const QuantLinear& w : matrices) {
      weights.drop_pages(w);
      done += w.file_bytes();
    }
    if (progress) progress(done, total);
    return packed;
  };
  auto vector = [&](const std::string& name) { return upload_vector(weights.vector(name)); };

  for (int32_t i = 0; i < config.L; ++i) {
    const std::string prefix = std::to_string(i) + ".";
    LayerWeights layer;
    layer.attn_norm = vector(prefix + "attn_norm");
    layer.qkv = pack({prefix + "q", prefix + "k", prefix + "v"});
    if (config.qk_norm) layer.q_norm = vector(prefix + "q_norm"), layer.k_norm = vector(prefix + "k_norm");
    layer.o = pack({prefix + "o"});
    layer.ffn_norm = vector(prefix + "ffn_norm");
    layer.gate_up = pack({prefix + "gate", prefix + "up"});
    layer.down = pack({prefix + "down"});
    if (config.sandwich_norms) {
      layer.post_attn_norm = vector(prefix + "post_attn_norm");
      layer.post_ffn_norm = vector(prefix + "post_ffn_norm");
    }
    layers_.push_back(layer);
  }
  final_norm_ = vector("final_norm");
  lm_head_ = pack({config.tied ? "embed" : "lm_head"});
  embedding_ = backend_.pack_embedding(weights.embedding());
  inv_freq_ = upload_vector(rope_inv_freq(config.rope, config.D));
  if (config.sliding_window > 0) inv_freq_local_ = upload_vector(rope_inv_freq(config.rope_local, config.D));
}

const float* Transformer::upload_vector(const std::vector<float>& v) {
  const int64_t bytes = int64_t(v.size() * sizeof(float));
  void* p = backend_.allocate(bytes, Memory::weights);
  backend_.upload(p, v.data(), bytes);
  return static_cast<const float*>(p);
}

Limits Transformer::limits(const ModelConfig& c, int32_t max_tokens, int32_t max_model_len) {
  Limits limits;
  limits.max_tokens = max_tokens;
  limits.max_model_len = max_model_len;
  limits.H = c.H, limits.KVH = c.KVH, limits.D = c.D;
  limits.max_K = std::max({int64_t(c.C), int64_t(c.F), int64_t(c.H) * c.D});
  limits.max_N = std::max({qkv_width(c), int64_t(2) * c.F, int64_t(c.C), int64_t(c.V)});
  return limits;
}

// The order of the activations in memory, once for who counts and once for who allocates them.
template <class Next>
void Transformer::lay_out(const ModelConfig& c, int32_t max_tokens, Next next) {
  next(&Transformer::x_, "x", max_tokens, c.C);
  next(&Transformer::h_, "h", max_tokens, c.C);
  next(&Transformer::qkv_, "qkv", max_tokens, qkv_width(c));
  next(&Transformer::attn_, "attn", max_tokens, int64_t(c.H) * c.D);
  next(&Transformer::ffn_, "ffn", max_tokens, c.F);
  next(&Transformer::rows_, "rows", kMaxLogitRows, c.C);
  next(&Transformer::logits_, "logits", kMaxLogitRows, c.V);
  next(&Transformer::cos_sin_, "cos_sin", max_tokens, c.D);
  if (c.sliding_window > 0) next(&Transformer::cos_sin_local_, "cos_sin_local", max_tokens, c.D);
}

int64_t Transformer::activation_bytes(const ModelConfig& c, int32_t max_tokens) {
  int64_t count = 0;
  lay_out(c, max_tokens,
          [&](Act Transformer::*, const char*, int64_t rows, int64_t cols) { count += rows * cols; });
  return count * int64_t(sizeof(float));
}

void Transformer::reserve(int32_t max_tokens) {
  lay_out(config, max_tokens, [&](Act Transformer::*act, const char* name, int64_t rows, int64_t cols) {
    void* data = backend_.allocate(rows * cols * int64_t(sizeof(float)), Memory::scratch);
    this->*act = {data, rows, cols, name};
  });
}

// x += attention(norm(x)); x += ffn(norm(x)). With sandwich norms each branch is normed again before it is added.
void Transformer::decoder_block(int32_t i, const Batch& batch, const KvLayer& kv) {
  const LayerWeights& w = layers_[size_t(i)];
  const ModelConfig& c = config;
  const bool sliding = c.sliding_window > 0 && c.sliding[size_t(i)];
  const float* angles = (sliding ? cos_sin_local_ : cos_sin_).f32();
  if (!c.no_rope.empty() && c.no_rope[size_t(i)]) angles = nullptr;
  const AttentionShape shape{c.H, c.KVH, c.D, c.attention_scale, sliding ? c.sliding_window : 0};
  const int32_t T = batch.T;

  backend_.rmsnorm(h_, x_, w.attn_norm, c.norm_eps, T, c.C, /*add=*/false);
  backend_.linear(qkv_, h_, T, *w.qkv, Epilogue::store);
  backend_.rope_kv_write(qkv_, angles, w.q_norm, w.k_norm, c.norm_eps, kv, batch.slot_mapping, T, shape);
  backend_.attention(attn_, qkv_, kv, batch, shape);
  if (w.post_attn_norm == nullptr) {
    backend_.linear(x_, attn_, T, *w.o, Epilogue::add);
  } else {
    backend_.linear(h_, attn_, T, *w.o, Epilogue::store);
    backend_.rmsnorm(x_, h_, w.post_attn_norm, c.norm_eps, T, c.C, /*add=*/true);
  }

  backend_.rmsnorm(h_, x_, w.ffn_norm, c.norm_eps, T, c.C, /*add=*/false);
  const bool silu = c.activation == Activation::silu;
  backend_.linear(ffn_, h_, T, *w.gate_up, silu ? Epilogue::silu_mul : Epilogue::gelu_mul);
  if (w.post_ffn_norm == nullptr) {
    backend_.linear(x_, ffn_, T, *w.down, Epilogue::add);
  } else {
    backend_.linear(h_, ffn_, T, *w.down, Epilogue::store);
    backend_.rmsnorm(x_, h_, w.post_ffn_norm, c.norm_eps, T, c.C, /*add=*/true);
  }
}

void Transformer::forward(const Batch& batch, const KvCache& kv) {
  for (Act* act : {&x_, &h_, &qkv_, &attn_, &ffn_}) act->rows = batch.T;
  backend_.embed(x_, batch.token_ids, batch.T, *embedding_, config.embedding_scale);
  backend_.rope_table(cos_sin_.f32(), batch.positions, inv_freq_, batch.T, config.D);
  if (inv_freq_local_)
    backend_.rope_table(cos_sin_local_.f32(), batch.positions, inv_freq_local_, batch.T, config.D);
  for (int32_t i = 0; i < config.L; ++i) decoder_block(i, batch, kv.layers[size_t(i)]);
}

Act Transformer::logits(const int32_t* rows, int32_t R) {
  NANO_CHECK(R <= kMaxLogitRows, "too many logit rows in one slice");
  rows_.rows = logits_.rows = R;
  backend_.gather_rows(rows_, x_, rows, R, config.C);
  backend_.rmsnorm(rows_, rows_, final_norm_, config.norm_eps, R, config.C, /*add=*/false);
  backend_.linear(logits_, rows_, R, *lm_head_, Epilogue::store);
  return logits_;
}

}  // namespace nano
