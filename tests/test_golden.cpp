// Golden values of other people's tools: the logits of tiny random checkpoints of every family and block type
// (transformers in float32 on the dequantised weights), and of the trained `tiny`. See tests/golden/*/README.md.
#include "catch.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include "app/llm.h"    // LLM
#include "base/json.h"  // parse_json
#include "base/mapped_file.h"  // read_file
#include "engine_fixture.h"

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
  for (const char* name : {"llama-bf16", "llama-fp32", "qwen2-bf16", "qwen3-bf16", "gemma3-bf16", "gemma3-fp32-sharded"})
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

nlohmann::json read_json(const fs::path& path) {
  return nano::parse_json(nano::read_file(path.string()), path.string());
}

// Greedy ids agree up to the first step whose margin is a fair tie.
void check_greedy(const std::vector<int32_t>& got, const nlohmann::json& want, const nlohmann::json& margin) {
  REQUIRE(got.size() >= want.size());
  for (size_t i = 0; i < want.size() && margin[i].get<double>() >= 0.01; ++i) {
    INFO("step " << i);
    REQUIRE(got[i] == want[i].get<int32_t>());
  }
}

}  // namespace

TEST_CASE("golden logits of every family and every block type") {
  const std::vector<Golden> goldens = all_goldens();
  REQUIRE(goldens.size() >= 14);
  for (const Golden& golden : goldens)
    for (const char* device : {"ref", "cpu"}) {
      INFO(golden.model << " on " << device);
      const nlohmann::json values = read_json(golden.values);
      EngineUnderTest run(golden_options(golden.model, device));
      auto hash_rows = run.engine().on_logits;
      std::map<int32_t, std::vector<float>> rows;  // by position
      run.engine().on_logits = [&](const nano::Sequence& seq, int32_t position, std::span<const float> row) {
        hash_rows(seq, position, row);
        if (position < seq.num_prompt_tokens) rows[position].assign(row.begin(), row.end());
      };
      for (size_t p = 0; p < values["prompts"].size(); ++p) {
        INFO("prompt " << p);
        Request request{"x", values["prompts"][p]["ids"].get<std::vector<int32_t>>(), greedy(16)};
        request.params.prompt_logprobs = 0;  // asks for the logits of every prompt position
        rows.clear();
        const Answer answer = run.run({request}).at("x");
        const nlohmann::json& want = values["variants"]["weights"][p];

        const std::vector<float>& last = rows.at(int32_t(request.prompt.size()) - 1);
        REQUIRE(want["last_logits"].size() == last.size());
        for (size_t i = 0; i < last.size(); ++i) {
          INFO("logit " << i);
          REQUIRE(std::fabs(last[i] - want["last_logits"][i].get<double>()) <= 1e-3);
        }
        for (size_t position = 0; position < want["top5"].size(); ++position)
          for (const auto& [id, value] : want["top5"][position].get<std::vector<std::pair<int32_t, double>>>())
            REQUIRE(std::fabs(rows.at(int32_t(position))[size_t(id)] - value) <= 1e-3);
        check_greedy(answer.ids, want["greedy"], want["greedy_margin"]);
      }
      if (values.contains("prompt_logprobs")) {
        const nlohmann::json& want = values["prompt_logprobs"];
        Request request{"x", values["prompts"][want["prompt"].get<size_t>()]["ids"].get<std::vector<int32_t>>(),
                        greedy(1)};
        request.params.prompt_logprobs = 0;
        const Answer answer = run.run({request}).at("x");
        REQUIRE(answer.prompt_logprobs.size() == request.prompt.size() - 1);
        for (size_t i = 1; i < request.prompt.size(); ++i)
          REQUIRE(std::fabs(answer.prompt_logprobs[i - 1].logprobs[0].logprob - want["values"][i].get<double>()) <=
                  1e-3);
      }
    }
}

TEST_CASE("Q6 the same GQA model as safetensors and as GGUF gives the same logits") {
  const std::string root = data_path("golden/checkpoints/");
  const Request request{"x", make_prompt(24, 3, 380), greedy(1)};
  std::vector<std::vector<float>> last;
  for (const std::string& model : {root + "llama-fp32", root + "gguf-llama-f16/gguf-llama-f16.F16.gguf"}) {
    EngineUnderTest run(golden_options(model, "ref"));
    auto hash_rows = run.engine().on_logits;
    run.engine().on_logits = [&](const nano::Sequence& seq, int32_t position, std::span<const float> row) {
      hash_rows(seq, position, row);
      last.emplace_back(row.begin(), row.end());
    };
    run.run({request});
  }
  REQUIRE(last.size() == 2);
  // The GGUF file rounds the float32 weights to float16: 2^-11 of each, far below a permuted head's effect.
  for (size_t i = 0; i < last[0].size(); ++i) REQUIRE(std::fabs(last[0][i] - last[1][i]) <= 2e-2);
}

TEST_CASE("tiny: token ids, first logits, greedy text and the draft model's too") {
  const nlohmann::json golden = read_json(data_path("golden/tiny.json"));
  const std::pair<const char*, const char*> files[] = {{"bf16", ""}, {"q8_0", "-Q8_0.gguf"}};
  for (const char* name : {"tiny", "tiny-draft"})
    for (const auto& [section, suffix] : files) {
      INFO(name << " " << section);
      nano::LLM llm(golden_options(std::string("lessons/models/") + name + suffix, "cpu"));
      int checked = 0;
      for (const nlohmann::json& row : golden["sections"][name][section]["generate"]) {
        const std::string prompt = row["prompt"];
        INFO(prompt);
        const auto ids = llm.tokenizer().encode(prompt);
        CHECK(ids == row["ids"].get<std::vector<int32_t>>());
        if (ids.size() > 70) continue;
        nano::SamplingParams params = greedy(int32_t(row["greedy"].size()));
        params.logprobs = 10;
        const nano::RequestOutput out = llm.generate({{prompt, {}}}, {params})[0];
        check_greedy(out.outputs[0].token_ids, row["greedy"], row["margin"]);
        if (row.contains("top10")) {  // differences of logits are differences of log-probabilities
          const auto top = row["top10"].get<std::vector<std::pair<int32_t, double>>>();
          std::map<int32_t, double> got;
          for (const nano::TokenLogprob& l : out.outputs[0].logprobs[0]) got[l.id] = l.logprob;
          for (const auto& [id, logit] : top) {
            if (got.count(id) == 0) continue;  // the tenth and the eleventh may be a tie
            REQUIRE(std::fabs((got.at(id) - got.at(top[0].first)) - (logit - top[0].second)) <= 2e-3);
            ++checked;
          }
        }
      }
      CHECK((checked > 20 || std::string(name) == "tiny-draft"));
    }
  nano::LLM llm(golden_options("lessons/models/tiny", "cpu"));
  for (const nlohmann::json& row : golden["tokenize"]) {
    const std::string text = row["text"];
    INFO(text);
    CHECK(llm.tokenizer().encode(text, {false, true}) == row["ids"].get<std::vector<int32_t>>());
  }
}
