// The tokenizer of the real SmolLM2-135M-Instruct (make test-models fetches it): 31 texts against transformers.
#include "catch.h"

#include <chrono>
#include <cstdlib>

#include "base/json.h"            // parse_json
#include "base/mapped_file.h"     // read_file
#include "checkpoint/gguf.h"      // GgufFile
#include "data.h"                 // data_path
#include "text/stream_decoder.h"  // StreamDecoder
#include "text/tokenizer.h"       // Tokenizer

using namespace nano;

namespace {

std::unique_ptr<Tokenizer> open_model() {  // missing model = failed test, never a skipped one
  const char* path = std::getenv("NANO_TEST_MODELS");
  return tokenizer_from_gguf(
      GgufFile((path ? std::string(path) : "models") + "/SmolLM2-135M-Instruct.Q4_1.gguf"));
}

}  // namespace

TEST_CASE("SmolLM2: ids and texts of transformers") {
  auto tokenizer = open_model();
  const std::string path = nano_test::data_path("golden/smollm2_tokenize.json");
  const nlohmann::json golden = parse_json(read_file(path), path);
  REQUIRE(golden["tokenize"].size() == 31);
  for (const auto& row : golden["tokenize"]) {
    INFO(row.dump());
    std::vector<int32_t> ids = tokenizer->encode(row["text"].get<std::string>());
    CHECK(ids == row["ids"].get<std::vector<int32_t>>());
    CHECK(tokenizer->decode(ids, false) == row["decoded"].get<std::string>());
    StreamDecoder stream(*tokenizer, {}, false, false);
    for (int32_t id : ids) stream.add(id);
    stream.finish();
    CHECK(stream.text() == row["decoded"].get<std::string>());
  }
}

TEST_CASE("SmolLM2: special ids and the chat template") {
  auto tokenizer = open_model();
  CHECK(tokenizer->bos_id == 1);
  CHECK(tokenizer->prefix_ids.empty());
  CHECK(tokenizer->stop_ids == std::vector<int32_t>{2, 0});  // <|im_end|>, <|endoftext|>
  CHECK(tokenizer->chat_template.find("<|im_start|>") != std::string::npos);
  for (int32_t id : tokenizer->encode("<|im_end|><|endoftext|>", {true, false}))
    CHECK(!tokenizer->is_special(id));
}

TEST_CASE("SmolLM2: a megabyte without a place to cut takes seconds") {
  auto tokenizer = open_model();
  auto start = std::chrono::steady_clock::now();
  for (char c : {'a', ' ', '\n'}) {
    std::string text(1'000'000, c);
    CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
  }
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < 60);
}
