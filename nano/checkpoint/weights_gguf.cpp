// Weights from a GGUF file: its keys as a ModelConfig, its tensors as views.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/error.h"               // Error
#include "checkpoint/foreign.h"       // shown_name, shape_text
#include "checkpoint/gguf.h"          // GgufFile
#include "checkpoint/tensor_names.h"  // model_tensors, check_config
#include "checkpoint/weights.h"       // Weights

namespace nano {

namespace {

// A non-negative key as int32; Error names it when it does not fit.
int32_t small_int(const GgufFile& file, const std::string& key, int64_t value) {
  if (value < 0 || value > INT32_MAX)
    throw Error("key " + shown_name(key) + " is " + std::to_string(value) + ", out of range", file.path());
  return int32_t(value);
}
int32_t need_int(const GgufFile& file, const std::string& key) {
  return small_int(file, key, file.get_int(key));
}

// head_count may be given per layer; one number for all is what nano supports.
int32_t uniform_int(const GgufFile& file, const std::string& key) {
  const std::vector<int64_t> values = file.get_ints(key);
  if (values.empty() || std::any_of(values.begin(), values.end(), [&](int64_t v) { return v != values[0]; }))
    throw Error("key " + shown_name(key) + " differs from layer to layer, which is not supported",
                file.path());
  return small_int(file, key, values[0]);
}

void read_rope(const GgufFile& file, const std::string& prefix, ModelConfig& c) {
  const int64_t rotated = file.get_int(prefix + "rope.dimension_count", c.D);
  if (rotated != c.D)
    throw Error("key " + shown_name(prefix + "rope.dimension_count") + " is " + std::to_string(rotated) +
                    " with head dimension " + std::to_string(c.D) + ": partial rotation is not supported",
                file.path());
  c.rope.theta = file.get_float(prefix + "rope.freq_base", 10000.0);
  const std::string type = file.get_string(prefix + "rope.scaling.type", "linear");
  if (type != "none" && type != "linear")
    throw Error("RoPE scaling " + shown_name(type) + " is not supported", file.path(), "none and linear are");
  const double legacy = file.get_float(prefix + "rope.scale_linear", 1.0);
  const double factor = file.get_float(prefix + "rope.scaling.factor", legacy);
  if (type == "linear" && factor != 0) c.rope.factor = factor;  // 0 is how some files write "none"
  const GgufTensor* divisors = file.find("rope_freqs.weight");
  if (!divisors) return;
  if (divisors->type != GgmlType::f32 || divisors->shape != std::vector<int64_t>{c.D / 2})
    throw Error("tensor 'rope_freqs.weight' is not " + std::to_string(c.D / 2) + " float32 values",
                file.path());
  for (int64_t i = 0; i < c.D / 2; ++i) {
    const float divisor = load_f32(divisors->data, DType::f32, i);
    if (!(divisor > 0))
      throw Error("tensor 'rope_freqs.weight' holds a value that is not positive", file.path());
    c.rope.freq_divisors.push_back(divisor);
  }
}

// Layer i is sliding iff i mod pattern < pattern − 1; a bool array says it layer by layer.
void read_sliding(const GgufFile& file, const std::string& prefix, ModelConfig& c) {
  const std::string key = prefix + "attention.sliding_window_pattern";
  c.sliding_window = need_int(file, prefix + "attention.sliding_window");
  if (file.is_array(key)) {
    c.sliding = file.get_bools(key);
    if (int64_t(c.sliding.size()) != c.L)
      throw Error("key " + shown_name(key) + " has " + std::to_string(c.sliding.size()) + " entries for " +
                      std::to_string(c.L) + " layers",
                  file.path());
    return;
  }
  const int64_t pattern = file.get_int(key, 6);
  if (pattern < 0) throw Error("key " + shown_name(key) + " is negative", file.path());
  c.sliding.resize(size_t(c.L));
  for (int64_t i = 0; i < c.L; ++i) c.sliding[size_t(i)] = pattern == 0 || i % pattern < pattern - 1;
}

void read_gemma3(const GgufFile& file, const std::string& prefix, ModelConfig& c) {
  c.activation = Activation::gelu_tanh;
  c.qk_norm = c.sandwich_norms = true;
  c.embedding_scale = std::sqrt(float(c.C));
  c.rope_local.theta = file.get_float(prefix + "rope.freq_base_swa", 10000.0);
  if (c.L == 62) c.attention_scale = 1.0f / std::sqrt(float(c.C) / float(c.H));  // only the 27B model
  read_sliding(file, prefix, c);
}

bool is_end_text(std::string_view text) {
  for (const char* end : {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
                          "<|end_of_text|>", "<|eom_id|>", "<EOT>", "</s>", "<eos>"})
    if (text == end) return true;
  return false;
}

// End of generation: the ids that the file names, and control tokens whose text says so (as llama.cpp has it: files
// often name only one of two).
void read_special_ids(const GgufFile& file, ModelConfig& c) {
  const std::string prefix = "tokenizer.ggml.";
  if (file.has(prefix + "bos_token_id")) c.bos_id = need_int(file, prefix + "bos_token_id");
  for (const char* name : {"eos_token_id", "eot_token_id", "eom_token_id"})
    if (file.has(prefix + name)) c.eos_ids.push_back(need_int(file, prefix + name));
  if (file.has(prefix + "tokens") && file.has(prefix + "token_type")) {
    constexpr int64_t kControl = 3;
    const std::vector<std::string> tokens = file.get_strings(prefix + "tokens");
    const std::vector<int64_t> types = file.get_ints(prefix + "token_type");
    for (size_t i = 0; i < std::min(tokens.size(), types.size()); ++i)
      if (types[i] == kControl && is_end_text(tokens[i])) c.eos_ids.push_back(int32_t(i));
  }
  std::sort(c.eos_ids.begin(), c.eos_ids.end());
  c.eos_ids.erase(std::unique(c.eos_ids.begin(), c.eos_ids.end()), c.eos_ids.end());
}

ModelConfig read_config(const GgufFile& file) {
  ModelConfig c;
  c.architecture = file.get_string("general.architecture");
  check_architecture(c.architecture, file.path());
  const std::string prefix = c.architecture + ".";
  c.L = need_int(file, prefix + "block_count");
  c.C = need_int(file, prefix + "embedding_length");
  c.F = uniform_int(file, prefix + "feed_forward_length");
  c.H = uniform_int(file, prefix + "attention.head_count");
  c.KVH = file.has(prefix + "attention.head_count_kv") ? uniform_int(file, prefix + "attention.head_count_kv")
                                                       : c.H;
  if (c.H < 1) throw Error("key " + shown_name(prefix + "attention.head_count") + " is 0", file.path());
  c.D = small_int(file, prefix + "attention.key_length",
                  file.get_int(prefix + "attention.key_length", c.C / c.H));
  const int64_t value_length = file.get_int(prefix + "attention.value_length", c.D);
  if (value_length != c.D)
    throw Error("keys of length " + std::to_string(c.D) + " and values of length " +
                    std::to_string(value_length) + " differ, which is not supported",
                file.path());
  c.max_position = need_int(file, prefix + "context_length");
  c.max_position_scaled = true;
  c.norm_eps = float(file.get_float(prefix + "attention.layer_norm_rms_epsilon"));
  c.attention_scale = 1.0f / std::sqrt(float(c.D));
  read_rope(file, prefix, c);
  if (c.architecture == "qwen3") c.qk_norm = true;
  if (c.architecture == "gemma3") read_gemma3(file, prefix, c);
  for (const char* softcap : {"attn_logit_softcapping", "final_logit_softcapping"})
    if (file.get_float(prefix + softcap, 0.0) != 0)
      throw Error("key " + shown_name(prefix + softcap) + " is set, which is not supported", file.path());
  read_special_ids(file, c);
  return c;
}

// What only the tensors tell: vocabulary size, tied output, biases, element type.
void complete_config(const GgufFile& file, ModelConfig& c) {
  if (file.tensors().empty()) throw Error("the file holds a vocabulary but no weights", file.path());
  const GgufTensor* embed = file.find("token_embd.weight");
  if (!embed) throw Error("tensor 'token_embd.weight' is missing", file.path());
  if (embed->shape.size() != 2) throw Error("tensor 'token_embd.weight' is not a matrix", file.path());
  c.V = small_int(file, "rows of token_embd.weight", embed->shape[0]);
  c.tied = !file.find("output.weight");
  c.qkv_bias = file.find("blk.0.attn_q.bias") != nullptr;
  c.o_bias = file.find("blk.0.attn_output.bias") != nullptr;
  c.mlp_bias = file.find("blk.0.ffn_down.bias") != nullptr;
  c.dtype = embed->type == GgmlType::f32    ? DType::f32
            : embed->type == GgmlType::bf16 ? DType::bf16
                                            : DType::f16;
}

Source source_of(GgmlType type) {
  switch (type) {
    case GgmlType::q4_0: return Source::q4_0;
    case GgmlType::q4_1: return Source::q4_1;
    case GgmlType::q5_0: return Source::q5_0;
    case GgmlType::q5_1: return Source::q5_1;
    case GgmlType::q8_0: return Source::q8_0;
    case GgmlType::q2_k: return Source::q2_k;
    case GgmlType::q3_k: return Source::q3_k;
    case GgmlType::q4_k: return Source::q4_k;
    case GgmlType::q5_k: return Source::q5_k;
    case GgmlType::q6_k: return Source::q6_k;
    case GgmlType::f32:
    case GgmlType::f16:
    case GgmlType::bf16: return Source::dense;
  }
  return Source::dense;
}

QuantLinear describe(const GgufTensor& t, int64_t N, int64_t K) {
  if (source_of(t.type) != Source::dense)
    return describe_blocks(t.name, t.data, t.bytes, source_of(t.type), N, K);
  const DType dtype = t.type == GgmlType::f32   ? DType::f32
                      : t.type == GgmlType::f16 ? DType::f16
                                                : DType::bf16;
  return describe_dense(t.name, t.data, dtype, N, K);
}

class GgufWeights : public Weights {
 public:
  explicit GgufWeights(const std::string& path) : file_(path) {
    format = "GGUF";
    config = read_config(file_);
    complete_config(file_, config);
    check_config(config, path);
    for (const ModelTensor& t : model_tensors(config)) load(t);
    note_unused();
  }

  void drop_pages(const QuantLinear& w) const override {
    if (file_.mapping() && !w.owned) file_.mapping()->drop_pages(w.data, size_t(w.file_bytes()));
  }

 private:
  const GgufTensor& take(const std::string& name, const std::vector<int64_t>& shape) {
    const GgufTensor* t = file_.find(name);
    if (!t) {
      const bool fused = name.find(".attn_q.") != name.npos && file_.find(fused_name(name));
      throw Error("tensor " + shown_name(name) + " is missing", file_.path(),
                  fused ? "the fused tensor " + shown_name(fused_name(name)) + " is not supported" : "");
    }
    if (t->shape != shape)
      throw Error("tensor " + shown_name(name) + " has shape " + shape_text(t->shape) +
                      ", but the keys ask for " + shape_text(shape),
                  file_.path());
    used_.insert(name);
    return *t;
  }

  static std::string fused_name(const std::string& name) {
    return name.substr(0, name.find(".attn_q.")) + ".attn_qkv.weight";
  }

  std::vector<float> take_vector(const std::string& name, int64_t N) {
    const GgufTensor& t = take(name, {N});
    const QuantLinear row = describe(t, 1, N);
    if (row.source != Source::dense)
      throw Error("vector " + shown_name(name) + " is quantised", file_.path());
    std::vector<float> out(static_cast<size_t>(N));
    decode_rows(row, 0, 1, out.data());
    return out;
  }

  void load(const ModelTensor& t) {
    if (t.K == 0) {  // a norm: in Gemma's GGUF files the 1 of 1 + w is already added
      vectors_[t.name] = take_vector(t.gguf + ".weight", t.N);
      return;
    }
    QuantLinear w = describe(take(t.gguf + ".weight", {t.N, t.K}), t.N, t.K);
    if (w.source != Source::dense) quantization = "gguf";
    if (t.bias) w.bias = take_vector(t.gguf + ".bias", t.N);
    if (t.rotary && config.architecture == "llama") interleave(w);
    linears_.emplace(t.name, std::move(w));
  }

  // The converter stored rows of q and k, and their biases, for RoPE on adjacent pairs; rows are found by
  // file_row, the bias is put in order here.
  void interleave(QuantLinear& w) const {
    w.rope_interleaved_dim = config.D;
    if (w.bias.empty()) return;
    const std::vector<float> file_bias = w.bias;
    for (int64_t n = 0; n < w.N; ++n) w.bias[size_t(n)] = file_bias[size_t(w.file_row(n))];
  }

  void note_unused() {
    for (const GgufTensor& t : file_.tensors())
      if (!used_.count(t.name) && t.name != "rope_freqs.weight") unused_tensors.push_back(t.name);
  }

  GgufFile file_;
  std::set<std::string> used_;
};

}  // namespace

std::unique_ptr<Weights> open_gguf(const std::string& path) { return std::make_unique<GgufWeights>(path); }

}  // namespace nano
