// checkpoint/weights_gguf.cpp: what the keys of a GGUF file mean, on a model of one layer made here.
#include <cmath>
#include <string>
#include <vector>

#include "catch.h"
#include "checkpoint/weights.h"
#include "checkpoint_files.h"  // TempDir, GgufBuilder, error_of

using namespace nano;
using namespace nano_test;

namespace {

std::string floats(int64_t count, float start) {
  std::string out;
  for (int64_t i = 0; i < count; ++i) out += raw(start + float(i));
  return out;
}

// hidden 8, ffn 6, 2 heads and 1 key/value head of D, 5 tokens; every element of a tensor is different.
struct Micro {
  std::string arch = "llama";
  GgufBuilder b;
  TempDir dir;

  explicit Micro(const std::string& name, int64_t layers = 1, uint32_t D = 4) : arch(name) {
    b.kvs = {gguf_text("general.architecture", arch),
             u32("block_count", uint32_t(layers)),
             u32("context_length", 64),
             u32("embedding_length", 8),
             u32("feed_forward_length", 6),
             u32("attention.head_count", 2),
             u32("attention.head_count_kv", 1),
             gguf_f32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f)};
    if (D != 4) add_key(u32("attention.key_length", D));
    if (D != 4) add_key(u32("attention.value_length", D));
    add("token_embd.weight", {8, 5});
    add("output_norm.weight", {8});
    for (int64_t i = 0; i < layers; ++i) {
      const std::string blk = "blk." + std::to_string(i) + ".";
      add(blk + "attn_q.weight", {8, 2 * D});
      add(blk + "attn_k.weight", {8, D});
      add(blk + "attn_v.weight", {8, D});
      add(blk + "attn_output.weight", {2 * D, 8});
      add(blk + "ffn_gate.weight", {8, 6});
      add(blk + "ffn_up.weight", {8, 6});
      add(blk + "ffn_down.weight", {6, 8});
      for (const char* norm : {"attn_norm", "ffn_norm"}) add(blk + norm + ".weight", {8});
      if (arch != "gemma3") continue;
      for (const char* norm : {"attn_q_norm", "attn_k_norm"}) add(blk + norm + ".weight", {4});
      for (const char* norm : {"post_attention_norm", "post_ffw_norm"}) add(blk + norm + ".weight", {8});
    }
  }
  std::string u32(const std::string& key, uint32_t value) const { return gguf_u32(arch + "." + key, value); }
  void add(const std::string& name, const std::vector<uint64_t>& dims, float start = 0) {
    int64_t count = 1;
    for (uint64_t d : dims) count *= int64_t(d);
    b.add(name, dims, 0, floats(count, start));
  }
  void add_key(const std::string& kv) { b.kvs.push_back(kv); }
  void replace(const std::string& key, const std::string& kv) {
    for (std::string& old : b.kvs)
      if (old.compare(0, 8 + key.size(), gguf_string(key)) == 0) old = kv;
  }
  std::unique_ptr<Weights> open() {
    write_bytes(dir.file("micro.gguf"), b.build());
    return open_weights(dir.file("micro.gguf"), false, 0);
  }
  std::string error() {
    return error_of([&] { open(); });
  }
};

}  // namespace

TEST_CASE("weights_gguf: defaults when keys are absent") {
  Micro m("llama");
  const std::unique_ptr<Weights> w = m.open();
  const ModelConfig& c = w->config;
  CHECK((c.L == 1 && c.C == 8 && c.F == 6 && c.H == 2 && c.KVH == 1 && c.D == 4 && c.V == 5));
  CHECK(c.rope.theta == 10000.0);
  CHECK(c.rope.factor == 1.0);
  CHECK(c.rope.freq_divisors.empty());
  CHECK((c.tied && !c.qkv_bias && !c.o_bias && !c.mlp_bias));
  CHECK(c.dtype == DType::f32);
  CHECK(w->quantization.empty());
  CHECK(!w->has("lm_head"));
}

TEST_CASE("Q6 weights_gguf: biases of q and k move with their rows, those of v stay") {
  for (const char* arch : {"llama", "qwen2"}) {
    CAPTURE(arch);
    Micro m(arch, 1, 6);  // with heads of 4 the order would be its own inverse
    m.add("blk.0.attn_q.bias", {12}, 10);
    m.add("blk.0.attn_k.bias", {6}, 30);
    m.add("blk.0.attn_v.bias", {6}, 40);
    const std::unique_ptr<Weights> w = m.open();
    CHECK(w->config.qkv_bias);
    const bool llama = std::string(arch) == "llama";
    const std::vector<float> q = llama ? std::vector<float>{10, 12, 14, 11, 13, 15, 16, 18, 20, 17, 19, 21}
                                       : std::vector<float>{10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21};
    const std::vector<float> k =
        llama ? std::vector<float>{30, 32, 34, 31, 33, 35} : std::vector<float>{30, 31, 32, 33, 34, 35};
    CHECK(w->linear("0.q").bias == q);
    CHECK(w->linear("0.k").bias == k);
    CHECK(w->linear("0.v").bias == std::vector<float>{40, 41, 42, 43, 44, 45});
    std::vector<float> row(8);
    decode_rows(w->linear("0.q"), 1, 1, row.data());
    CHECK(row[0] == (llama ? 16.0f : 8.0f));  // file row 2, or 1
  }
}

TEST_CASE("weights_gguf: RoPE keys and the divisors of Llama 3") {
  {
    Micro m("llama");
    m.add_key(gguf_f32("llama.rope.freq_base", 5e5f));
    m.add_key(gguf_text("llama.rope.scaling.type", "linear"));
    m.add_key(gguf_f32("llama.rope.scaling.factor", 4.0f));
    m.add("rope_freqs.weight", {2}, 1);
    const std::unique_ptr<Weights> w = m.open();
    CHECK(w->config.rope.theta == 5e5);
    CHECK(w->config.rope.factor == 4.0);
    CHECK(w->config.rope.freq_divisors == std::vector<float>{1, 2});
    CHECK(w->unused_tensors.empty());
  }
  struct Row {
    std::string kv, message;
  };
  const Row rows[] = {
      {gguf_text("llama.rope.scaling.type", "yarn"), "'yarn'"},
      {gguf_u32("llama.rope.dimension_count", 2), "partial rotation"},
      {gguf_u32("llama.attention.value_length", 8), "values of length 8"},
      {gguf_f32("llama.rope.freq_base", 0.0f), "'llama.rope.freq_base' is 0, not a positive finite number"},
      {gguf_f32("llama.rope.freq_base", INFINITY), "'llama.rope.freq_base' is inf"},
      {gguf_f32("llama.rope.freq_base", NAN), "'llama.rope.freq_base' is nan"},
      {gguf_f32("llama.rope.scaling.factor", -2.0f), "'llama.rope.scaling.factor' is -2"},
      {gguf_f32("llama.rope.scaling.factor", NAN), "'llama.rope.scaling.factor' is nan"},
      {gguf_u32("llama.vocab_size", 4), "'llama.vocab_size' is 4, but tensor 'token_embd.weight' has 5 rows"},
      {gguf_u32("llama.attention.key_length", 0), "'llama.attention.key_length' is 0, outside"},
      {gguf_f32("llama.final_logit_softcapping", 30.0f), "final_logit_softcapping"},
      {gguf_u32("llama.attention.key_length", 3), "odd"}};
  for (const Row& row : rows) {
    Micro m("llama");
    m.add_key(row.kv);
    const std::string message = m.error();
    CAPTURE(message);
    CHECK(contains(message, row.message));
  }
  Micro zero("llama");
  zero.add("rope_freqs.weight", {2}, 0);
  CHECK(contains(zero.error(), "'rope_freqs.weight' is 0, not a positive finite number"));
  for (const float eps : {0.0f, -1e-5f, NAN, INFINITY}) {
    Micro m("llama");
    m.replace("llama.attention.layer_norm_rms_epsilon",
              gguf_f32("llama.attention.layer_norm_rms_epsilon", eps));
    CHECK(contains(m.error(), "'llama.attention.layer_norm_rms_epsilon' is "));
  }
  Micro wrong("llama");
  wrong.add("rope_freqs.weight", {3}, 1);
  CHECK(contains(wrong.error(), "'rope_freqs.weight' is not 2 float32 values"));
}

TEST_CASE("weights_gguf: keys that would change the arithmetic are refused by name, unless they are off") {
  struct Row {
    const char* key;
    float off, on;
  };
  const Row rows[] = {{"attention.scale", 0, 0.5f},       {"attention.clamp_kqv", 0, 8},
                      {"attention.max_alibi_bias", 0, 8}, {"logit_scale", 1, 0.25f},
                      {"residual_scale", 0, 0.5f},        {"embedding_scale", 1, 12},
                      {"rope.scaling.attn_factor", 1, 2}, {"attn_logit_softcapping", 0, 50},
                      {"final_logit_softcapping", 0, 30}, {"attention.temperature_scale", 0, 0.1f}};
  for (const char* arch : {"llama", "qwen2", "gemma3", "smollm3", "mistral3"})
    for (const Row& row : rows)
      for (const bool on : {false, true}) {
        const std::string key = std::string(arch) + "." + row.key;
        CAPTURE(key);
        Micro m(arch);
        if (m.arch == "gemma3") m.add_key(m.u32("attention.sliding_window", 12));
        m.add_key(gguf_f32(key, on ? row.on : row.off));
        const std::string message = m.error();
        CAPTURE(message);
        CHECK(message.empty() == !on);
        CHECK((!on || contains(message, "'" + key + "' is ")));
      }
  Micro experts("llama");
  experts.add_key(experts.u32("expert_count", 8));
  experts.b.infos.pop_back();  // its tensors have other names, but that is not what is wrong
  CHECK(contains(experts.error(),
                 "'llama.expert_count' is 8, which is not supported for llama (it is a mixture"));
  Micro dense("llama");
  dense.add_key(dense.u32("expert_count", 0));
  CHECK(dense.error() == "");
  Micro both_ways("llama");  // sees what follows, as an encoder does
  both_ways.add_key(gguf_kv("llama.attention.causal", 7, std::string("\0", 1)));
  CHECK(contains(both_ways.error(), "'llama.attention.causal' is 0"));
  Micro windowed("qwen2");
  windowed.add_key(windowed.u32("attention.sliding_window", 16));
  CHECK(contains(windowed.error(), "'qwen2.attention.sliding_window' is 16"));
}

TEST_CASE("weights_gguf: tensors in a layer that its architecture does not have are refused by name") {
  for (const char* name : {"blk.0.attn_sinks.weight", "blk.0.attn_k.bias", "blk.0.attn_q_norm.weight"}) {
    Micro m("llama");  // a bias of k without one of q
    m.add(name, {4});
    const std::string message = m.error();
    CAPTURE(message);
    CHECK(
        contains(message, std::string("'") + name + "' is not supported: this is another variant of llama"));
  }
}

TEST_CASE("weights_gguf: Mistral's window is on every layer, SmolLM3 has RoPE on three of four") {
  for (const char* arch : {"llama", "mistral3"}) {
    CAPTURE(arch);
    Micro m(arch, 3);
    m.add_key(m.u32("attention.sliding_window", 12));
    m.add_key(gguf_f32(m.arch + ".rope.freq_base", 5e5f));
    const std::unique_ptr<Weights> w = m.open();
    CHECK(w->config.architecture == (m.arch == "llama" ? "llama" : "mistral"));
    CHECK(w->config.sliding_window == 12);
    CHECK(w->config.sliding == std::vector<bool>{true, true, true});
    CHECK(w->config.rope_local.theta == 5e5);
    CHECK(w->linear("0.q").rope_interleaved_dim == 4);
    Micro off(arch, 3);
    off.add_key(off.u32("attention.sliding_window", 0));
    CHECK(off.open()->config.sliding_window == 0);
  }
  Micro smol("smollm3", 9);
  const std::unique_ptr<Weights> w = smol.open();
  CHECK(w->config.no_rope == std::vector<bool>{false, false, false, true, false, false, false, true, false});
  CHECK(w->linear("8.k").rope_interleaved_dim == 4);
  CHECK(w->linear("3.k").rope_interleaved_dim == 4);  // its rows are permuted all the same
}

TEST_CASE("weights_gguf: keys that are missing, of another type or per layer") {
  for (const char* key : {"block_count", "context_length", "embedding_length", "feed_forward_length",
                          "attention.head_count", "attention.layer_norm_rms_epsilon"}) {
    Micro m("llama");
    m.replace(std::string("llama.") + key, gguf_u32(std::string("other.") + key, 1));
    const std::string message = m.error();
    CAPTURE(message);
    CHECK(contains(message, std::string("'llama.") + key + "' is missing"));
  }
  Micro text("llama");
  text.replace("llama.block_count", gguf_text("llama.block_count", "1"));
  CHECK(contains(text.error(), "'llama.block_count' is string, not an integer"));
  Micro negative("llama");
  negative.replace("llama.block_count", gguf_kv("llama.block_count", 5, raw(int32_t(-1))));
  CHECK(contains(negative.error(), "'llama.block_count' is -1, outside 1 … 10000"));
  Micro wide("llama");  // u64 is as good as u32
  wide.replace("llama.block_count", gguf_kv("llama.block_count", 10, raw(uint64_t(1))));
  CHECK(wide.error() == "");
  Micro same("llama");
  same.replace("llama.attention.head_count", gguf_array("llama.attention.head_count", 5, 2, raw(2) + raw(2)));
  CHECK(same.error() == "");
  Micro mixed("llama");
  mixed.replace("llama.attention.head_count",
                gguf_array("llama.attention.head_count", 5, 2, raw(2) + raw(1)));
  CHECK(contains(mixed.error(), "differs from layer to layer"));
  Micro none("llama");
  none.replace("llama.attention.head_count", gguf_u32("llama.attention.head_count", 0));
  CHECK(contains(none.error(), "head_count"));
  Micro vocabulary("llama");
  vocabulary.b.infos.clear();
  CHECK(contains(vocabulary.error(), "a vocabulary but no weights"));
}

TEST_CASE("weights_gguf: sliding layers of Gemma 3 by default, number and list") {
  auto sliding = [](const std::string& kv) {
    Micro m("gemma3", 7);
    m.add_key(gguf_u32("gemma3.attention.sliding_window", 12));
    if (!kv.empty()) m.add_key(kv);
    return m.open()->config.sliding;
  };
  const std::string key = "gemma3.attention.sliding_window_pattern";
  CHECK(sliding("") == std::vector<bool>{true, true, true, true, true, false, true});
  CHECK(sliding(gguf_u32(key, 2)) == std::vector<bool>{true, false, true, false, true, false, true});
  CHECK(sliding(gguf_u32(key, 1)) == std::vector<bool>(7, false));
  CHECK(sliding(gguf_array(key, 7, 7, std::string("\0\1\1\0\0\1\1", 7))) ==
        std::vector<bool>{false, true, true, false, false, true, true});
  CHECK(contains(error_of([&] { sliding(gguf_array(key, 7, 2, std::string("\0\1", 2))); }),
                 "2 entries for 7 layers"));
  Micro bare("gemma3");
  CHECK(contains(bare.error(), "sliding_window"));
  Micro m("gemma3");
  m.add_key(gguf_u32("gemma3.attention.sliding_window", 12));
  const ModelConfig c = m.open()->config;
  CHECK(c.attention_scale == 0.5f);
  CHECK(c.embedding_scale == std::sqrt(8.0f));
  CHECK(c.rope_local.theta == 10000.0);
}

TEST_CASE("Q5 weights_gguf: fused q/k/v is named, unknown tensors are listed") {
  Micro fused("llama");
  for (GgufInfo& info : fused.b.infos)
    if (info.name == "blk.0.attn_q.weight") info.name = "blk.0.attn_qkv.weight";
  const std::string message = fused.error();
  CHECK(contains(message, "'blk.0.attn_q.weight' is missing"));
  CHECK(contains(message, "'blk.0.attn_qkv.weight' is not supported"));
  Micro extra("llama");
  extra.add("vision.weight", {2});
  extra.add("blk.1.attn_q.weight", {2});  // a layer that the keys do not count
  CHECK(extra.open()->unused_tensors == std::vector<std::string>{"vision.weight", "blk.1.attn_q.weight"});
  Micro headed("llama");
  headed.add("output.weight", {8, 5});
  CHECK(!headed.open()->config.tied);
  Micro quantised("llama");
  for (GgufInfo& info : quantised.b.infos)
    if (info.name == "token_embd.weight") info.dims = {40};
  CHECK(contains(quantised.error(), "'token_embd.weight' is not a matrix"));
}
