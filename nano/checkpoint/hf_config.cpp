#include "checkpoint/hf_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "base/error.h"               // Error
#include "base/json.h"                // parse_json
#include "base/mapped_file.h"         // read_file
#include "checkpoint/foreign.h"       // shown_name
#include "checkpoint/tensor_names.h"  // check_config, check_architecture
#include "checkpoint/weights.h"       // read_hf_config

namespace nano {

namespace {

using nlohmann::json;

// The fields of a config: those of the text model, then those around it. A null counts as absent.
struct Fields {
  const json& inner;
  const json& outer;  // the same object unless the model is nested
  const std::string& where;

  const json* find(const char* key) const {
    for (const json* object : {&inner, &outer})
      if (auto it = object->find(key); it != object->end() && !it->is_null()) return &*it;
    return nullptr;
  }
  [[noreturn]] void wrong(const char* key, const char* wanted) const {
    throw Error(std::string("'") + key + "' is not " + wanted, where);
  }
  int32_t as_int(const char* key, const json& value) const {
    if (!value.is_number_integer()) wrong(key, "an integer");
    const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t(INT32_MAX)
                                                 : value.get<int64_t>() >= INT32_MIN;
    if (!fits) wrong(key, "an integer in range");
    return value.get<int32_t>();
  }
  int32_t integer(const char* key, int32_t fallback) const {
    const json* value = find(key);
    return value ? as_int(key, *value) : fallback;
  }
  int32_t integer(const char* key) const {
    if (!find(key)) throw Error(std::string("'") + key + "' is missing", where);
    return integer(key, 0);
  }
  double number(const char* key, double fallback) const {
    const json* value = find(key);
    if (!value) return fallback;
    if (!value->is_number()) wrong(key, "a number");
    return value->get<double>();
  }
  double number(const char* key) const {
    if (!find(key)) throw Error(std::string("'") + key + "' is missing", where);
    return number(key, 0);
  }
  bool boolean(const char* key, bool fallback) const {
    const json* value = find(key);
    if (!value) return fallback;
    if (!value->is_boolean()) wrong(key, "true or false");
    return value->get<bool>();
  }
  std::string text(const char* key, const char* fallback) const {
    const json* value = find(key);
    if (!value) return fallback;
    if (!value->is_string()) wrong(key, "a string");
    return value->get<std::string>();
  }
  std::vector<int32_t> ids(const char* key) const {  // one id, a list or null
    const json* value = find(key);
    if (!value) return {};
    if (!value->is_array()) return {as_int(key, *value)};
    std::vector<int32_t> out;
    for (const json& item : *value) out.push_back(as_int(key, item));
    return out;
  }
};

// One RoPE description: {rope_type or type, rope_theta, factor, …}.
RopeConfig parse_rope(const json& object, double theta, const std::string& where) {
  RopeConfig rope;
  if (!object.is_object()) throw Error("the RoPE parameters are not an object", where);
  const Fields f{object, object, where};
  rope.theta = f.number("rope_theta", theta);
  const std::string type = f.text("rope_type", f.text("type", "default").c_str());
  if (type == "linear") {
    rope.factor = f.number("factor");
  } else if (type == "llama3") {
    rope.llama3 = true;
    rope.factor = f.number("factor");
    rope.low_freq_factor = f.number("low_freq_factor");
    rope.high_freq_factor = f.number("high_freq_factor");
    rope.original_max_position = f.integer("original_max_position_embeddings");
    if (!(rope.low_freq_factor > 0) || !(rope.high_freq_factor > rope.low_freq_factor))
      throw Error("RoPE scaling 'llama3' needs 0 < low_freq_factor < high_freq_factor", where);
  } else if (type != "default") {
    throw Error("RoPE scaling " + shown_name(type) + " is not supported", where,
                "default, linear and llama3 are");
  }
  if (f.number("partial_rotary_factor", 1.0) != 1.0)
    throw Error("'partial_rotary_factor' is not supported", where);
  return rope;
}

// Old files: rope_theta, rope_scaling and Gemma's rope_local_base_freq. New ones: rope_parameters, for Gemma one
// object per type of layer.
void read_rope(const Fields& f, ModelConfig& c) {
  const bool gemma = c.architecture == "gemma3";
  const json empty = json::object();
  const double theta = f.number("rope_theta", gemma ? 1e6 : 1e4);
  const json* parameters = f.find("rope_parameters");
  const json* scaling = f.find("rope_scaling");
  if (f.number("partial_rotary_factor", 1.0) != 1.0)
    throw Error("'partial_rotary_factor' is not supported", f.where);
  if (parameters && parameters->is_object() && parameters->contains("full_attention")) {
    c.rope = parse_rope((*parameters)["full_attention"], theta, f.where);
    c.rope_local = parameters->contains("sliding_attention")
                       ? parse_rope((*parameters)["sliding_attention"], 1e4, f.where)
                       : c.rope;
    return;
  }
  c.rope = parse_rope(parameters ? *parameters : scaling ? *scaling : empty, theta, f.where);
  c.rope_local = c.rope;
  if (gemma) {
    c.rope_local = RopeConfig{};
    c.rope_local.theta = f.number("rope_local_base_freq", 1e4);
  }
}

// Which layers see only a window: layer_types where it is given, else each family's own rule.
void read_sliding(const Fields& f, ModelConfig& c) {
  const bool gemma = c.architecture == "gemma3";
  const bool on = gemma || f.boolean("use_sliding_window", false);
  const int32_t window = on ? f.integer("sliding_window", gemma ? 4096 : 0) : 0;
  if (const json* types = f.find("layer_types")) {
    if (!types->is_array() || int64_t(types->size()) != c.L)
      throw Error("'layer_types' is not a list of " + std::to_string(c.L) + " layers", f.where);
    for (const json& type : *types) {
      const std::string name = type.is_string() ? type.get<std::string>() : type.dump();
      if (name != "full_attention" && name != "sliding_attention")
        throw Error("layer type " + shown_name(name) + " is not supported", f.where);
      c.sliding.push_back(name == "sliding_attention");
    }
  } else if (gemma) {
    const int32_t pattern = f.integer("sliding_window_pattern", f.integer("_sliding_window_pattern", 6));
    if (pattern < 1) throw Error("'sliding_window_pattern' is " + std::to_string(pattern), f.where);
    for (int32_t i = 0; i < c.L; ++i) c.sliding.push_back((i + 1) % pattern != 0);
  } else if (window > 0) {
    const int32_t first = f.integer("max_window_layers", c.L);
    for (int32_t i = 0; i < c.L; ++i) c.sliding.push_back(i >= first);
  }
  if (std::find(c.sliding.begin(), c.sliding.end(), true) == c.sliding.end()) {
    c.sliding.clear();
    return;
  }
  if (window < 1) throw Error("layers have sliding attention, but 'sliding_window' is not set", f.where);
  c.sliding_window = window;
}

void read_sizes(const Fields& f, ModelConfig& c) {
  const bool gemma = c.architecture == "gemma3";
  c.L = f.integer("num_hidden_layers");
  c.C = f.integer("hidden_size");
  c.F = f.integer("intermediate_size");
  // Nested Gemma configs leave out what equals the default of transformers.
  c.V = gemma ? f.integer("vocab_size", 262208) : f.integer("vocab_size");
  c.H = gemma ? f.integer("num_attention_heads", 8) : f.integer("num_attention_heads");
  c.KVH = f.integer("num_key_value_heads", gemma ? 4 : c.H);
  if (c.H < 1 || c.L < 1 || c.L > kMaxLayers)
    check_config(c, f.where);  // throws: before H divides and L counts
  const int32_t default_dim = gemma ? 256 : c.architecture == "qwen3" ? 128 : 0;
  c.D = f.integer("head_dim", default_dim);
  if (c.D == 0 && c.C % c.H != 0)
    throw Error(
        "hidden_size " + std::to_string(c.C) + " is not a multiple of " + std::to_string(c.H) + " heads",
        f.where);
  if (c.D == 0) c.D = c.C / c.H;
}

void read_position_limit(const Fields& f, ModelConfig& c) {
  const bool gemma = c.architecture == "gemma3";
  c.max_position = f.integer("max_position_embeddings", gemma                       ? 131072
                                                        : c.architecture == "llama" ? 2048
                                                                                    : 32768);
  // As vLLM derives it: linear scaling stretches the limit, except for Gemma, whose files state the stretched one.
  if (!c.rope.llama3 && !gemma)
    c.max_position = int32_t(std::min(double(c.max_position) * c.rope.factor, double(INT32_MAX)));
  c.max_position_scaled = true;
}

Activation parse_activation(const Fields& f, bool gemma) {
  const std::string name =
      f.text("hidden_activation", f.text("hidden_act", gemma ? "gelu_pytorch_tanh" : "silu").c_str());
  if (name == "silu") return Activation::silu;
  if (name == "gelu_pytorch_tanh") return Activation::gelu_tanh;
  throw Error("activation " + shown_name(name) + " is not supported", f.where,
              "silu and gelu_pytorch_tanh are");
}

DType parse_dtype(const Fields& f) {
  const std::string name = f.text("dtype", f.text("torch_dtype", "float32").c_str());
  for (DType t : {DType::f32, DType::f16, DType::bf16})
    if (name == dtype_name(t)) return t;
  throw Error("element type " + shown_name(name) + " is not supported", f.where,
              "float32, float16 and bfloat16 are");
}

void check_not_quantised(const Fields& f) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    const json* q = f.find(key);
    if (!q) continue;
    std::string method = "an unnamed method";
    if (q->is_object() && q->contains("quant_method") && (*q)["quant_method"].is_string())
      method = (*q)["quant_method"].get<std::string>();
    throw Error("quantised with " + shown_name(method) + ": not supported yet", f.where,
                "use the unquantised checkpoint or a GGUF file");
  }
}

void read_family(const Fields& f, ModelConfig& c) {
  const bool gemma = c.architecture == "gemma3";
  const bool attention_bias = f.boolean("attention_bias", false);
  c.qkv_bias = attention_bias || c.architecture == "qwen2";
  c.o_bias = attention_bias && c.architecture != "qwen2";
  c.mlp_bias = f.boolean("mlp_bias", false);
  c.qk_norm = gemma || c.architecture == "qwen3";
  c.sandwich_norms = gemma;
  c.activation = parse_activation(f, gemma);
  c.embedding_scale = gemma ? std::sqrt(float(c.C)) : 1.0f;
  const double scalar = gemma ? f.number("query_pre_attn_scalar", 256) : double(c.D);
  c.attention_scale = float(1.0 / std::sqrt(scalar));
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"})
    if (f.number(key, 0) != 0)
      throw Error(std::string("'") + key + "' is set, which is not supported", f.where);
  if (f.boolean("use_bidirectional_attention", false))
    throw Error("'use_bidirectional_attention' is set: this is not a text generation model", f.where);
}

std::string architecture_of(const Fields& f) {
  const std::string type = f.text("model_type", "");
  if (type.empty()) throw Error("'model_type' is missing", f.where);
  const std::string name = type == "gemma3_text" ? "gemma3" : type;
  check_architecture(name, f.where);
  return name;
}

}  // namespace

ModelConfig parse_hf_config(const json& config, const std::string& where) {
  if (!config.is_object()) throw Error("the config is not a JSON object", where);
  const auto nested = config.find("text_config");
  const bool is_nested = nested != config.end() && nested->is_object();
  const Fields f{is_nested ? *nested : config, config, where};
  ModelConfig c;
  c.architecture = architecture_of(f);
  check_not_quantised(f);
  read_sizes(f, c);
  read_rope(f, c);
  read_position_limit(f, c);
  read_sliding(f, c);
  read_family(f, c);
  c.norm_eps = float(f.number("rms_norm_eps", 1e-6));
  c.tied = f.boolean("tie_word_embeddings", c.architecture == "gemma3");
  c.dtype = parse_dtype(f);
  const Fields outer_first{config, f.inner, where};  // a nested text model may know only one of two ends
  c.eos_ids = outer_first.ids("eos_token_id");
  const std::vector<int32_t> bos = outer_first.ids("bos_token_id");
  if (!bos.empty()) c.bos_id = bos[0];
  check_config(c, where);
  return c;
}

void apply_generation_config(const json& generation, const std::string& where, ModelConfig& config) {
  if (!generation.is_object()) throw Error("the generation config is not a JSON object", where);
  const std::vector<int32_t> ids = Fields{generation, generation, where}.ids("eos_token_id");
  if (!ids.empty()) config.eos_ids = ids;
}

ModelConfig read_hf_config(const std::string& path) {
  ModelConfig c = parse_hf_config(parse_json(read_file(path), path), path);
  const std::filesystem::path beside = std::filesystem::path(path).parent_path();
  // Older AWQ and GPTQ checkpoints say so only in a file of their own.
  for (const char* name : {"quant_config.json", "quantize_config.json"}) {
    const std::string file = (beside / name).string();
    if (!std::filesystem::exists(file)) continue;
    const json q = parse_json(read_file(file), file);
    const std::string guess = q.contains("w_bit")      ? "awq"
                              : q.contains("desc_act") ? "gptq"
                                                       : "an unnamed method";
    throw Error("quantised with " + shown_name(guess) + ": not supported yet", file,
                "use the unquantised checkpoint or a GGUF file");
  }
  const std::string generation = (beside / "generation_config.json").string();
  if (std::filesystem::exists(generation))
    apply_generation_config(parse_json(read_file(generation), generation), generation, c);
  return c;
}

}  // namespace nano
