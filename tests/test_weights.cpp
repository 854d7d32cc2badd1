// checkpoint/weights.h and model/weights.h: whole checkpoints of every family and format, bit for bit, and the ways
// they can disagree with their config.
#include <cmath>
#include <cstring>
#include <string>
#include <unistd.h>
#include <vector>

#include <nlohmann/json.hpp>

#include "catch.h"
#include "checkpoint/gguf.h"
#include "checkpoint/tensor_names.h"  // model_tensors
#include "checkpoint/weights.h"
#include "checkpoint_files.h"  // TempDir, GgufBuilder, error_of
#include "sha256.h"

using namespace nano;
using namespace nano_test;
using nlohmann::json;

namespace {

const char* const kDense[] = {"llama-bf16", "qwen2-bf16",          "qwen3-bf16",   "gemma3-bf16",
                              "llama-fp32", "gemma3-fp32-sharded", "mistral-bf16", "smollm3-bf16"};
const char* const kGguf[] = {"gguf-llama/gguf-llama.Q4_0",     "gguf-llama/gguf-llama.Q5_1",
                             "gguf-llama/gguf-llama.Q8_0",     "gguf-llama-f16/gguf-llama-f16.F16",
                             "gguf-llama-k/gguf-llama-k.Q2_K", "gguf-llama-k/gguf-llama-k.Q4_K_M",
                             "gguf-qwen3/gguf-qwen3.Q8_0",     "gguf-gemma3/gguf-gemma3.Q4_0",
                             "gguf-mistral/gguf-mistral.BF16", "gguf-smollm3/gguf-smollm3.BF16"};

std::string checkpoint(const std::string& name) { return data_path("golden/checkpoints/" + name); }
std::unique_ptr<Weights> open(const std::string& path) { return open_weights(path, false, 0); }
std::string open_error(const std::string& path) {
  return error_of([&] { open(path); });
}

std::vector<float> decoded(const QuantLinear& w) {
  std::vector<float> out(size_t(w.N * w.K));
  decode_rows(w, 0, w.N, out.data());
  return out;
}
std::string hash_of(const std::vector<float>& v) { return sha256(v.data(), v.size() * 4); }

// Replaces the only (or first) occurrence in a file of the directory.
void patch(const TempDir& dir, const std::string& file, const std::string& from, const std::string& to) {
  std::string text = read_bytes(dir.file(file));
  const size_t at = text.find(from);
  REQUIRE(at != text.npos);
  write_bytes(dir.file(file), text.replace(at, from.size(), to));
}

// A safetensors file with a changed header over the same data.
void edit_header(const TempDir& dir, void (*edit)(json&)) {
  const std::string path = dir.file("model.safetensors"), text = read_bytes(path);
  uint64_t length;
  std::memcpy(&length, text.data(), 8);
  json header = json::parse(text.substr(8, length));
  edit(header);
  write_bytes(path, safetensors(header.dump(), text.substr(8 + length)));
}

}  // namespace

TEST_CASE("sha256: the vectors of FIPS 180-4") {
  CHECK(sha256("abc", 3) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256("", 0) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256(std::string(1000, 'a').data(), 1000) ==
        "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3");
}

TEST_CASE("weights: every matrix of every dense checkpoint has the golden hash") {
  const json golden = json::parse(read_bytes(checkpoint("dense_sha256.json")));
  for (const char* name : kDense) {
    CAPTURE(name);
    const std::unique_ptr<Weights> w = open(checkpoint(name));
    const bool gemma = w->config.architecture == "gemma3";
    CHECK(w->format == "safetensors");
    CHECK(w->quantization.empty());
    CHECK(w->unused_tensors.empty());
    size_t checked = 0;
    for (const ModelTensor& t : model_tensors(w->config)) {
      CAPTURE(t.name);
      if (t.K != 0) CHECK(hash_of(decoded(w->linear(t.name))) == golden[name][t.hf + ".weight"]);
      if (t.K == 0 && !gemma) CHECK(hash_of(w->vector(t.name)) == golden[name][t.hf + ".weight"]);
      if (t.bias) CHECK(hash_of(w->linear(t.name).bias) == golden[name][t.hf + ".bias"]);
      checked += t.bias ? 2 : 1;
    }
    CHECK(checked == golden[name].size());
  }
}

TEST_CASE("weights: every matrix of every GGUF checkpoint has the golden hash") {
  for (const char* name : kGguf) {
    CAPTURE(name);
    const json golden = json::parse(read_bytes(checkpoint(std::string(name) + ".golden.json")))["sha256"];
    const std::unique_ptr<Weights> w = open(checkpoint(std::string(name) + ".gguf"));
    CHECK(w->format == "GGUF");
    CHECK(w->unused_tensors.empty());
    size_t checked = 0;
    for (const ModelTensor& t : model_tensors(w->config)) {
      if (t.K == 0) continue;
      CAPTURE(t.name);
      CHECK(hash_of(decoded(w->linear(t.name))) == golden[t.hf + ".weight"]);
      CHECK(!w->linear(t.name).owned);  // a view of the file
      ++checked;
    }
    CHECK(checked == golden.size());
  }
}

TEST_CASE("weights: GGUF configs of three families") {
  const ModelConfig l = open(checkpoint("gguf-llama/gguf-llama.Q4_0.gguf"))->config;
  CHECK(l.architecture == "llama");
  CHECK((l.L == 1 && l.C == 128 && l.F == 256 && l.H == 4 && l.KVH == 2 && l.D == 32 && l.V == 384));
  CHECK(l.max_position == 512);
  CHECK(l.norm_eps == 1e-5f);
  CHECK(l.tied);
  CHECK(l.rope.theta == 10000.0);
  const ModelConfig q = open(checkpoint("gguf-qwen3/gguf-qwen3.Q8_0.gguf"))->config;
  CHECK((q.qk_norm && !q.sandwich_norms && q.D == 64 && q.H == 3 && q.KVH == 1 && q.rope.theta == 1e6));
  const ModelConfig g = open(checkpoint("gguf-gemma3/gguf-gemma3.Q4_0.gguf"))->config;
  CHECK((g.qk_norm && g.sandwich_norms && g.activation == Activation::gelu_tanh));
  CHECK(g.sliding_window == 16);
  CHECK(g.sliding == std::vector<bool>{true, true, false});
  CHECK((g.rope.theta == 1e6 && g.rope_local.theta == 1e4));
  CHECK(g.embedding_scale == 8.0f);
  CHECK(g.attention_scale == 0.125f);
}

TEST_CASE("Q6 a GQA model gives the same matrices as safetensors and as GGUF") {
  const std::unique_ptr<Weights> hf = open(checkpoint("llama-fp32"));
  const std::unique_ptr<Weights> gguf = open(checkpoint("gguf-llama-f16/gguf-llama-f16.F16.gguf"));
  REQUIRE(hf->config.H == 4);
  REQUIRE(hf->config.KVH == 2);
  CHECK(gguf->linear("0.q").rope_interleaved_dim == 16);
  CHECK(gguf->linear("0.k").rope_interleaved_dim == 16);
  CHECK(gguf->linear("0.v").rope_interleaved_dim == 0);
  for (const ModelTensor& t : model_tensors(hf->config)) {
    CAPTURE(t.name);
    if (t.K == 0) {
      CHECK(hf->vector(t.name) == gguf->vector(t.name));
      continue;
    }
    std::vector<float> a = decoded(hf->linear(t.name));
    for (float& x : a) x = f16_to_f32(f32_to_f16(x));  // the GGUF file is float16
    CHECK(a == decoded(gguf->linear(t.name)));
  }
}

TEST_CASE("weights: Gemma's norms are 1 + w in both formats") {
  const std::unique_ptr<Weights> hf = open(checkpoint("gemma3-bf16"));
  const std::string file = read_bytes(checkpoint("gemma3-bf16/model.safetensors"));
  uint64_t length;
  std::memcpy(&length, file.data(), 8);
  const json header = json::parse(file.substr(8, length));
  const int64_t at = header["model.norm.weight"]["data_offsets"][0];
  const std::vector<float> norm = hf->vector("final_norm");
  for (int64_t i = 0; i < 64; ++i)
    CHECK(norm[size_t(i)] == 1.0f + load_f32(file.data() + 8 + length + at, DType::bf16, i));
  const std::unique_ptr<Weights> gguf = open(checkpoint("gguf-gemma3/gguf-gemma3.Q4_0.gguf"));
  double mean = 0;
  for (float x : gguf->vector("final_norm")) mean += x / 64;
  CHECK(std::fabs(mean - 1) <= 0.3);  // not 2: the file has the 1 already
}

TEST_CASE("weights: expanding to float32 keeps every value") {
  const std::unique_ptr<Weights> plain = open(checkpoint("gguf-llama-k/gguf-llama-k.Q4_K_M.gguf"));
  const std::unique_ptr<Weights> expanded = open(checkpoint("gguf-llama-k/gguf-llama-k.Q4_K_M.gguf"));
  CHECK(plain->quantization == "gguf");
  expanded->expand_to_float32();
  CHECK(expanded->quantization.empty());
  for (const auto& [name, w] : plain->linears()) {
    CAPTURE(name);
    const QuantLinear e = expanded->linear(name);
    CHECK((e.source == Source::dense && e.dtype == DType::f32 && e.rope_interleaved_dim == 0));
    CHECK(e.file_bytes() == expanded->linears().at(name).file_bytes());  // what the ledger is told before
    CHECK(decoded(e) == decoded(w));
    CHECK(e.owned.use_count() == 1);  // gone with the copy
  }
  CHECK((expanded->embedding().source == plain->linear("embed").source && !expanded->embedding().owned));
}

TEST_CASE("weights: dropped pages come back as they were") {
  for (const std::string& path : {checkpoint("llama-bf16"), checkpoint("gguf-llama/gguf-llama.Q8_0.gguf")}) {
    const std::unique_ptr<Weights> w = open(path);
    const std::vector<float> before = decoded(w->linear("embed"));
    w->drop_pages(w->linear("embed"));
    CHECK(decoded(w->linear("embed")) == before);
  }
}

TEST_CASE("weights: dummy weights have the shapes of the config, and depend on the seed only") {
  for (const char* name : {"llama-bf16", "gemma3-fp32-sharded", "qwen2-bf16"}) {
    CAPTURE(name);
    const std::unique_ptr<Weights> a = open_weights(checkpoint(name), true, 7);
    const std::unique_ptr<Weights> b = open_weights(checkpoint(std::string(name) + "/config.json"), true, 7);
    const std::unique_ptr<Weights> other = open_weights(checkpoint(name), true, 8);
    const std::unique_ptr<Weights> real = open(checkpoint(name));
    CHECK(a->format == "dummy");
    CHECK(a->linears().size() == real->linears().size());
    for (const auto& [key, described] : a->linears()) {
      CAPTURE(key);
      CHECK(described.data == nullptr);  // made when it is asked for, and only as long as it is used
      const QuantLinear w = a->linear(key);
      CHECK(w.owned.use_count() == 1);
      const std::vector<float> values = decoded(w);
      CHECK((w.N == real->linear(key).N && w.K == real->linear(key).K && w.dtype == real->linear(key).dtype));
      CHECK(values == decoded(b->linear(key)));
      CHECK(values != decoded(other->linear(key)));
      double sum = 0, squares = 0;
      for (float x : values) sum += x, squares += double(x) * x;
      const double n = double(values.size()), deviation = std::sqrt(squares / n);
      CHECK(std::fabs(sum / n) <= 5 * 0.02 / std::sqrt(n));           // five standard errors
      CHECK(std::fabs(deviation - 0.02) <= 5 * 0.02 / std::sqrt(n));  // its own error is 1/√(2n)
    }
    CHECK(a->vector("final_norm") == std::vector<float>(size_t(a->config.C), 1.0f));
    CHECK(decoded(a->linear("0.q")) != decoded(a->linear("0.o")));
  }
  CHECK(contains(error_of([] { open_weights(checkpoint("llama-gptq-4b-g64"), true, 0); }), "'gptq'"));
}

TEST_CASE("Q9 gguf: cut at 50 %, at 99 % and by one byte") {
  const TempDir dir;
  const std::string good = read_bytes(checkpoint("gguf-llama-f16/gguf-llama-f16.F16.gguf"));
  for (const size_t size : {good.size() / 2, good.size() * 99 / 100, good.size() - 1}) {
    write_bytes(dir.file("cut.gguf"), good.substr(0, size));
    const std::string message = open_error(dir.file("cut.gguf"));
    CAPTURE(message);
    CHECK(contains(message, "truncated: tensor '"));
    CHECK(contains(message,
                   "should have " + std::to_string(good.size()) + " bytes but has " + std::to_string(size)));
  }
}

TEST_CASE("Q9 gguf: an unknown architecture is called that") {
  const TempDir dir;
  write_bytes(dir.file("m.gguf"), read_bytes(checkpoint("gguf-llama/gguf-llama.Q4_0.gguf")));
  patch(dir, "m.gguf", gguf_string("llama"), gguf_string("lemma"));
  const std::string message = open_error(dir.file("m.gguf"));
  CHECK(contains(message,
                 "unsupported architecture 'lemma' (known: llama, mistral, qwen2, qwen3, gemma3, smollm3)"));
  CHECK(!contains(message, "truncated"));
}

TEST_CASE("Q9 no file: empty, a directory, unreadable, missing, a Git LFS pointer") {
  const TempDir dir;
  write_bytes(dir.file("empty.gguf"), "");
  CHECK(contains(open_error(dir.file("empty.gguf")), "empty"));
  CHECK(contains(open_error(dir.file("absent.gguf")), "absent.gguf"));
  CHECK(contains(open_error(std::string(5000, 'x')), "cannot open"));
  CHECK(contains(open_error(dir.path()), "config.json"));  // a directory without a model
  write_bytes(dir.file("pointer"), "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n");
  CHECK(contains(open_error(dir.file("pointer")), "Git LFS pointer"));
  write_bytes(dir.file("secret.gguf"), "GGUF");
  std::filesystem::permissions(dir.file("secret.gguf"), std::filesystem::perms::none);
  const std::string message = open_error(dir.file("secret.gguf"));
  CHECK(contains(message, geteuid() == 0 ? "truncated" : "cannot open"));  // root may read everything

  copy_checkpoint("llama-fp32", dir);
  write_bytes(dir.file("model.safetensors"), read_bytes(dir.file("pointer")));
  CHECK(contains(open_error(dir.path()), "Git LFS pointer"));
  std::filesystem::remove(dir.file("model.safetensors"));
  CHECK(contains(open_error(dir.path()), "model.safetensors"));
  write_bytes(dir.file("pytorch_model.bin"), "x");
  CHECK(contains(open_error(dir.path()), "pickle"));
  write_bytes(dir.file("model.safetensors"), "");
  CHECK(contains(open_error(dir.path()), "empty"));
}

TEST_CASE("Q9 layers: more in the file than in the config are named, fewer are refused by name") {
  const TempDir dir;
  copy_checkpoint("qwen2-bf16", dir);
  patch(dir, "config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
  const std::unique_ptr<Weights> w = open(dir.path());
  CHECK(w->unused_tensors.size() == 12);
  CHECK(w->unused_tensors[0] == "model.layers.1.input_layernorm.weight");
  patch(dir, "config.json", "\"num_hidden_layers\": 1", "\"num_hidden_layers\": 3");
  CHECK(contains(open_error(dir.path()), "tensor 'model.layers.2.input_layernorm.weight' is missing"));

  write_bytes(dir.file("m.gguf"), read_bytes(checkpoint("gguf-gemma3/gguf-gemma3.Q4_0.gguf")));
  const std::string key = gguf_string("gemma3.block_count") + raw(uint32_t(4));
  patch(dir, "m.gguf", key + raw(uint32_t(3)), key + raw(uint32_t(2)));
  CHECK(open(dir.file("m.gguf"))->unused_tensors.size() == 13);
  patch(dir, "m.gguf", key + raw(uint32_t(2)), key + raw(uint32_t(4)));
  CHECK(contains(open_error(dir.file("m.gguf")), "tensor 'blk.3.attn_norm.weight' is missing"));
  patch(dir, "m.gguf", key + raw(uint32_t(4)), key + raw(uint32_t(4000000)));
  CHECK(contains(open_error(dir.file("m.gguf")), "'gemma3.block_count' is 4000000, outside 1 … 10000"));
}

TEST_CASE("Q9 tied: without a head the config must say so, with one it decides") {
  const TempDir dir;
  copy_checkpoint("qwen2-bf16", dir);  // tied, no lm_head
  CHECK(!open(dir.path())->has("lm_head"));
  patch(dir, "config.json", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
  const std::string message = open_error(dir.path());
  CHECK(contains(message, "'lm_head.weight' is missing"));
  CHECK(contains(message, "tie_word_embeddings"));

  const TempDir untied;
  copy_checkpoint("llama-fp32", untied);
  CHECK(open(untied.path())->has("lm_head"));
  patch(untied, "config.json", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
  const std::unique_ptr<Weights> w = open(untied.path());
  CHECK(!w->has("lm_head"));
  CHECK(w->unused_tensors == std::vector<std::string>{"lm_head.weight"});
  // A head that equals the embedding is no news.
  std::string file = read_bytes(untied.file("model.safetensors"));
  uint64_t length;
  std::memcpy(&length, file.data(), 8);
  const json header = json::parse(file.substr(8, length));
  const size_t data = 8 + length, head = header["lm_head.weight"]["data_offsets"][0],
               embed = header["model.embed_tokens.weight"]["data_offsets"][0], bytes = 384 * 64 * 4;
  file.replace(data + head, bytes, file.substr(data + embed, bytes));
  write_bytes(untied.file("model.safetensors"), file);
  CHECK(open(untied.path())->unused_tensors.empty());
}

TEST_CASE("weights: shapes that contradict the config are refused with both shapes") {
  const TempDir dir;
  copy_checkpoint("llama-fp32", dir);
  patch(dir, "config.json", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 1");
  CHECK(contains(
      open_error(dir.path()),
      "'model.layers.0.self_attn.k_proj.weight' has shape [32, 64], but config.json asks for [16, 64]"));
  patch(dir, "config.json", "\"num_key_value_heads\": 1", "\"num_key_value_heads\": 2");
  patch(dir, "config.json", "\"vocab_size\": 384", "\"vocab_size\": 100");
  const std::string vocabulary = open_error(dir.path());
  CHECK(contains(vocabulary, "'vocab_size' is 100, but tensor 'model.embed_tokens.weight' has 384 rows"));
  CHECK(contains(vocabulary, "config.json"));
  write_bytes(dir.file("m.gguf"), read_bytes(checkpoint("gguf-llama-f16/gguf-llama-f16.F16.gguf")));
  const std::string key = gguf_string("llama.feed_forward_length") + raw(uint32_t(4));
  patch(dir, "m.gguf", key + raw(uint32_t(96)), key + raw(uint32_t(95)));
  CHECK(contains(open_error(dir.file("m.gguf")),
                 "'blk.0.ffn_gate.weight' has shape [96, 64], but the keys ask for [95, 64]"));
}

TEST_CASE("weights: names of multimodal checkpoints, old rotary tables, odd element types") {
  const TempDir dir;
  copy_checkpoint("llama-fp32", dir);
  edit_header(dir, [](json& header) {
    json renamed;
    for (const auto& item : header.items())
      renamed[item.key() == "__metadata__" ? item.key() : "language_model." + item.key()] = item.value();
    header = renamed;
  });
  CHECK(hash_of(decoded(open(dir.path())->linear("0.k"))) ==
        hash_of(decoded(open(checkpoint("llama-fp32"))->linear("0.k"))));
  edit_header(dir, [](json& header) {
    json renamed;
    for (const auto& item : header.items()) {
      std::string name = item.key();
      if (name.rfind("language_model.model.", 0) == 0) name = "model.language_model." + name.substr(21);
      if (name == "language_model.lm_head.weight") name = "lm_head.weight";
      renamed[name] = item.value();
    }
    header = renamed;
  });
  CHECK(open(dir.path())->unused_tensors.empty());
  copy_checkpoint("llama-fp32", dir);
  edit_header(dir, [](json& header) {
    header["model.layers.0.self_attn.rotary_emb.inv_freq"] = {
        {"dtype", "F32"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
    header["vision.weight"] = {{"dtype", "F64"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
  });
  CHECK(open(dir.path())->unused_tensors == std::vector<std::string>{"vision.weight"});
  edit_header(dir, [](json& header) {
    header["model.layers.0.self_attn.q_proj.bias"] = {
        {"dtype", "F32"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
  });
  CHECK(contains(open_error(dir.path()),
                 "tensor 'model.layers.0.self_attn.q_proj.bias' is not supported: this is "
                 "another variant of llama"));
  edit_header(dir, [](json& header) { header.erase("model.layers.0.self_attn.q_proj.bias"); });
  edit_header(dir, [](json& header) { header["model.layers.0.mlp.up_proj.weight"]["dtype"] = "I32"; });
  CHECK(contains(open_error(dir.path()), "int32"));
  edit_header(dir, [](json& header) { header["model.layers.0.mlp.up_proj.weight"]["dtype"] = "U32"; });
  CHECK(contains(open_error(dir.path()), "U32"));
}

TEST_CASE("weights: a sharded checkpoint and its index") {
  const TempDir dir;
  copy_checkpoint("gemma3-fp32-sharded", dir);
  const std::string index = "model.safetensors.index.json", second = "model-00002-of-00002.safetensors";
  CHECK(open(dir.path())->unused_tensors.empty());
  const std::string good = read_bytes(dir.file(index));
  json map = json::parse(good);
  map["weight_map"]["model.norm.weight"] = "../escape.safetensors";
  write_bytes(dir.file(index), map.dump());
  CHECK(contains(open_error(dir.path()), "not a plain file name"));
  map["weight_map"]["model.norm.weight"] = "model-00001-of-00002.safetensors";
  write_bytes(dir.file(index), map.dump());
  CHECK(contains(open_error(dir.path()), "'model.norm.weight' is not in 'model-00001-of-00002.safetensors'"));
  write_bytes(dir.file(index), "{}");
  CHECK(contains(open_error(dir.path()), "weight_map"));
  write_bytes(dir.file(index), good);
  std::filesystem::remove(dir.file(second));
  CHECK(contains(open_error(dir.path()), second));
  std::filesystem::copy(dir.file("model-00001-of-00002.safetensors"), dir.file(second));
  CHECK(contains(open_error(dir.path()), "is in two files"));
}
