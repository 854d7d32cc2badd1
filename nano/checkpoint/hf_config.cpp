#include "checkpoint/hf_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"               // Error
#include "base/json.h"                // parse_json
#include "base/mapped_file.h"         // read_file
#include "checkpoint/foreign.h"       // checked_positive, checked_size, shown_name, words
#include "checkpoint/tensor_names.h"  // size_names, check_config, check_architecture
#include "checkpoint/weights.h"       // read_hf_config

namespace nano {

namespace {

using nlohmann::json;

// The fields of a config: those of the text model, then those around it. A null counts as absent; what is absent
// and has no fallback is an Error, like a value of another type.
struct Fields {
  const json& inner;
  const json& outer;  // the same object unless the model is nested
  const std::string& where;

  [[noreturn]] void fail(const char* key, const std::string& problem, const std::string& hint = "") const {
    throw Error(fmt::format("'{}' {}", key, problem), where, hint);
  }
  const json* find(const char* key) const {
    for (const json* object : {&inner, &outer})
      if (auto it = object->find(key); it != object->end() && !it->is_null()) return &*it;
    return nullptr;
  }
  const json* find(const char* key, bool (json::*is_right)() const, const char* wanted, bool required) const {
    const json* value = find(key);
    if (!value && required) fail(key, "is missing");
    if (value && !(value->*is_right)()) fail(key, std::string("is not ") + wanted);
    return value;
  }
  int64_t integer(const char* key, std::optional<int64_t> fallback = {}) const {
    const json* value = find(key, &json::is_number_integer, "an integer", !fallback);
    if (value && value->is_number_unsigned())
      return int64_t(std::min(value->get<uint64_t>(), uint64_t(INT64_MAX)));
    return value ? value->get<int64_t>() : *fallback;
  }
  double number(const char* key, std::optional<double> fallback = {}) const {
    const json* value = find(key, &json::is_number, "a number", !fallback);
    return value ? value->get<double>() : *fallback;
  }
  bool boolean(const char* key, bool fallback) const {
    const json* value = find(key, &json::is_boolean, "true or false", false);
    return value ? value->get<bool>() : fallback;
  }
  std::string text(const char* key, const std::string& fallback) const {
    const json* value = find(key, &json::is_string, "a string", false);
    return value ? value->get<std::string>() : fallback;
  }
  double positive(const char* key, std::optional<double> fallback = {}) const {
    return checked_positive(number(key, fallback), key, where);
  }
  int32_t size(const char* key, std::optional<int64_t> fallback = {}, int32_t most = INT32_MAX) const {
    return checked_size(integer(key, fallback), most, key, where);
  }
};

bool is_gemma(const ModelConfig& c) { return c.architecture == "gemma3"; }

// Keys of other families that change the arithmetic unless they are 0 (or false), or 1. Set to something else they
// are refused: the answers would be wrong, and look right.
constexpr const char* kOffAtZero =
    "attn_logit_softcapping final_logit_softcapping use_bidirectional_attention attention_chunk_size "
    "attention_multiplier qk_layernorm use_qk_norm clip_qkv alibi parallel_attn use_parallel_residual "
    "num_experts num_local_experts n_routed_experts";
constexpr const char* kOffAtOne =
    "partial_rotary_factor embedding_multiplier residual_multiplier logits_scaling logit_scale";
// The same for keys that some of our families have.
constexpr std::pair<const char*, std::string_view> kOfFamilies[] = {
    {"use_sliding_window", "qwen2 qwen3 smollm3"},
    {"attention_bias", "llama qwen2 qwen3 gemma3 smollm3"},
    {"mlp_bias", "llama smollm3"},
    {"no_rope_layers", "smollm3"},
};

void check_arithmetic(const Fields& f, const ModelConfig& c) {
  auto check = [&](const std::string& key, double off) {
    const json* value = f.find(key.c_str());
    const bool is_off = !value || (value->is_boolean() ? value->get<bool>() == (off != 0) : *value == off);
    if (!is_off) f.fail(key.c_str(), "is set, which is not supported for " + c.architecture);
  };
  for (const std::string& key : words(kOffAtZero)) check(key, 0);
  for (const std::string& key : words(kOffAtOne)) check(key, 1);
  for (const auto& [key, families] : kOfFamilies)
    if (families.find(c.architecture) == families.npos) check(key, 0);
}

// What transformers assumes where a config is silent (nested Gemma configs leave out what equals it); none: the key
// must be there.
std::optional<int64_t> default_size(const Fields& f, const std::string& key, const ModelConfig& c) {
  const bool gemma = is_gemma(c), qwen3 = c.architecture == "qwen3", mistral = c.architecture == "mistral";
  if (key == "num_key_value_heads" && !f.inner.contains(key)) {  // null means as many as heads
    if (mistral) return 8;
    if (gemma || c.architecture == "smollm3") return 4;
  }
  if (key == "num_key_value_heads") return c.H;
  if (key == "head_dim" && (gemma || qwen3)) return gemma ? 256 : 128;
  if (key == "head_dim" && c.C % c.H != 0 && !f.find("head_dim"))
    f.fail("hidden_size", fmt::format("is {}, not a multiple of {} heads", c.C, c.H));
  if (key == "head_dim") return c.C / c.H;
  if (key == "max_position_embeddings")
    return gemma || mistral ? 131072 : c.architecture == "llama" ? 2048 : 32768;
  if (gemma && key == "num_attention_heads") return 8;
  if (gemma && key == "vocab_size") return 262208;
  return {};
}

// One RoPE description: {rope_type or type, rope_theta, factor, …}.
RopeConfig parse_rope(const json& object, double theta, const std::string& where) {
  if (!object.is_object()) throw Error("the RoPE parameters are not an object", where);
  const Fields f{object, object, where};
  RopeConfig rope;
  rope.theta = f.positive("rope_theta", theta);
  const std::string type = f.text("rope_type", f.text("type", "default"));
  if (type != "default" && type != "linear" && type != "llama3")
    throw Error("RoPE scaling " + shown_name(type) + " is not supported", where,
                "default, linear and llama3 are");
  if (type != "default") rope.factor = f.positive("factor");
  if (type == "llama3") {
    rope.llama3 = true;
    rope.low_freq_factor = f.positive("low_freq_factor");
    rope.high_freq_factor = f.positive("high_freq_factor");
    rope.original_max_position = f.size("original_max_position_embeddings");
    if (rope.high_freq_factor <= rope.low_freq_factor)
      f.fail("high_freq_factor", "must be above 'low_freq_factor'");
  }
  if (f.number("partial_rotary_factor", 1.0) != 1.0)
    f.fail("partial_rotary_factor", "is set, which is not supported");
  return rope;
}

// Old files: rope_theta, rope_scaling and Gemma's rope_local_base_freq. New ones: rope_parameters, for Gemma one
// object per type of layer. Where both are, transformers lets rope_scaling stand in place of rope_parameters; for
// Gemma it is added to the object of the global layers.
void read_rope(const Fields& f, ModelConfig& c) {
  const double theta = f.number("rope_theta", is_gemma(c) ? 1e6 : c.architecture == "smollm3" ? 2e6 : 1e4);
  const json *parameters = f.find("rope_parameters"), *scaling = f.find("rope_scaling");
  if (scaling && scaling->empty()) scaling = nullptr;
  if (scaling && !is_gemma(c)) parameters = nullptr;
  if (parameters && parameters->is_object() && parameters->contains("full_attention")) {
    json full = (*parameters)["full_attention"];
    if (scaling && scaling->is_object() && full.is_object()) full.update(*scaling);
    c.rope = c.rope_local = parse_rope(full, theta, f.where);
    if (parameters->contains("sliding_attention"))
      c.rope_local = parse_rope((*parameters)["sliding_attention"], 1e4, f.where);
    return;
  }
  const json* given = scaling ? scaling : parameters;
  c.rope = c.rope_local = parse_rope(given ? *given : json::object(), theta, f.where);
  if (!is_gemma(c)) return;
  c.rope_local = RopeConfig{};
  c.rope_local.theta = f.positive("rope_local_base_freq", 1e4);
}

// SmolLM3's layers without RoPE: 0 in a list, or every n-th.
void read_no_rope(const Fields& f, ModelConfig& c) {
  if (c.architecture != "smollm3") return;
  const json* list = f.find("no_rope_layers");
  if (list && (!list->is_array() || int64_t(list->size()) < c.L))
    f.fail("no_rope_layers", fmt::format("is not a list of {} layers", c.L));
  const int32_t interval = f.size("no_rope_layer_interval", 4);
  for (int32_t i = 0; i < c.L; ++i) {
    const json with = list ? (*list)[size_t(i)] : json((i + 1) % interval != 0);
    if (!with.is_boolean() && !with.is_number_integer())
      f.fail("no_rope_layers", "holds " + shown_name(with.dump()) + ", not 0 or 1");
    c.no_rope.push_back(with == 0 || with == false);
  }
}

// Which layers see only a window: layer_types where it is given, else each family's own rule.
void read_sliding(const Fields& f, ModelConfig& c) {
  const bool gemma = is_gemma(c), mistral = c.architecture == "mistral";
  const bool on = gemma || mistral || f.boolean("use_sliding_window", false);
  const bool without = mistral && f.inner.contains("sliding_window");  // null, if there is no number
  const int64_t window = on ? f.integer("sliding_window", gemma || (mistral && !without) ? 4096 : 0) : 0;
  if (const json* types = f.find("layer_types")) {
    if (!types->is_array() || int64_t(types->size()) != c.L)
      f.fail("layer_types", fmt::format("is not a list of {} layers", c.L));
    for (const json& type : *types) {
      const std::string name = type.is_string() ? type.get<std::string>() : type.dump();
      if (name != "full_attention" && name != "sliding_attention")
        f.fail("layer_types", "holds " + shown_name(name) + ", which is not supported");
      if (mistral && window != 0 && name == "full_attention")
        f.fail("layer_types", "leaves layers of mistral without a window, which is not supported");
      c.sliding.push_back(name == "sliding_attention");
    }
  } else if (gemma) {
    const int32_t pattern = f.size("sliding_window_pattern", f.integer("_sliding_window_pattern", 6));
    for (int32_t i = 0; i < c.L; ++i) c.sliding.push_back((i + 1) % pattern != 0);
  } else if (mistral && window != 0) {
    c.sliding.assign(size_t(c.L), true);
  } else if (c.architecture == "smollm3" && window != 0) {
    c.sliding = c.no_rope;
  } else if (window > 0) {
    const int64_t first = f.integer("max_window_layers", c.L);
    for (int32_t i = 0; i < c.L; ++i) c.sliding.push_back(i >= first);
  }
  if (std::find(c.sliding.begin(), c.sliding.end(), true) == c.sliding.end())
    c.sliding.clear();
  else
    c.sliding_window = checked_size(window, INT32_MAX, "sliding_window", f.where);
}

Activation parse_activation(const Fields& f, bool gemma) {
  const std::string name =
      f.text("hidden_activation", f.text("hidden_act", gemma ? "gelu_pytorch_tanh" : "silu"));
  if (name == "silu") return Activation::silu;
  if (name == "gelu_pytorch_tanh") return Activation::gelu_tanh;
  f.fail("hidden_act", "is " + shown_name(name) + ", which is not supported",
         "silu and gelu_pytorch_tanh are");
}

DType parse_dtype(const Fields& f) {
  std::string name = f.text("dtype", f.text("torch_dtype", "float32"));
  if (name.rfind("torch.", 0) == 0) name.erase(0, 6);
  for (DType t : {DType::f32, DType::f16, DType::bf16})
    if (name == dtype_name(t)) return t;
  f.fail("dtype", "is " + shown_name(name) + ", which is not supported", "float32, float16 and bfloat16 are");
}

[[noreturn]] void refuse_quantised(const std::string& method, const std::string& where) {
  throw Error("quantised with " + shown_name(method) + ": not supported yet", where,
              "use the unquantised checkpoint or a GGUF file");
}

void read_family(const Fields& f, ModelConfig& c) {
  const bool gemma = is_gemma(c);
  const bool attention_bias = f.boolean("attention_bias", false);
  c.qkv_bias = attention_bias || c.architecture == "qwen2";
  c.o_bias = attention_bias && c.architecture != "qwen2";
  c.mlp_bias = f.boolean("mlp_bias", false);
  c.qk_norm = gemma || c.architecture == "qwen3";
  c.sandwich_norms = gemma;
  c.activation = parse_activation(f, gemma);
  c.embedding_scale = gemma ? std::sqrt(float(c.C)) : 1.0f;
  const double scalar = gemma ? f.positive("query_pre_attn_scalar", 256) : double(c.D);
  c.attention_scale = float(1.0 / std::sqrt(scalar));
  c.norm_eps = float(f.positive("rms_norm_eps", 1e-6));
  c.tied = f.boolean("tie_word_embeddings", gemma || c.architecture == "smollm3");
  c.dtype = parse_dtype(f);
}

// They are the tokenizer's business (text/tokenizer.h); but who has nonsense here has more of it elsewhere. -1 is how
// some say that there is none.
void check_special_ids(const Fields& f) {
  for (const char* key : {"bos_token_id", "eos_token_id"})
    for (const json* object : {&f.inner, &f.outer}) {
      const json value = object->value(key, json());
      for (const json& id : value.is_array() ? value : json::array({value}))
        if (!id.is_null() && id != -1 &&
            (!id.is_number_unsigned() || id.get<uint64_t>() > uint64_t(INT32_MAX)))
          f.fail(key, "is " + shown_name(id.dump()) + ", which is no token id");
    }
}

}  // namespace

ModelConfig parse_hf_config(const json& config, const std::string& where) {
  if (!config.is_object()) throw Error("the config is not a JSON object", where);
  const auto nested = config.find("text_config");
  const bool is_nested = nested != config.end() && nested->is_object();
  const Fields f{is_nested ? *nested : config, config, where};
  ModelConfig c;
  c.architecture = f.text("model_type", "");
  if (c.architecture.empty()) f.fail("model_type", "is missing");
  if (c.architecture == "gemma3_text") c.architecture = "gemma3";
  check_architecture(c.architecture, where);
  for (const char* key : {"quantization_config", "compression_config"})
    if (const json* q = f.find(key))
      refuse_quantised(Fields{*q, *q, where}.text("quant_method", "an unnamed method"), where);
  check_arithmetic(f, c);
  for (const SizeName& s : size_names()) c.*s.field = f.size(s.hf, default_size(f, s.hf, c), s.most);
  read_rope(f, c);
  read_no_rope(f, c);
  // As vLLM derives it: linear scaling stretches the limit, except for Gemma, whose files state the stretched one.
  if (!c.rope.llama3 && !is_gemma(c))
    c.max_position = int32_t(std::clamp(c.max_position * c.rope.factor, 1.0, double(INT32_MAX)));
  read_sliding(f, c);
  read_family(f, c);
  check_special_ids(f);
  check_config(c, where);
  return c;
}

ModelConfig read_hf_config(const std::string& path) {
  const ModelConfig c = parse_hf_config(parse_json(read_file(path), path), path);
  // Older AWQ and GPTQ checkpoints say so only in a file of their own.
  for (const char* name : {"quant_config.json", "quantize_config.json"}) {
    const std::string file = (std::filesystem::path(path).parent_path() / name).string();
    if (!std::filesystem::exists(file)) continue;
    const json q = parse_json(read_file(file), file);
    refuse_quantised(q.contains("w_bit")      ? "awq"
                     : q.contains("desc_act") ? "gptq"
                                              : "an unnamed method",
                     file);
  }
  return c;
}

}  // namespace nano
