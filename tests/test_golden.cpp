// Golden values of other people's tools: the logits of tiny random checkpoints of every family and block type
// (transformers in float32 on the dequantised weights), and of the trained `tiny`. See tests/golden/*/README.md.
#include "catch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "llm/llm.h"           // LLM
#include "base/json.h"         // parse_json
#include "base/mapped_file.h"  // read_file
#include "checkpoint/gguf.h"   // GgufFile
#include "checkpoint_files.h"  // TempDir, read_bytes, write_bytes
#include "engine_fixture.h"    // EngineUnderTest, greedy, make_prompt
#include "golden_greedy.h"     // check_greedy

using namespace nano_test;
namespace fs = std::filesystem;

namespace {

struct Golden {
  std::string model;  // what --model gets
  fs::path values;    // golden.json
};

std::vector<Golden> all_goldens() {
  std::vector<Golden> list;
  const fs::path root = data_path("golden/checkpoints");
  for (const char* name : {"llama-bf16", "llama-fp32", "qwen2-bf16", "qwen3-bf16", "gemma3-bf16",
                           "gemma3-fp32-sharded", "mistral-bf16", "smollm3-bf16"})
    list.push_back({(root / name).string(), root / name / "golden.json"});
  for (const auto& folder : fs::directory_iterator(root))
    for (const auto& file : fs::directory_iterator(folder.is_directory() ? folder.path() : root))
      if (file.path().extension() == ".gguf")
        list.push_back({file.path().string(), fs::path(file.path()).replace_extension(".golden.json")});
  return list;
}

nano::EngineOptions golden_options(const std::string& model, const std::string& device) {
  nano::EngineOptions options;
  options.model = model;
  options.device = device;
  options.activation_dtype = "float32";
  options.kv_cache_dtype = "float32";
  options.threads = 1;
  options.kv_cache_memory_bytes = 16 << 20;
  options.max_model_len = 128;
  return options;
}

// Weights rounded to float16 (by 2^-12 of each at most) move the logits of llama-fp32 by 0.0038; rows of one head
// in a wrong order move them by 1.3 and more.
constexpr double kRounding = 8e-3;

// From now on the logits of each position, sampled from or not.
void keep_rows(EngineUnderTest& run, std::map<int32_t, std::vector<float>>& rows) {
  run.engine().on_logits = [&](const nano::Sequence&, int32_t position, std::span<const float> row) {
    rows[position].assign(row.begin(), row.end());
  };
}

nlohmann::json read_json(const fs::path& path) {
  return nano::parse_json(nano::read_file(path.string()), path.string());
}

}  // namespace

TEST_CASE("golden logits of every family and every block type") {
  const std::vector<Golden> goldens = all_goldens();
  REQUIRE(goldens.size() == 18);
  int greedy_steps = 0, prompt_logprobs = 0;
  for (const Golden& golden : goldens)
    for (const char* device : {"ref", "cpu"}) {
      INFO(golden.model << " on " << device);
      const nlohmann::json values = read_json(golden.values);
      EngineUnderTest run(golden_options(golden.model, device));
      std::map<int32_t, std::vector<float>> rows;  // by position
      keep_rows(run, rows);
      REQUIRE(values["prompts"].size() == 4);
      for (size_t p = 0; p < 4; ++p) {
        INFO("prompt " << p);
        Request request{"x", values["prompts"][p]["ids"].get<std::vector<int32_t>>(), greedy(1)};
        request.params.prompt_logprobs = 0;  // asks for the logits of every prompt position
        rows.clear();
        run.run({request});
        const nlohmann::json& want = values["variants"]["weights"][p];

        const std::vector<float>& last = rows.at(int32_t(request.prompt.size()) - 1);
        REQUIRE(want["last_logits"].size() == last.size());
        for (size_t i = 0; i < last.size(); ++i) {
          INFO("logit " << i);
          REQUIRE(std::fabs(last[i] - want["last_logits"][i].get<double>()) <= 1e-3);
        }
        REQUIRE(want["top5"].size() == request.prompt.size());
        for (size_t position = 0; position < want["top5"].size(); ++position)
          for (const auto& [id, value] :
               want["top5"][position].get<std::vector<std::pair<int32_t, double>>>())
            REQUIRE(std::fabs(rows.at(int32_t(position))[size_t(id)] - value) <= 1e-3);
        greedy_steps += check_greedy(request.prompt, want["greedy"], want["greedy_margin"],
                                     [&](const std::vector<int32_t>& prompt, int32_t n) {
                                       return run.run({{"x", prompt, greedy(n)}}).at("x").ids;
                                     });
      }
      if (values.contains("prompt_logprobs")) {
        const nlohmann::json& want = values["prompt_logprobs"];
        Request request{"x",
                        values["prompts"][want["prompt"].get<size_t>()]["ids"].get<std::vector<int32_t>>(),
                        greedy(1)};
        request.params.prompt_logprobs = 0;
        const Answer answer = run.run({request}).at("x");
        REQUIRE(answer.prompt_logprobs.size() == request.prompt.size() - 1);
        for (size_t i = 1; i < request.prompt.size(); ++i)
          REQUIRE(std::fabs(answer.prompt_logprobs[i - 1].logprobs[0].logprob -
                            want["values"][i].get<double>()) <= 1e-3);
        ++prompt_logprobs;
      }
    }
  CHECK(greedy_steps == 2 * (18 * 4 * 16 - 4));  // four golden steps are ties
  CHECK(prompt_logprobs == 2 * 8);
}

TEST_CASE("Q6 the same GQA model as safetensors and as GGUF gives the same logits") {
  const std::string root = data_path("golden/checkpoints/");
  const std::string hf = root + "llama-fp32", gguf = root + "gguf-llama-f16/gguf-llama-f16.F16.gguf";
  auto last_row = [](const std::string& model) {
    EngineUnderTest run(golden_options(model, "ref"));
    std::map<int32_t, std::vector<float>> rows;
    keep_rows(run, rows);
    run.run({{"x", make_prompt(24, 3, 380), greedy(1)}});
    return rows.at(23);
  };
  const std::vector<float> want = last_row(hf);
  auto difference = [&](const std::vector<float>& row) {
    double most = 0;
    for (size_t i = 0; i < want.size(); ++i) most = std::max(most, double(std::fabs(row[i] - want[i])));
    return most;
  };
  CHECK(difference(last_row(gguf)) <= kRounding);

  // Planted: a converter that forgot to reorder the rows of one head of q, or of k. Then RoPE turns wrong pairs.
  for (const char* name : {"blk.0.attn_q.weight", "blk.0.attn_k.weight"}) {
    INFO(name);
    const TempDir dir;
    std::string bytes = read_bytes(gguf);
    const nano::GgufFile file(gguf);
    const nano::GgufTensor& t = *file.find(name);
    const auto row_bytes = size_t(t.bytes / t.shape[0]), D = size_t(16);
    const size_t begin = size_t(t.data - file.mapping()->data());
    for (size_t r = 0; r < D;
         ++r)  // row r of the head as Hugging Face has it is row 2·(r mod D/2) + r / (D/2) here
      std::memcpy(&bytes[begin + r * row_bytes], t.data + (2 * (r % (D / 2)) + r / (D / 2)) * row_bytes,
                  row_bytes);
    write_bytes(dir.file("fault.gguf"), bytes);
    const double fault = difference(last_row(dir.file("fault.gguf")));
    CHECK(fault >= 100 * kRounding);
  }
}

TEST_CASE("tiny: token ids, first logits, greedy text and the draft model's too") {
  const nlohmann::json golden = read_json(data_path("golden/tiny.json"));
  const std::pair<const char*, const char*> files[] = {{"bf16", ""}, {"q8_0", "-Q8_0.gguf"}};
  int logits = 0, steps = 0;
  for (const char* name : {"tiny", "tiny-draft"})
    for (const auto& [section, suffix] : files) {
      INFO(name << " " << section);
      nano::EngineOptions options = golden_options(std::string("lessons/models/") + name + suffix, "cpu");
      options.max_model_len = 512;
      nano::LLM llm(options);
      auto generate = [&](const std::vector<int32_t>& prompt, int32_t n) {
        nano::SamplingParams params = greedy(n);
        params.logprobs = 20;
        return llm.generate({{"", prompt}}, {params})[0].outputs[0];
      };
      for (const nlohmann::json& row : golden["sections"][name][section]["generate"]) {
        const std::string text = row["prompt"];
        INFO(text);
        const std::vector<int32_t> prompt = row["ids"];
        CHECK(llm.tokenizer().encode(text) == prompt);
        // Differences of logits are differences of log-probabilities.
        std::map<int32_t, double> got;
        const nano::CompletionOutput first = generate(prompt, 1);
        for (const nano::TokenLogprob& l : first.logprobs.at(0)) got[l.id] = l.logprob;
        const auto top = row["top10"].get<std::vector<std::pair<int32_t, double>>>();
        for (const auto& [id, logit] : top) {
          INFO("id " << id);
          REQUIRE(got.count(id) == 1);
          REQUIRE(std::fabs((got.at(id) - got.at(top[0].first)) - (logit - top[0].second)) <= 2e-3);
          ++logits;
        }
        steps +=
            check_greedy(prompt, row["greedy"], row["margin"],
                         [&](const std::vector<int32_t>& p, int32_t n) { return generate(p, n).token_ids; });
      }
    }
  CHECK(logits == 18 * 10);
  CHECK(steps == 18 * 48 - 3);  // three golden steps are ties
  nano::LLM llm(golden_options("lessons/models/tiny", "cpu"));
  REQUIRE(golden["tokenize"].size() >= 10);
  for (const nlohmann::json& row : golden["tokenize"]) {
    const std::string text = row["text"];
    INFO(text);
    CHECK(llm.tokenizer().encode(text, {false, true}) == row["ids"].get<std::vector<int32_t>>());
  }
}
