// llm/resolve: flags that depend on each other, limits of memory, and what is refused.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>

#include <nlohmann/json.hpp>

#include "llm/loader.h"          // load_engine
#include "llm/resolve.h"         // resolve
#include "base/error.h"          // Error
#include "catch.h"               // Catch2, version 2 or 3
#include "checkpoint/weights.h"  // read_hf_config
#include "data.h"                // data_path
#include "model/kv_cache.h"      // kv_bytes_per_token
#include "subprocess.h"          // run_nano, temporary_file

namespace {

nano::ModelConfig small_config() {
  nano::ModelConfig c;
  c.architecture = "llama";
  c.L = 2, c.C = 64, c.F = 128, c.H = 4, c.KVH = 2, c.D = 16, c.V = 300, c.max_position = 64;
  return c;
}

nano::EngineOptions small_options() {
  nano::EngineOptions o;
  o.device = "ref";
  o.block_size = 4;
  o.kv_cache_memory_bytes = 1 << 20;
  return o;
}

nano::Resolved resolve(const nano::EngineOptions& options, int64_t weights = 1000) {
  auto backend = nano::make_ref_backend(nano::ActivationDtype::float32);
  return nano::resolve(options, small_config(), weights, *backend);
}

std::string refusal(const nano::EngineOptions& options, int64_t weights = 1000) {
  try {
    resolve(options, weights);
    return "";
  } catch (const nano::Error& e) {
    return e.what();
  }
}

using nano_test::data_path;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("M1 memory just below, at and above one block and one full-length request") {
  nano::EngineOptions o = small_options();
  o.kv_cache_memory_bytes.reset();
  o.gpu_memory_utilization = 1.0;
  o.device_memory = 1 << 30;
  const nano::MemoryPlan base = resolve(o).memory;
  const int64_t taken = base.weights + base.scratch, block = base.block_bytes();
  REQUIRE(base.blocks_per_seq() == 16);

  o.device_memory = taken + block - 1;
  CHECK(contains(refusal(o), "no memory for the cache blocks"));
  o.device_memory = taken + block;  // one block is not one request
  CHECK(contains(refusal(o), "--max-model-len 4 would fit"));
  o.device_memory = taken + 16 * block - 1;
  CHECK(contains(refusal(o), "--max-model-len 60 would fit"));
  o.max_model_len = 60;
  CHECK(refusal(o) == "");
  o.max_model_len.reset();
  o.device_memory = taken + 16 * block;
  REQUIRE(refusal(o) == "");
  CHECK(resolve(o).memory.num_blocks == 16);
  CHECK(resolve(o).memory.total() <= *o.device_memory);
  o.device_memory = taken + 33 * block - 1;
  CHECK(resolve(o).memory.num_blocks == 32);
  CHECK(std::fabs(resolve(o).memory.max_concurrency() - 2.0) <= 1e-9);
}

TEST_CASE("M1 the sum is printed, and the flag value it names is enough") {
  nano::EngineOptions o = small_options();
  o.kv_cache_memory_bytes.reset();
  o.device_memory = 1000;
  const std::string message = refusal(o, 5'000'000);
  CHECK(contains(message, "5.00 MB weights"));
  CHECK(contains(message, "scratch"));
  CHECK(contains(message, "1.00 kB device memory × 0.92"));
  const std::string flag = "give --device-memory ";
  REQUIRE(contains(message, flag));
  o.device_memory = std::stoll(message.substr(message.find(flag) + flag.size()));
  CHECK(refusal(o, 5'000'000) == "");
  o.device_memory = *o.device_memory - 2;
  CHECK(refusal(o, 5'000'000) != "");

  o = small_options();
  o.kv_cache_memory_bytes = 100;  // then this is the knob to turn, not the other one
  CHECK(contains(refusal(o), "give --kv-cache-memory-bytes"));
  CHECK(!contains(refusal(o), "give --device-memory"));
}

// What a refusal says would do, does: also where packing adds to what the file holds, and other flags depend on it.
TEST_CASE("hints fed back into the command line start the engine") {
  const std::vector<std::string> models = {
      data_path("../lessons/models/tiny-Q8_0.gguf"),
      data_path("golden/checkpoints/gguf-llama-k/gguf-llama-k.Q2_K.gguf"),
      data_path("golden/checkpoints/gguf-gemma3/gguf-gemma3.Q4_0.gguf"),
      data_path("golden/checkpoints/qwen3-bf16")};
  std::minstd_rand random(1);
  auto one_of = [&](const auto& list) { return list[random() % std::size(list)]; };
  std::map<std::string, int> hints;
  for (int i = 0; i < 200; ++i) {
    nano::EngineOptions o;
    o.model = models[size_t(i) % models.size()];
    o.device = one_of(std::vector{"cpu", "ref"});
    o.threads = 1;
    o.block_size = one_of(std::vector{1, 16, 48, 100000});
    o.paged_kv = random() % 4 != 0;
    o.kv_cache = random() % 4 != 0;
    o.enable_chunked_prefill = random() % 4 != 0;
    o.long_prefill_token_threshold = one_of(std::vector{0, 0, 40});
    o.gpu_memory_utilization = one_of(std::vector{0.92, 1.0, 0.3});
    if (random() % 2) o.max_num_seqs = one_of(std::vector{1, 7, 64});
    if (random() % 3 == 0) o.max_model_len = one_of(std::vector{-1, 50, 128});
    const auto bytes = int64_t(std::pow(10.0, 3 + double(random() % 4500) / 1000));  // 1 kB … 30 MB
    (random() % 3 == 0 ? o.kv_cache_memory_bytes : o.device_memory) = bytes;
    std::string hint;
    try {
      nano::load_engine(o);
    } catch (const nano::Error& e) {
      hint = e.hint;
    }
    const std::pair<const char*, std::optional<int64_t> nano::EngineOptions::*> flags[] = {
        {"--device-memory ", &nano::EngineOptions::device_memory},
        {"--kv-cache-memory-bytes ", &nano::EngineOptions::kv_cache_memory_bytes},
        {"--max-model-len ", &nano::EngineOptions::max_model_len}};
    for (const auto& [flag, field] : flags) {
      const size_t at = hint.find(flag);
      if (at == std::string::npos) continue;
      ++hints[flag];
      nano::EngineOptions fed = o;
      fed.*field = std::stoll(hint.substr(at + std::string(flag).size()));
      INFO(o.model << " on " << o.device << ", " << bytes << " bytes: " << hint);
      CHECK_NOTHROW(nano::load_engine(fed));
    }
  }
  for (const auto& [flag, times] : hints) {
    CAPTURE(flag);
    CHECK(times > 5);
  }
  CHECK(hints.size() == 3);
}

TEST_CASE("the machine's memory is what a control group above this process allows") {
  const std::string file = nano_test::temporary_file(""), root = file + ".dir";
  CHECK(nano::physical_memory(root) > 1000);
  std::filesystem::create_directories(root + "/proc/self");
  std::filesystem::create_directories(root + "/sys/fs/cgroup/job/step");
  std::ofstream(root + "/proc/self/cgroup") << "0::/job/step\n";
  std::ofstream(root + "/sys/fs/cgroup/job/memory.max") << "1000\n";
  CHECK(nano::physical_memory(root) == 1000);
  std::filesystem::remove_all(root);
  std::remove(file.c_str());
}

TEST_CASE("without --device-memory the KV cache gets 4 GiB at most, or what one sequence needs") {
  nano::EngineOptions o = small_options();
  o.kv_cache_memory_bytes.reset();
  const nano::MemoryPlan small = resolve(o).memory;
  const auto half = int64_t(double(nano::most_device_memory(o)) * o.gpu_memory_utilization);
  const int64_t four = int64_t(4) << 30, room = half - small.weights - small.scratch;
  CHECK(small.kv_bytes <= std::min(four, room));
  CHECK(small.kv_bytes > std::min(four, room) - 2 * small.block_bytes());

  nano::ModelConfig long_context = small_config();
  // A sequence that takes 3/4 of what there is.
  const int64_t tokens = room / 4 * 3 / small.kv_bytes_per_token;
  if (tokens > INT32_MAX) return;
  long_context.max_position = int32_t(tokens);
  auto backend = nano::make_ref_backend(nano::ActivationDtype::float32);
  const nano::MemoryPlan m = nano::resolve(o, long_context, 1000, *backend).memory;
  CHECK(m.num_blocks >= m.blocks_per_seq());
  CHECK(m.kv_bytes <= std::max(four, tokens * m.kv_bytes_per_token) + m.block_bytes());
}

TEST_CASE("kv-cache-memory-bytes overrides the device's memory, the number of blocks overrides both") {
  nano::EngineOptions o = small_options();
  o.device_memory = 1;  // hopeless
  const int64_t block = resolve(o).memory.block_bytes();
  CHECK(resolve(o).memory.num_blocks == (1 << 20) / block);
  o.num_gpu_blocks_override = 6;
  CHECK(resolve(o).memory.num_blocks == 6);
}

TEST_CASE("max-model-len: derived, given, too long, and as long as the memory allows") {
  nano::EngineOptions o = small_options();
  CHECK(resolve(o).scheduler.max_model_len == 64);
  o.max_model_len = 10;
  CHECK(resolve(o).scheduler.max_model_len == 10);
  o.max_model_len = 65;
  CHECK(contains(refusal(o), "User-specified max_model_len (65) is greater than the derived max_model_len"));
  o.max_model_len = 0;
  CHECK(contains(refusal(o), "--max-model-len"));
  o.max_model_len = -1;
  o.kv_cache_memory_bytes = 3 * resolve(small_options()).memory.block_bytes();
  CHECK(resolve(o).scheduler.max_model_len == 12);
}

TEST_CASE("max-model-len -1 without paged KV counts tokens, not blocks of the model's whole context") {
  nano::EngineOptions o = small_options();
  o.paged_kv = false;
  o.max_model_len = -1;
  o.kv_cache_memory_bytes = 11 * resolve(small_options()).memory.kv_bytes_per_token;
  CHECK(resolve(o).scheduler.max_model_len == 11);
  CHECK(resolve(o).block_size == 11);
  CHECK(resolve(o).memory.num_blocks == 1);
  o.kv_cache_memory_bytes = 1;  // not one token
  CHECK(contains(refusal(o), "no memory for the cache blocks"));
  o.paged_kv = true;
  CHECK(contains(refusal(o), "no memory for the cache blocks"));
}

TEST_CASE("max-model-len -1 finds the longest whatever the limit is") {
  nano::EngineOptions o = small_options();
  o.max_model_len = -1;
  o.num_gpu_blocks_override = 3;
  CHECK(resolve(o).scheduler.max_model_len == 12);
  CHECK(resolve(o).memory.blocks_per_seq() == 3);

  // Without chunked prefill the scratch grows with the length: it is the longest, so one token more is refused.
  nano::ModelConfig config = small_config();
  config.max_position = 100000;
  auto backend = nano::make_ref_backend(nano::ActivationDtype::float32);
  for (bool kv_cache : {true, false}) {
    o = small_options();
    o.kv_cache_memory_bytes.reset();
    o.device_memory = 40 << 20;
    o.kv_cache = kv_cache;
    o.enable_chunked_prefill = false;
    o.max_model_len = -1;
    const int32_t longest = nano::resolve(o, config, 1000, *backend).scheduler.max_model_len;
    CAPTURE(kv_cache, longest);
    CHECK((longest > nano::kDefaultBatchedTokens && longest < config.max_position));
    o.max_model_len = longest;
    CHECK_NOTHROW(nano::resolve(o, config, 1000, *backend));
    o.max_model_len = longest + 1;
    CHECK_THROWS_AS(nano::resolve(o, config, 1000, *backend), nano::Error);
  }
}

TEST_CASE("a block is never longer than the longest sequence") {
  nano::EngineOptions o = small_options();
  o.block_size = INT32_MAX;
  o.num_gpu_blocks_override = 1;
  CHECK(resolve(o).block_size == 64);
  CHECK(resolve(o).memory.block_size == 64);
  CHECK(resolve(o).memory.blocks_per_seq() == 1);
  CHECK(std::fabs(resolve(o).memory.max_concurrency() - 1.0) <= 1e-9);
  CHECK(contains(resolve(o).notes, "--block-size 2147483647 is longer than max-model-len: 64 does"));
  o.block_size = 64;
  CHECK(resolve(o).notes == "");
  nano::MemoryPlan plan;
  plan.max_model_len = INT32_MAX;
  plan.block_size = INT32_MAX;
  CHECK(plan.blocks_per_seq() == 1);
}

TEST_CASE("an embedding that is not the head is not counted: it stays in the file") {
  nano::EngineOptions o;
  o.model = nano_test::data_path("golden/checkpoints/qwen3-bf16");
  o.device = "ref";
  o.max_model_len = 64;
  o.gpu_memory_utilization = 1.0;
  o.device_memory = 1 << 30;
  const nano::MemoryPlan roomy = nano::load_engine(o)->resolved.memory;
  o.device_memory = roomy.weights + roomy.scratch + roomy.blocks_per_seq() * roomy.block_bytes();
  CHECK(nano::load_engine(o)->resolved.memory.num_blocks == roomy.blocks_per_seq());
  *o.device_memory -= 1;
  CHECK_THROWS_AS(nano::load_engine(o), nano::Error);

  const auto ran = nano_test::run_nano({"bench", "latency", o.model, "--device", "ref", "--no-stats",
                                        "--json", "--input-len", "4", "--output-len", "2", "--batch-size",
                                        "1", "--num-iters-warmup", "0", "--num-iters", "1"});
  INFO(ran.err);
  REQUIRE(ran.exit_code == 0);
  const auto read = double(roomy.weights + 5 * roomy.kv_bytes_per_token);
  CHECK(std::fabs(nlohmann::json::parse(ran.out)["bytes_per_token"].get<double>() - read) <= 0.5);
}

TEST_CASE("progress of loading grows to all that is packed") {
  for (const char* model :
       {"golden/checkpoints/qwen3-bf16", "golden/checkpoints/qwen2-bf16"}) {  // untied, tied
    nano::EngineOptions o;
    o.model = data_path(model);
    o.device = "ref";
    o.max_model_len = 16;
    int64_t last = 0, whole = 0;
    const auto loaded = nano::load_engine(o, 0, {}, [&](int64_t done, int64_t total) {
      CHECK(done > last);
      last = done, whole = total;
    });
    CAPTURE(model);
    CHECK(whole == nano::packed_bytes(*loaded->weights));
    CHECK(last == whole);
  }
}

TEST_CASE("a dummy's tied embedding is counted as it is held: packed as the head, and as a table") {
  const std::string file = nano_test::temporary_file(
      "{\"model_type\": \"llama\", \"vocab_size\": 4000, \"hidden_size\": 64, \"intermediate_size\": 128, "
      "\"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"max_position_embeddings\": 64, "
      "\"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": true, \"torch_dtype\": \"float32\"}");
  nano::EngineOptions o;
  o.model = file;
  o.load_format = "dummy";
  o.device = "ref";
  o.threads = 1;
  const int64_t table = 4000 * 64 * 4;
  for (bool quantized_linear : {true, false}) {
    o.quantized_linear = quantized_linear;
    o.device_memory = 1 << 30;
    const std::unique_ptr<nano::LoadedEngine> loaded = nano::load_engine(o);
    CHECK(loaded->resolved.memory.weights > 2 * table);
    const int64_t first_look = nano::packed_bytes(*loaded->weights);
    CHECK(first_look > 2 * table);
    CHECK(std::abs(first_look - loaded->resolved.memory.weights) < table / 20);
    o.device_memory = 1 << 20;  // refused before anything is packed; what the hint says is enough
    std::string hint;
    try {
      nano::load_engine(o);
    } catch (const nano::Error& e) {
      hint = e.hint;
    }
    const size_t at = hint.find("--device-memory ");
    REQUIRE(at != hint.npos);
    o.device_memory = std::stoll(hint.substr(at + 16));
    CHECK_NOTHROW(nano::load_engine(o));
  }
  std::remove(file.c_str());
}

TEST_CASE("weights that the machine has no memory for are refused before they are made") {
  nano::EngineOptions o;
  o.model = data_path("golden/llama2_70b.json");
  o.load_format = "dummy";
  o.device = "ref";
  o.device_memory = int64_t(1) << 46;
  std::string message;
  try {
    nano::load_engine(o);
  } catch (const nano::Error& e) {
    message = e.what();
  }
  CAPTURE(message);
  CHECK(contains(message, "llama2_70b.json: the weights take 138 GB"));
  CHECK(contains(message, "and this machine has"));
}

TEST_CASE("S2 a budget that would stall a prompt silently is refused at start") {
  nano::EngineOptions o = small_options();
  o.enable_chunked_prefill = false;
  o.max_num_batched_tokens = 16;
  o.max_num_seqs = 4;
  CHECK(contains(refusal(o), "max_num_batched_tokens (16) is smaller than max_model_len (64)"));
  o.max_num_batched_tokens = 64;
  CHECK(refusal(o) == "");
  o.enable_chunked_prefill = true;
  o.max_num_batched_tokens = 4;
  CHECK(refusal(o) == "");
  o.max_num_batched_tokens = 3;
  CHECK(contains(refusal(o), "max_num_batched_tokens (3) is smaller than max_num_seqs (4)"));
}

TEST_CASE("what one flag makes of another is said") {
  nano::EngineOptions o = small_options();
  o.paged_kv = false;
  CHECK(resolve(o).block_size == 64);
  CHECK(!resolve(o).enable_prefix_caching);
  CHECK(contains(resolve(o).notes, "--no-paged-kv implies"));
  o = small_options();
  o.kv_cache = false;
  CHECK(!resolve(o).scheduler.enable_chunked_prefill);
  CHECK(contains(resolve(o).notes, "--no-kv-cache implies"));
  CHECK(resolve(small_options()).notes == "");
}

TEST_CASE("values that no flag has are refused, with those it has") {
  nano::EngineOptions o = small_options();
  o.scheduling = "best";
  CHECK(contains(refusal(o), "one of continuous, static"));
  o = small_options();
  o.kv_cache_dtype = "fp3";
  CHECK(contains(refusal(o), "--kv-cache-dtype"));
  o = small_options();
  o.max_logprobs = -2;
  CHECK(contains(refusal(o), "--max-logprobs"));
  o = small_options();
  o.gpu_memory_utilization = NAN;
  CHECK(contains(refusal(o), "--gpu-memory-utilization"));
  o = small_options();
  o.block_size = 0;
  CHECK(contains(refusal(o), "--block-size"));
  o = small_options();
  o.max_num_seqs = int64_t(1) << 40;
  CHECK(contains(refusal(o), "--max-num-seqs"));
}

TEST_CASE("a 70B shape has 69 billion parameters, a 7B one 6.74") {
  const auto big = nano::read_hf_config(nano_test::data_path("golden/llama2_70b.json"));
  CHECK(nano::count_parameters(big) == 68'976'648'192);
  const auto small = nano::read_hf_config(nano_test::data_path("golden/llama2_7b_8k.json"));
  CHECK(nano::count_parameters(small) == 6'738'415'616);
  CHECK(nano::kv_bytes_per_token(small, nano::DType::f16) * 8192 * 8 == int64_t(32) << 30);
}
