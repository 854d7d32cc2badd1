// Weights from a GGUF file: its keys as a ModelConfig, its tensors as views.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"          // Error
#include "checkpoint/foreign.h"  // checked_size, checked_positive, check_shape, check_vocabulary, shown_name, words
#include "checkpoint/gguf.h"          // GgufFile
#include "checkpoint/tensor_names.h"  // size_names, model_tensors, check_config
#include "checkpoint/weights.h"       // Weights

namespace nano {

namespace {

// Sizes may be given per layer; one number for all is what nano supports.
int64_t uniform_int(const GgufFile& file, const std::string& key) {
  const std::vector<int64_t> values = file.get_ints(key);
  if (values.empty() || std::any_of(values.begin(), values.end(), [&](int64_t v) { return v != values[0]; }))
    throw Error("key " + shown_name(key) + " differs from layer to layer, which is not supported",
                file.path());
  return values[0];
}

double positive(const GgufFile& file, const std::string& key, double fallback) {
  return checked_positive(file.get_float(key, fallback), key, file.path());
}

const GgufTensor& embedding(const GgufFile& file) {
  if (file.tensors().empty()) throw Error("the file holds a vocabulary but no weights", file.path());
  const GgufTensor* embed = file.find("token_embd.weight");
  if (!embed) throw Error("tensor 'token_embd.weight' is missing", file.path());
  if (embed->shape.size() != 2) throw Error("tensor 'token_embd.weight' is not a matrix", file.path());
  return *embed;
}

void read_sizes(const GgufFile& file, const std::string& prefix, ModelConfig& c) {
  const int64_t rows = embedding(file).shape[0];
  for (const SizeName& s : size_names()) {
    const std::string name = s.gguf, key = prefix + name;
    int64_t value;
    if (file.has(key))
      value = uniform_int(file, key);
    else if (name == "attention.head_count_kv")
      value = c.H;
    else if (name == "attention.key_length")
      value = c.C / c.H;
    else if (name == "vocab_size")
      value = rows;
    else
      value = file.get_int(key);  // says that it is missing
    c.*s.field = checked_size(value, s.most, key, file.path());
  }
  check_vocabulary(c.V, prefix + "vocab_size", "token_embd.weight", rows, file.path());
}

void read_rope(const GgufFile& file, const std::string& prefix, ModelConfig& c) {
  const int64_t rotated = file.get_int(prefix + "rope.dimension_count", c.D);
  if (rotated != c.D)
    throw Error("key " + shown_name(prefix + "rope.dimension_count") + " is " + std::to_string(rotated) +
                    " with head dimension " + std::to_string(c.D) + ": partial rotation is not supported",
                file.path());
  c.rope.theta = positive(file, prefix + "rope.freq_base", 10000.0);
  const std::string type = file.get_string(prefix + "rope.scaling.type", "linear");
  if (type != "none" && type != "linear")
    throw Error("RoPE scaling " + shown_name(type) + " is not supported", file.path(), "none and linear are");
  const double legacy = file.get_float(prefix + "rope.scale_linear", 1.0);
  const double factor = file.get_float(prefix + "rope.scaling.factor", legacy);
  if (type == "linear" && factor != 0)  // 0 is how some files write "none"
    c.rope.factor = checked_positive(factor, prefix + "rope.scaling.factor", file.path());
  const GgufTensor* divisors = file.find("rope_freqs.weight");
  if (!divisors) return;
  if (divisors->source != Source::dense || divisors->dtype != DType::f32 ||
      divisors->shape != std::vector<int64_t>{c.D / 2})
    throw Error("tensor 'rope_freqs.weight' is not " + std::to_string(c.D / 2) + " float32 values",
                file.path());
  for (int64_t i = 0; i < c.D / 2; ++i)
    c.rope.freq_divisors.push_back(
        float(checked_positive(load_f32(divisors->data, DType::f32, i), "rope_freqs.weight", file.path())));
}

// Layer i is sliding iff i mod pattern < pattern − 1 (0: all are); a bool array says it layer by layer.
void read_sliding(const GgufFile& file, const std::string& prefix, int64_t usual, ModelConfig& c) {
  const std::string key = prefix + "attention.sliding_window_pattern";
  const std::string window = prefix + "attention.sliding_window";
  c.sliding_window = checked_size(file.get_int(window), INT32_MAX, window, file.path());
  if (file.is_array(key)) {
    c.sliding = file.get_bools(key);
    if (int64_t(c.sliding.size()) != c.L)
      throw Error("key " + shown_name(key) + " has " + std::to_string(c.sliding.size()) + " entries for " +
                      std::to_string(c.L) + " layers",
                  file.path());
    return;
  }
  const int64_t pattern = file.get_int(key, usual);
  if (pattern < 0) throw Error("key " + shown_name(key) + " is negative", file.path());
  c.sliding.resize(size_t(c.L));
  for (int64_t i = 0; i < c.L; ++i) c.sliding[size_t(i)] = pattern == 0 || i % pattern < pattern - 1;
}

void read_gemma3(const GgufFile& file, const std::string& prefix, ModelConfig& c) {
  c.activation = Activation::gelu_tanh;
  c.qk_norm = c.sandwich_norms = true;
  c.embedding_scale = std::sqrt(float(c.C));
  c.rope_local.theta = positive(file, prefix + "rope.freq_base_swa", 10000.0);
  if (c.L == 62) c.attention_scale = 1.0f / std::sqrt(float(c.C) / float(c.H));  // only the 27B model
  read_sliding(file, prefix, 6, c);
}

// Keys that change the arithmetic unless they are 0; the second ones also stand for nothing at 1. Set to something
// else they are refused: the answers would be wrong, and look right.
constexpr const char* kOffAtZero =
    "expert_count attention.scale attention.clamp_kqv attention.max_alibi_bias attention.temperature_scale "
    "attention.q_lora_rank attention.kv_lora_rank attention.shared_kv_layers attn_logit_softcapping "
    "final_logit_softcapping use_parallel_residual swin_norm nextn_predict_layers";
constexpr const char* kOffAtOneToo = "logit_scale residual_scale embedding_scale rope.scaling.attn_factor";

void check_arithmetic(const GgufFile& file, const std::string& architecture) {
  auto check = [&](const std::string& name, double off, double also_off) {
    const std::string key = architecture + "." + name;
    for (const double value : file.has(key) ? file.get_numbers(key) : std::vector<double>{})
      if (value != off && value != also_off)
        throw Error(
            fmt::format("key {} is {}, which is not supported for {}", shown_name(key), value, architecture),
            file.path(), name == "expert_count" ? "it is a mixture of experts" : "");
  };
  for (const std::string& name : words(kOffAtZero)) check(name, 0, 0);
  for (const std::string& name : words(kOffAtOneToo)) check(name, 0, 1);
  check("attention.causal", 1, 1);
  if (architecture.rfind("qwen", 0) == 0 || architecture == "smollm3")
    check("attention.sliding_window", 0, 0);
}

ModelConfig read_config(const GgufFile& file) {
  ModelConfig c;
  const std::string name = file.get_string("general.architecture"), prefix = name + ".";
  c.architecture = name == "mistral3" ? "mistral" : name;
  check_architecture(c.architecture, file.path());
  check_arithmetic(file, name);
  read_sizes(file, prefix, c);
  const int64_t value_length = file.get_int(prefix + "attention.value_length", c.D);
  if (value_length != c.D)
    throw Error(fmt::format("keys of length {} and values of length {} differ, which is not supported", c.D,
                            value_length),
                file.path());
  const std::string eps = prefix + "attention.layer_norm_rms_epsilon";
  c.norm_eps = float(checked_positive(file.get_float(eps), eps, file.path()));
  c.attention_scale = 1.0f / std::sqrt(float(c.D));
  read_rope(file, prefix, c);
  if (c.architecture == "qwen3") c.qk_norm = true;
  if (c.architecture == "gemma3") {
    read_gemma3(file, prefix, c);
  } else if (file.has(prefix + "attention.sliding_window") &&
             file.get_int(prefix + "attention.sliding_window") != 0) {
    c.rope_local = c.rope;
    read_sliding(file, prefix, 0, c);
  }
  // No key says it; all models of this architecture have it so.
  for (int32_t i = 0; c.architecture == "smollm3" && i < c.L; ++i) c.no_rope.push_back((i + 1) % 4 == 0);
  // What only the tensors tell.
  c.tied = !file.find("output.weight");
  c.qkv_bias = file.find("blk.0.attn_q.bias") != nullptr;
  c.o_bias = file.find("blk.0.attn_output.bias") != nullptr;
  c.mlp_bias = file.find("blk.0.ffn_down.bias") != nullptr;
  const GgufTensor& embed = embedding(file);
  c.dtype = embed.source == Source::dense ? embed.dtype : DType::f16;
  check_config(c, file.path());
  return c;
}

QuantLinear describe(const GgufTensor& t, int64_t N, int64_t K) {
  if (t.source == Source::dense) return describe_dense(t.name, t.data, t.dtype, N, K);
  return describe_blocks(t.name, t.data, t.bytes, t.source, N, K);
}

class GgufWeights : public Weights {
 public:
  explicit GgufWeights(const std::string& path) : file_(path) {
    format = "GGUF";
    config = read_config(file_);
    const std::vector<ModelTensor> tensors = model_tensors(config);
    for (const ModelTensor& t : tensors) {
      known_.insert(t.gguf + ".weight");
      if (t.bias) known_.insert(t.gguf + ".bias");
    }
    for (const ModelTensor& t : tensors) load(t);
    note_unused();
  }

  void drop_pages(const QuantLinear& w) const override {
    if (file_.mapping() && !w.owned) file_.mapping()->drop_pages(w.data, size_t(w.file_bytes()));
  }

 private:
  const GgufTensor& take(const std::string& name, const std::vector<int64_t>& shape) {
    const GgufTensor* t = file_.find(name);
    if (!t) throw Error("tensor " + shown_name(name) + " is missing", file_.path(), foreign_tensor());
    check_shape(name, t->shape, shape, "the keys ask", file_.path());
    return *t;
  }

  // What a layer of this architecture does not have: fused q/k/v, experts, attention sinks, biases of some matrices
  // only. "" if there is none.
  std::string foreign_tensor() const {
    for (const GgufTensor& t : file_.tensors())
      if (t.name.rfind("blk.", 0) == 0 && std::atoi(t.name.c_str() + 4) < config.L && !known_.count(t.name))
        return "tensor " + shown_name(t.name) + " is not supported: this is another variant of " +
               config.architecture;
    return "";
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
    const bool half_split = config.architecture == "gemma3" || config.architecture.rfind("qwen", 0) == 0;
    if (t.rotary && !half_split) interleave(w);
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
    if (const std::string problem = foreign_tensor(); !problem.empty()) throw Error(problem, file_.path());
    for (const GgufTensor& t : file_.tensors())
      if (!known_.count(t.name) && t.name != "rope_freqs.weight") unused_tensors.push_back(t.name);
  }

  GgufFile file_;
  std::set<std::string> known_;  // what the table lists
};

}  // namespace

std::unique_ptr<Weights> open_gguf(const std::string& path) { return std::make_unique<GgufWeights>(path); }

}  // namespace nano
