// checkpoint/hf_config.h: old and new spelling, defaults, families, and what is refused by name.
#include <cmath>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "catch.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/weights.h"  // read_hf_config
#include "checkpoint_files.h"    // TempDir, error_of

using namespace nano;
using namespace nano_test;
using nlohmann::json;

namespace {

json llama() {
  return json::parse(R"({"model_type":"llama","vocab_size":384,"hidden_size":128,"intermediate_size":256,
    "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":512,
    "rms_norm_eps":1e-5,"tie_word_embeddings":false,"hidden_act":"silu","rope_theta":50000.0,"torch_dtype":"bfloat16",
    "eos_token_id":[7,9],"bos_token_id":3})");
}
json qwen(const char* type) {
  json c = llama();
  c["model_type"] = type;
  return c;
}
json gemma() {
  return json::parse(R"({"model_type":"gemma3_text","vocab_size":384,"hidden_size":64,"intermediate_size":96,
    "num_hidden_layers":6,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":64,"sliding_window":16,
    "query_pre_attn_scalar":100,"sliding_window_pattern":3})");
}

ModelConfig parse(const json& c) { return parse_hf_config(c, "config.json"); }
std::string refusal(const json& c) {
  return error_of([&] { parse(c); });
}
json with(json c, const char* key, const json& value) {
  c[key] = value;
  return c;
}
json without(json c, const char* key) {
  c.erase(key);
  return c;
}
bool close(double a, double b) { return std::fabs(a - b) <= 1e-6 * std::fabs(b); }

}  // namespace

TEST_CASE("hf_config: a Llama config, field by field") {
  const ModelConfig c = parse(llama());
  CHECK(c.architecture == "llama");
  CHECK(c.L == 2);
  CHECK(c.C == 128);
  CHECK(c.F == 256);
  CHECK(c.H == 4);
  CHECK(c.KVH == 2);
  CHECK(c.D == 32);  // hidden / heads
  CHECK(c.V == 384);
  CHECK(c.max_position == 512);
  CHECK(c.norm_eps == 1e-5f);
  CHECK(close(c.attention_scale, 1 / std::sqrt(32.0)));
  CHECK(c.embedding_scale == 1.0f);
  CHECK(c.activation == Activation::silu);
  CHECK(!c.tied);
  CHECK((!c.qkv_bias && !c.o_bias && !c.mlp_bias && !c.qk_norm && !c.sandwich_norms));
  CHECK(c.sliding_window == 0);
  CHECK(c.sliding.empty());
  CHECK(c.rope.theta == 50000.0);
  CHECK(c.dtype == DType::bf16);
}

TEST_CASE("hf_config: old and new spelling mean the same") {
  json old = with(llama(), "rope_scaling",
                  json::parse(R"({"type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
                                  "original_max_position_embeddings":128})"));
  json now = without(without(llama(), "rope_theta"), "torch_dtype");
  now["dtype"] = "bfloat16";
  now["rope_parameters"] = json::parse(R"({"rope_type":"llama3","rope_theta":50000.0,"factor":8.0,
      "low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":128})");
  for (const json& c : {old, now}) {
    const ModelConfig m = parse(c);
    CHECK(m.rope.llama3);
    CHECK(m.rope.theta == 50000.0);
    CHECK(m.rope.factor == 8.0);
    CHECK(m.rope.high_freq_factor == 4.0);
    CHECK(m.rope.original_max_position == 128);
    CHECK(m.dtype == DType::bf16);
    CHECK(m.max_position == 512);  // not scaled again
  }
}

TEST_CASE("hf_config: null and absent fields take the defaults of transformers") {
  json c = without(without(without(llama(), "rope_theta"), "rms_norm_eps"), "tie_word_embeddings");
  c["num_key_value_heads"] = nullptr;
  c["head_dim"] = nullptr;
  c["rope_scaling"] = nullptr;
  c["eos_token_id"] = nullptr;
  c["bos_token_id"] = nullptr;
  c.erase("torch_dtype");
  c.erase("max_position_embeddings");
  const ModelConfig m = parse(c);
  CHECK(m.KVH == 4);
  CHECK(m.D == 32);
  CHECK(m.rope.theta == 10000.0);
  CHECK(m.norm_eps == 1e-6f);
  CHECK(!m.tied);
  CHECK(m.dtype == DType::f32);
  CHECK(m.max_position == 2048);
}

TEST_CASE("hf_config: biases and norms of each family") {
  const ModelConfig q2 = parse(qwen("qwen2"));
  CHECK((q2.qkv_bias && !q2.o_bias && !q2.qk_norm));
  const ModelConfig q3 = parse(qwen("qwen3"));
  CHECK((!q3.qkv_bias && !q3.o_bias && q3.qk_norm && !q3.sandwich_norms));
  CHECK(q3.D == 128);  // its own default
  CHECK(parse(with(qwen("qwen3"), "head_dim", 64)).D == 64);
  const ModelConfig biased = parse(with(with(llama(), "attention_bias", true), "mlp_bias", true));
  CHECK((biased.qkv_bias && biased.o_bias && biased.mlp_bias));
}

TEST_CASE(
    "hf_config: where rope_parameters and rope_scaling are both, rope_scaling wins, as in transformers") {
  json both = without(llama(), "rope_theta");
  both["rope_parameters"] = json::parse(R"({"rope_type":"default","rope_theta":70000.0})");
  CHECK(parse(with(both, "rope_scaling", nullptr)).rope.theta == 70000.0);
  CHECK(parse(with(both, "rope_scaling", json::object())).rope.theta == 70000.0);
  CHECK(contains(refusal(with(both, "rope_scaling", json::parse(R"({"rope_type":"yarn","factor":4.0})"))),
                 "RoPE scaling 'yarn' is not supported"));
  json linear = with(both, "rope_scaling", json::parse(R"({"rope_type":"linear","factor":4.0})"));
  CHECK(parse(linear).rope.factor == 4.0);
  CHECK(parse(linear).rope.theta == 10000.0);  // nothing of rope_parameters is left
  CHECK(parse(linear).max_position == 2048);
  CHECK(parse(with(linear, "rope_theta", 60000.0)).rope.theta == 60000.0);
  // Gemma: only the global layers' object is changed.
  json g = with(gemma(), "rope_parameters", json::parse(R"({"full_attention":{"rope_theta":5e5},
      "sliding_attention":{"rope_theta":2e4}})"));
  const ModelConfig m = parse(with(g, "rope_scaling", json::parse(R"({"rope_type":"linear","factor":8.0})")));
  CHECK((m.rope.theta == 5e5 && m.rope.factor == 8.0));
  CHECK((m.rope_local.theta == 2e4 && m.rope_local.factor == 1.0));
}

TEST_CASE("hf_config: Mistral, with a window on every layer unless it is null") {
  json c = without(qwen("mistral"), "num_key_value_heads");
  c["num_attention_heads"] = 16;
  const ModelConfig m = parse(c);
  CHECK(m.architecture == "mistral");
  CHECK(m.KVH == 8);
  CHECK(m.sliding_window == 4096);
  CHECK(m.sliding == std::vector<bool>{true, true});
  CHECK(m.rope_local.theta == 50000.0);
  CHECK((!m.qkv_bias && !m.qk_norm && !m.tied && m.no_rope.empty()));
  CHECK(parse(with(c, "num_key_value_heads", nullptr)).KVH == 16);
  CHECK(parse(without(c, "max_position_embeddings")).max_position == 131072);
  CHECK(parse(with(c, "sliding_window", 24)).sliding_window == 24);
  CHECK(parse(with(c, "sliding_window", nullptr)).sliding_window == 0);
  CHECK(parse(with(c, "sliding_window", nullptr)).sliding.empty());
  CHECK(contains(refusal(with(c, "sliding_window", -1)), "'sliding_window' is -1"));
  CHECK(contains(refusal(with(c, "layer_types", {"full_attention", "sliding_attention"})), "'layer_types'"));
}

TEST_CASE("hf_config: SmolLM3, whose layers without RoPE are listed or every n-th") {
  json c = with(without(qwen("smollm3"), "tie_word_embeddings"), "num_hidden_layers", 5);
  const ModelConfig m = parse(c);
  CHECK(m.no_rope == std::vector<bool>{false, false, false, true, false});
  CHECK((m.tied && m.sliding_window == 0 && m.KVH == 2));
  CHECK(parse(without(without(c, "rope_theta"), "num_key_value_heads")).rope.theta == 2e6);
  CHECK(parse(without(c, "num_key_value_heads")).KVH == 4);
  CHECK(parse(with(c, "no_rope_layer_interval", 2)).no_rope ==
        std::vector<bool>{false, true, false, true, false});
  json list = with(c, "no_rope_layers", {1, 0, 1, 1, 0, 0});  // longer is allowed
  CHECK(parse(list).no_rope == std::vector<bool>{false, true, false, false, true});
  CHECK(parse(with(c, "no_rope_layers", {true, false, true, true, true})).no_rope[1]);
  list["use_sliding_window"] = true;
  CHECK(parse(list).sliding_window == 0);
  list["sliding_window"] = 24;
  CHECK(parse(list).sliding_window == 24);
  CHECK(parse(list).sliding == parse(list).no_rope);
  CHECK(contains(refusal(with(c, "no_rope_layers", {1, 0})), "'no_rope_layers' is not a list of 5 layers"));
  CHECK(contains(refusal(with(c, "no_rope_layers", {1, 0, 1, 1, "x"})), "not 0 or 1"));
  CHECK(contains(refusal(with(c, "no_rope_layer_interval", 0)), "'no_rope_layer_interval' is 0"));
}

TEST_CASE("hf_config: what other families' keys would change is refused where nano does not apply it") {
  for (const char* key : {"use_sliding_window", "qk_layernorm", "parallel_attn", "alibi"}) {
    CAPTURE(key);
    CHECK(contains(refusal(with(llama(), key, true)),
                   std::string("'") + key + "' is set, which is not supported for llama"));
    CHECK(parse(with(llama(), key, false)).architecture == "llama");
    CHECK(parse(with(llama(), key, nullptr)).architecture == "llama");
  }
  for (const char* key : {"embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale"}) {
    CAPTURE(key);
    CHECK(contains(refusal(with(llama(), key, 0.5)), key));
    CHECK(parse(with(llama(), key, 1)).architecture == "llama");
  }
  for (const char* key : {"num_local_experts", "n_routed_experts", "clip_qkv", "attention_multiplier"}) {
    CAPTURE(key);
    CHECK(contains(refusal(with(llama(), key, 8)), key));
    CHECK(parse(with(llama(), key, 0)).architecture == "llama");
  }
  CHECK(contains(refusal(with(llama(), "no_rope_layers", {1, 0})), "'no_rope_layers'"));
  CHECK(contains(refusal(with(qwen("mistral"), "attention_bias", true)), "not supported for mistral"));
  CHECK(contains(refusal(with(qwen("qwen3"), "mlp_bias", true)), "not supported for qwen3"));
}

TEST_CASE("hf_config: -1 is no special token, and a dtype may be written as torch does") {
  CHECK(parse(with(with(llama(), "eos_token_id", -1), "bos_token_id", -1)).L == 2);
  CHECK(parse(with(llama(), "eos_token_id", json::parse("[7,-1]"))).L == 2);
  CHECK(parse(with(llama(), "torch_dtype", "torch.float32")).dtype == DType::f32);
  CHECK(parse(with(llama(), "torch_dtype", "torch.float16")).dtype == DType::f16);
  CHECK(contains(refusal(with(llama(), "torch_dtype", "torch.float64")), "'float64'"));
}

TEST_CASE("hf_config: linear RoPE scaling stretches the position limit") {
  const json scaling = json::parse(R"({"rope_type":"linear","factor":4.0})");
  const ModelConfig m = parse(with(llama(), "rope_scaling", scaling));
  CHECK(m.rope.factor == 4.0);
  CHECK(!m.rope.llama3);
  CHECK(m.max_position == 2048);
  const ModelConfig g = parse(with(with(gemma(), "rope_scaling", scaling), "max_position_embeddings", 512));
  CHECK(g.rope.factor == 4.0);
  CHECK(g.rope_local.factor == 1.0);  // only global layers are scaled
  CHECK(g.max_position == 512);       // Gemma's files state the stretched limit
}

TEST_CASE("hf_config: Gemma 3, flat and nested, pattern and list") {
  const ModelConfig g = parse(gemma());
  CHECK(g.architecture == "gemma3");
  CHECK((g.qk_norm && g.sandwich_norms && g.tied && !g.qkv_bias));
  CHECK(g.activation == Activation::gelu_tanh);
  CHECK(close(g.embedding_scale, 8.0));
  CHECK(close(g.attention_scale, 0.1));  // 100^-½
  CHECK(g.rope.theta == 1e6);
  CHECK(g.rope_local.theta == 1e4);
  CHECK(g.sliding_window == 16);
  CHECK(g.sliding == std::vector<bool>{true, true, false, true, true, false});
  CHECK(parse(without(gemma(), "sliding_window_pattern")).sliding ==
        std::vector<bool>{true, true, true, true, true, false});

  json list = without(gemma(), "sliding_window_pattern");
  list["layer_types"] = {"full_attention",    "sliding_attention", "full_attention",
                         "sliding_attention", "sliding_attention", "full_attention"};
  list["rope_parameters"] =
      json::parse(R"({"full_attention":{"rope_type":"linear","factor":8.0,"rope_theta":5e5},
                                            "sliding_attention":{"rope_type":"default","rope_theta":2e4}})");
  const ModelConfig l = parse(list);
  CHECK(l.sliding == std::vector<bool>{false, true, false, true, true, false});
  CHECK(l.rope.theta == 5e5);
  CHECK(l.rope.factor == 8.0);
  CHECK(l.rope_local.theta == 2e4);
  CHECK(l.rope_local.factor == 1.0);

  json outer = json::parse(R"({"model_type":"gemma3","torch_dtype":"bfloat16","eos_token_id":[1,106]})");
  outer["text_config"] = json::parse(
      R"({"model_type":"gemma3_text","eos_token_id":1,"hidden_size":2560,"intermediate_size":10240,
      "num_hidden_layers":34,"sliding_window":1024,"rope_scaling":{"factor":8.0,"rope_type":"linear"}})");
  const ModelConfig n = parse(outer);
  CHECK(n.H == 8);  // what nested files leave out
  CHECK(n.KVH == 4);
  CHECK(n.D == 256);
  CHECK(n.V == 262208);
  CHECK(n.dtype == DType::bf16);
  CHECK(n.rope.factor == 8.0);
}

TEST_CASE("hf_config: sliding windows of Qwen") {
  json c = with(with(qwen("qwen2"), "sliding_window", 32), "max_window_layers", 1);
  CHECK(parse(c).sliding_window == 0);  // use_sliding_window is not set
  c["use_sliding_window"] = true;
  const ModelConfig m = parse(c);
  CHECK(m.sliding_window == 32);
  CHECK(m.sliding == std::vector<bool>{false, true});
  CHECK(m.rope_local.theta == m.rope.theta);
  CHECK(parse(with(c, "max_window_layers", 2)).sliding_window == 0);  // no layer is left
  json types = with(qwen("qwen3"), "layer_types", {"full_attention", "full_attention"});
  CHECK(parse(types).sliding_window == 0);
  CHECK(contains(refusal(with(types, "layer_types", {"full_attention", "sliding_attention"})),
                 "'sliding_window'"));
  CHECK(contains(refusal(with(types, "layer_types", {"full_attention", "linear_attention"})),
                 "'linear_attention'"));
  CHECK(contains(refusal(with(types, "layer_types", {"full_attention"})), "2 layers"));
}

TEST_CASE("hf_config: what is not supported is refused by name") {
  struct Row {
    const char* key;
    const char* value;
    const char* message;
  };
  const Row rows[] = {
      {"model_type", "\"mixtral\"",
       "unsupported architecture 'mixtral' (known: llama, mistral, qwen2, qwen3, gemma3, smollm3)"},
      {"hidden_act", "\"relu\"", "'relu'"},
      {"hidden_act", "\"gelu\"", "'gelu'"},
      {"rope_scaling", R"({"rope_type":"yarn","factor":4.0})", "'yarn'"},
      {"rope_scaling", R"({"type":"dynamic","factor":4.0})", "'dynamic'"},
      {"rope_scaling", R"({"rope_type":"longrope"})", "'longrope'"},
      {"rope_scaling", R"({"rope_type":"linear"})", "'factor' is missing"},
      {"rope_scaling", R"({"rope_type":"llama3","factor":8})", "'low_freq_factor' is missing"},
      {"rope_scaling", "3", "not an object"},
      {"partial_rotary_factor", "0.5", "'partial_rotary_factor'"},
      {"final_logit_softcapping", "30.0", "'final_logit_softcapping'"},
      {"attn_logit_softcapping", "50.0", "'attn_logit_softcapping'"},
      {"use_bidirectional_attention", "true", "'use_bidirectional_attention'"},
      {"torch_dtype", "\"float64\"", "'float64'"},
      {"quantization_config", R"({"quant_method":"awq","bits":4})",
       "quantised with 'awq': not supported yet"},
      {"quantization_config", R"({"bits":4})", "quantised with 'an unnamed method'"},
      {"compression_config", R"({"quant_method":"compressed-tensors"})", "'compressed-tensors'"},
      {"hidden_size", "\"128\"", "'hidden_size' is not an integer"},
      {"hidden_size", "4294967296", "'hidden_size' is 4294967296, outside 1 … 16777216"},
      {"hidden_size", "18446744073709551615", "'hidden_size' is 9223372036854775807, outside"},
      {"hidden_size", "130", "'hidden_size' is 130, not a multiple of 4 heads"},
      {"hidden_size", "0", "'hidden_size' is 0, outside"},
      {"hidden_size", "-128", "'hidden_size' is -128, outside"},
      {"num_hidden_layers", "2000000000", "'num_hidden_layers' is 2000000000, outside 1 … 10000"},
      {"num_attention_heads", "0", "'num_attention_heads' is 0, outside"},
      {"num_key_value_heads", "3", "not a multiple of 3 key/value heads"},
      {"head_dim", "33", "odd"},
      {"head_dim", "0", "'head_dim' is 0, outside"},
      {"max_position_embeddings", "0", "'max_position_embeddings' is 0, outside"},
      {"rms_norm_eps", "0.0", "'rms_norm_eps' is 0, not a positive finite number"},
      {"rms_norm_eps", "-1e-6", "'rms_norm_eps' is -1e-06"},
      {"rms_norm_eps", "1e-60", "'rms_norm_eps' is 1e-60"},  // 0 as a float
      {"rope_theta", "-1.0", "'rope_theta' is -1, not a positive finite number"},
      {"rope_theta", "1e300", "'rope_theta' is 1e+300"},  // infinite as a float
      {"rope_scaling", R"({"rope_type":"linear","factor":0})", "'factor' is 0"},
      {"rope_scaling", R"({"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":1,
        "original_max_position_embeddings":64})",
       "'high_freq_factor' must be above 'low_freq_factor'"},
      {"rope_scaling", R"({"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,
        "original_max_position_embeddings":0})",
       "'original_max_position_embeddings' is 0, outside"},
      {"bos_token_id", "-3", "'bos_token_id' is '-3', which is no token id"},
      {"eos_token_id", "\"x\"", "'eos_token_id' is"},
      {"eos_token_id", "[7,-2]", "'eos_token_id' is '-2'"},
      {"tie_word_embeddings", "1", "'tie_word_embeddings' is not true or false"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.key);
    CAPTURE(row.value);
    const std::string message = refusal(with(llama(), row.key, json::parse(row.value)));
    CAPTURE(message);
    CHECK(contains(message, row.message));
    CHECK(contains(message, "config.json"));
  }
  CHECK(contains(refusal(without(llama(), "vocab_size")), "'vocab_size' is missing"));
  CHECK(contains(refusal(without(llama(), "model_type")), "'model_type' is missing"));
  CHECK(contains(refusal(json::array()), "not a JSON object"));
  CHECK(contains(refusal(with(gemma(), "query_pre_attn_scalar", -1)), "'query_pre_attn_scalar' is -1"));
  CHECK(contains(refusal(with(gemma(), "rope_local_base_freq", 0)), "'rope_local_base_freq' is 0"));
  CHECK(contains(refusal(with(gemma(), "sliding_window", 0)), "'sliding_window' is 0"));
}

TEST_CASE("hf_config: the quantisation method is named, also when it stands in a file of its own") {
  CHECK(contains(
      error_of([&] { read_hf_config(data_path("golden/checkpoints/llama-gptq-4b-g64/config.json")); }),
      "quantised with 'gptq': not supported yet"));
  const TempDir dir;
  write_bytes(dir.file("config.json"), llama().dump());
  write_bytes(dir.file("quant_config.json"), R"({"w_bit":4,"q_group_size":128})");
  CHECK(contains(error_of([&] { read_hf_config(dir.file("config.json")); }), "'awq'"));
  std::filesystem::remove(dir.file("quant_config.json"));
  write_bytes(dir.file("quantize_config.json"), R"({"bits":4,"desc_act":false})");
  CHECK(contains(error_of([&] { read_hf_config(dir.file("config.json")); }), "'gptq'"));
}
