// Golden values of tokens that strip, normalised added tokens, Metaspace, pre-tokenizers by name, and of one vocabulary
// as GGUF and as tokenizer.json (make_tokenizer_cases.py).
#include "catch.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"          // Error
#include "base/json.h"           // parse_json
#include "base/mapped_file.h"    // read_file
#include "checkpoint/gguf.h"     // GgufFile
#include "data.h"                // data_path
#include "text/bpe.h"            // BpeModel
#include "text/chat_template.h"  // RenderedSpan
#include "text/pretokenizer.h"   // rule_by_name
#include "text/tokenizer.h"      // Tokenizer

using namespace nano;

namespace {

using Ids = std::vector<int32_t>;

std::string path_of(const std::string& name) { return nano_test::data_path("golden/tokenizers/" + name); }

nlohmann::json expected(const std::string& name) {
  const std::string path = path_of(name + ".expected.json");
  return parse_json(read_file(path), path);
}

void check_rows(const Tokenizer& tokenizer, const nlohmann::json& golden, size_t count) {
  REQUIRE(golden["rows"].size() == count);
  for (const auto& row : golden["rows"]) {
    INFO(row.dump());
    CHECK(tokenizer.encode(row[0].get<std::string>()) == row[1].get<Ids>());
  }
}

}  // namespace

TEST_CASE("tokens that strip, normalised added tokens and Metaspace give the ids of tokenizers") {
  const std::pair<const char*, size_t> files[] = {{"strips", 406},
                                                  {"metaspace", 106},
                                                  {"metaspace-always", 66},
                                                  {"normalized-added", 206},
                                                  {"nfc-added", 156}};
  for (const auto& [name, count] : files) {
    INFO(name);
    check_rows(*tokenizer_from_hf(path_of(name + std::string(".json"))), expected(name), count);
  }
}

TEST_CASE("one vocabulary gives the same ids as GGUF and as tokenizer.json") {
  for (const std::string name : {"both-llama2", "both-gemma", "both-qwen2"}) {
    INFO(name);
    check_rows(*tokenizer_from_hf(path_of(name + ".json")), expected(name), 150);
    check_rows(*tokenizer_from_gguf(GgufFile(path_of(name + ".gguf"))), expected(name), 150);
  }
}

TEST_CASE("each pre-tokenizer that GGUF names cuts as its regular expressions do in tokenizers") {
  const nlohmann::json golden = expected("pretokenizers");
  REQUIRE(golden["rules"].size() == 23);
  for (const auto& [name, rows] : golden["rules"].items()) {
    const NamedRule rule = rule_by_name(name);
    for (const auto& row : rows) {
      CAPTURE(name, row.dump());
      CHECK(rule.pretokenizer.split(row[0].get<std::string>()) == row[1].get<std::vector<std::string>>());
    }
  }
}

TEST_CASE("names of GGUF's pre-tokenizers that mean the same") {
  const std::vector<std::vector<std::string>> same = {
      {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2", "pixtral", "midm-2.0"},
      {"qwen2", "deepseek-r1-qwen", "megrez", "kormo"},
      {"gpt-2", "phi-2", "exaone4", "modern-bert", "mellum", "a.x-4.0", "trillion", "granite-docling"},
      {"smollm", "starcoder", "refact", "minerva-7b", "exaone"},
      {"smaug-bpe", "dbrx"},
      {"mpt", "olmo"},
      {"poro-chat", "bloom"}};
  const std::string text = "DON'T 12345 e\u0301x,\n\n\tHTMLElement ٣٤  7.";
  for (const auto& names : same) {
    const NamedRule first = rule_by_name(names[0]);
    for (const std::string& name : names) {
      INFO(name);
      const NamedRule rule = rule_by_name(name);
      CHECK(rule.pretokenizer.split(text) == first.pretokenizer.split(text));
      CHECK(rule.normalizer.normalize(text) == first.normalizer.normalize(text));
      CHECK(rule.ignore_merges == first.ignore_merges);
      CHECK(rule.add_bos == first.add_bos);
    }
  }
  // What GGUF does not state: Qwen-2's, Command-R's and GPT-NeoX's tokenizer.json compose characters, others don't.
  for (const char* name : {"qwen2", "command-r", "mpt"})
    CHECK(rule_by_name(name).normalizer.normalize("e\u0301") == "\u00e9");
  for (const char* name : {"gpt-2", "llama-bpe", "tekken", "deepseek-llm", "smollm", "default"})
    CHECK(rule_by_name(name).normalizer.normalize("e\u0301") == "e\u0301");
  for (const char* name : {"llama-bpe", "tekken"}) {
    CHECK(rule_by_name(name).ignore_merges);
    CHECK(rule_by_name(name).add_bos);
  }
  CHECK(!rule_by_name("smaug-bpe").ignore_merges);  // Llama 3's pattern, but not its other settings
  CHECK(!rule_by_name("smaug-bpe").add_bos);
}

TEST_CASE("T6 normalised control tokens: none in foreign text, not even partly, all in the template's") {
  auto t = tokenizer_from_hf(path_of("normalized-added.json"));
  const int32_t end = t->find("<|im_end|>");
  const auto count = [&](const std::vector<RenderedSpan>& spans) {
    const Ids ids = encode_spans(*t, spans);
    return std::count(ids.begin(), ids.end(), end);
  };
  // In the normalised text the token is "▁<|im_end|>": the space belongs to it.
  CHECK(count({{"a <|im_end|>", true}}) == 1);
  CHECK(count({{"a <|im_end|>", false}}) == 0);
  CHECK(count({{"<|im_end|>", false}}) == 0);
  CHECK(count({{"a  b ", false}, {" <|im_end|>", true}, {" c <|im_end|>", false}, {" <|im_end|>", true}}) ==
        2);
  for (size_t cut = 1; cut < 11; ++cut) {
    const std::string token = " <|im_end|>", head = token.substr(0, cut), tail = token.substr(cut);
    CHECK(count({{"é b" + head, true}, {tail, false}}) == 0);
    CHECK(count({{"é b" + head, false}, {tail, true}}) == 0);
  }
  // NFC moves places: what composes across an end makes the foreign part grow, and nothing else.
  auto nfc = tokenizer_from_hf(path_of("nfc-added.json"));
  const std::string token = "<|im_end|>";
  const int32_t nfc_end = nfc->find(token);
  const auto count_nfc = [&](const std::vector<RenderedSpan>& spans) {
    const Ids ids = encode_spans(*nfc, spans);
    return std::count(ids.begin(), ids.end(), nfc_end);
  };
  for (const char* content :
       {"x", "e\u0301e\u0301e\u0301", "\u0301", "\u0301\u0301", "日本", "\u1161", "\u212a\u2126"})
    for (const char* before : {"e", "\n", "\u1112", "é", "\u212a\u212a\u212a"}) {
      CAPTURE(content, before);
      CHECK(count_nfc({{before, true}, {content, false}, {" " + token, true}}) == 1);
      CHECK(count_nfc({{token + before, true}, {content, false}, {" " + token, true}, {content, false}}) ==
            2);
      CHECK(count_nfc({{before, true}, {content + token, false}, {"x", true}}) == 0);
      CHECK(count_nfc({{before, true}, {content + token.substr(0, 4), false}, {token.substr(4), true}}) == 0);
    }
}

TEST_CASE("T6 foreign parts between normalised control tokens are found in near-linear time") {
  const auto t = tokenizer_from_hf(path_of("nfc-added.json"));
  const auto seconds = [&](int num_turns) {
    std::vector<RenderedSpan> spans;
    for (int i = 0; i < num_turns; ++i) {
      spans.push_back({"<|im_start|>", true});
      spans.push_back({"e\u0301<|im_end|>", false});
    }
    const auto start = std::chrono::steady_clock::now();
    const Ids ids = encode_spans(*t, spans);
    const auto end = std::chrono::steady_clock::now();
    CHECK(std::count(ids.begin(), ids.end(), t->find("<|im_start|>")) == num_turns);
    CHECK(std::count(ids.begin(), ids.end(), t->find("<|im_end|>")) == 0);
    return std::chrono::duration<double>(end - start).count();
  };
  CHECK(seconds(160'000) < 24 * seconds(20'000));  // 8 when it is linear, some 60 when each part looks at all
}

TEST_CASE("a scored vocabulary of long tokens loads, and a long word is merged, in near-linear time") {
  const auto start = std::chrono::steady_clock::now();
  BpeModel model({/*byte_level=*/false, false, /*byte_fallback=*/true, false, 0});
  std::vector<std::string> texts = {"<unk>", "a", "aa", "aaaa", "b", "ab"};
  for (int i = 0; i < 10'000; ++i) texts.push_back(std::to_string(i) + std::string(1019, 'x'));
  for (size_t i = 0; i < texts.size(); ++i) {
    model.add_token(int32_t(i), texts[i], i == 0);
    if (i > 0) model.add_cost(int32_t(i), double(i));
  }
  Ids ids;
  model.encode(std::string(400'001, 'a') + "b", ids);
  CHECK(ids.size() == 100'001);
  CHECK(std::count(ids.begin(), ids.end(), 3) == 100'000);
  CHECK(ids.back() == 5);
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < 10);
}

TEST_CASE("bytes and unknown characters are never merged by their text, however a scored vocabulary looks") {
  BpeModel model({/*byte_level=*/false, false, /*byte_fallback=*/true, false, 0});
  const char* texts[] = {"<unk>", "a", "aé", "<0xC3>", "<0xA9>", "aß"};
  for (int32_t i = 0; i < 6; ++i) {
    model.add_token(i, texts[i], i == 0);
    if (i <= 2 || i == 5) model.add_cost(i, 1);
  }
  Ids ids;
  model.encode("aé", ids);  // "é" is no token: its bytes are, and stay
  model.encode("aß", ids);  // "ß" is unknown
  CHECK(ids == Ids{1, 3, 4, 1, 0});
}
