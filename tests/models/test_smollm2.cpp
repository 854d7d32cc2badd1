// A real model against golden values of transformers: SmolLM2-135M-Instruct Q4_1, as `make models` fetches it.
// Without the file these tests fail: they are run by `make test-models`.
#include "catch.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "llm/llm.h"           // LLM
#include "app/ppl.h"           // measure_perplexity
#include "base/json.h"         // parse_json
#include "base/mapped_file.h"  // read_file
#include "data.h"              // data_path
#include "golden_greedy.h"     // check_greedy

namespace {

nano::EngineOptions options(const std::string& device, const std::string& activations,
                            const std::string& kv) {
  nano::EngineOptions options;
  options.model = "smollm2";
  options.device = device;
  options.activation_dtype = activations;
  options.kv_cache_dtype = kv;
  options.max_model_len = 1024;
  options.kv_cache_memory_bytes = 512 << 20;
  return options;
}

nlohmann::ordered_json golden() {
  const std::string path = nano_test::data_path("golden/smollm2/golden.json");
  return nano::parse_ordered_json(nano::read_file(path), path);
}

// All greedy prompts of the golden file, plain and chat, as token ids.
void check_answers(nano::LLM& llm, double logit_tolerance) {
  const nlohmann::ordered_json values = golden();
  auto generate = [&](const std::vector<int32_t>& prompt, int32_t n) {
    nano::SamplingParams params;
    params.temperature = 0;
    params.max_tokens = n;
    params.ignore_eos = true;
    params.logprobs = 10;
    return llm.generate({{"", prompt}}, {params})[0].outputs[0];
  };
  int steps = 0, logits = 0;
  for (const char* kind : {"greedy", "greedy_chat"})
    for (const auto& row : values[kind]) {
      INFO(kind << ": " << row.dump());
      const std::vector<int32_t> prompt = row.contains("messages")
                                              ? llm.apply_chat_template(row["messages"]).token_ids
                                              : llm.tokenizer().encode(row["prompt"].get<std::string>());
      CHECK(prompt == row["prompt_ids"].get<std::vector<int32_t>>());
      std::map<int32_t, double> first;
      const nano::CompletionOutput one = generate(prompt, 1);
      for (const nano::TokenLogprob& l : one.logprobs.at(0)) first[l.id] = l.logprob;
      const auto top = row["top10_first"].get<std::vector<std::pair<int32_t, double>>>();
      for (const auto& [id, logit] : top) {
        INFO("first position, id " << id);
        REQUIRE(first.count(id) == 1);
        REQUIRE(std::fabs((first[id] - first[top[0].first]) - (logit - top[0].second)) <= logit_tolerance);
        ++logits;
      }
      steps += nano_test::check_greedy(
          prompt, row["ids"], row["margin"],
          [&](const std::vector<int32_t>& p, int32_t n) { return generate(p, n).token_ids; });
    }
  CHECK(logits == 6 * 10);
  CHECK(steps == 30 + 64 + 64 + 34 + 63 + 8);  // one golden step is a tie
}

}  // namespace

TEST_CASE("SmolLM2: chat renderings and their ids") {
  nano::LLM llm(options("cpu", "float32", "float32"));
  const auto values = golden();
  for (const auto& chat : values["chats"])
    for (bool generate : {true, false}) {
      const auto& want = chat[generate ? "gen" : "nogen"];
      const nano::Prompt prompt = llm.apply_chat_template(chat["messages"], generate);
      CHECK(prompt.text == want["text"].get<std::string>());
      const auto ids = want["ids"].get<std::vector<int32_t>>();
      // transformers reads an "<|im_end|>" that a user typed as the control token; here it stays text.
      if (chat["messages"].dump().find("<|im_end|>") == std::string::npos) {
        CHECK(prompt.token_ids == ids);
        continue;
      }
      CHECK(llm.tokenizer().encode(prompt.text) == ids);
      const int32_t im_end = llm.tokenizer().find("<|im_end|>");
      CHECK(std::count(prompt.token_ids.begin(), prompt.token_ids.end(), im_end) + 1 ==
            std::count(ids.begin(), ids.end(), im_end));
      CHECK(llm.tokenizer().decode(prompt.token_ids, false) == prompt.text);
    }
}

TEST_CASE("SmolLM2: greedy ids and first logits on ref") {
  nano::LLM llm(options("ref", "float32", "float32"));
  check_answers(llm, 2e-3);
}

TEST_CASE("SmolLM2: greedy ids and first logits on cpu with float32 activations") {
  nano::LLM llm(options("cpu", "float32", "float32"));
  check_answers(llm, 2e-3);
}

TEST_CASE("SmolLM2: perplexity on cpu: float32 as golden, int8 within one percent of it") {
  const std::string text = nano::read_file(nano_test::data_path("golden/smollm2/devil_20k.txt"));
  const auto want = golden()["perplexity"];
  nano::LLM exact(options("cpu", "float32", "float32"));
  const nano::Perplexity float32 = nano::measure_perplexity(exact, text, want["ctx"].get<int32_t>());
  CHECK(float32.chunks == want["chunks"].get<int64_t>());
  CHECK(std::fabs(float32.ppl / want["ppl_all"].get<double>() - 1) <= 1e-4);
  CHECK(std::fabs(float32.ppl_second_half / want["ppl_second_half_like_llama_perplexity"].get<double>() -
                  1) <= 1e-4);

  nano::LLM rounded(options("cpu", "int8", "float16"));
  const nano::Perplexity int8 = nano::measure_perplexity(rounded, text, want["ctx"].get<int32_t>());
  CHECK(int8.ppl != float32.ppl);
  CHECK(std::fabs(int8.ppl / float32.ppl - 1) <= 0.01);
}
