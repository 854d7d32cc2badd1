#include "catch.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "base/error.h"        // Error
#include "base/json.h"         // parse_json
#include "base/mapped_file.h"  // read_file
#include "checkpoint/gguf.h"   // GgufFile
#include "data.h"              // data_path
#include "text/tokenizer.h"    // Tokenizer, tokenizer_from_json

using namespace nano;

namespace {

using Ids = std::vector<int32_t>;
namespace fs = std::filesystem;

// A copy of the qwen2 directory's tokenizer.json alone, to put other files beside it.
struct Directory {
  std::string path;
  Directory() : path(fs::temp_directory_path() / ("nano-tokenizer-" + std::to_string(getpid()))) {
    fs::remove_all(path);
    fs::create_directory(path);
    fs::copy_file(nano_test::data_path("golden/tokenizers/qwen2/tokenizer.json"), path + "/tokenizer.json");
  }
  ~Directory() { fs::remove_all(path); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path + "/" + name) << text;
  }
};

std::string load_error(const std::string& tokenizer_json) {
  try {
    tokenizer_from_json(tokenizer_json, "tokenizer.json");
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

// {"model": {...}} with `extra` members at the top and `model_extra` in the model.
std::string tiny(const std::string& extra = "", const std::string& model_extra = "") {
  const bool own_decoder = extra.find("\"decoder\"") != extra.npos;
  return R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"])" + model_extra + "}" +
         extra + (own_decoder ? "}" : R"(,"decoder":{"type":"Fuse"}})");
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

// A vocabulary-only GGUF file in memory, written here by the format's own description.
class GgufBytes {
 public:
  GgufBytes& text(const std::string& key, const std::string& value) {
    return entry(key, 8), put_string(value), *this;
  }
  GgufBytes& texts(const std::string& key, const std::vector<std::string>& values) {
    entry(key, 9), put(8, 4), put(values.size(), 8);
    for (const std::string& v : values) put_string(v);
    return *this;
  }
  GgufBytes& ints(const std::string& key, const Ids& values) {
    entry(key, 9), put(5, 4), put(values.size(), 8);
    for (int32_t v : values) put(uint32_t(v), 4);
    return *this;
  }
  GgufBytes& integer(const std::string& key, uint32_t value) { return entry(key, 4), put(value, 4), *this; }
  std::unique_ptr<Tokenizer> open() const {
    GgufBytes whole;
    whole.bytes_ = "GGUF";
    whole.put(3, 4), whole.put(0, 8), whole.put(uint64_t(count_), 8);
    whole.bytes_ += bytes_;
    auto data = reinterpret_cast<const uint8_t*>(whole.bytes_.data());
    return tokenizer_from_gguf(GgufFile(data, whole.bytes_.size(), "memory"));
  }

 private:
  void put(uint64_t value, int num_bytes) {
    for (int i = 0; i < num_bytes; ++i) bytes_ += char(value >> (8 * i));
  }
  void put_string(const std::string& s) { put(s.size(), 8), bytes_ += s; }
  void entry(const std::string& key, uint32_t type) { put_string(key), put(type, 4), ++count_; }
  std::string bytes_;
  int count_ = 0;
};

GgufBytes tiny_gguf() {
  GgufBytes g;
  g.text("tokenizer.ggml.model", "gpt2").texts("tokenizer.ggml.merges", {"a b"});
  g.texts("tokenizer.ggml.tokens", {"a", "b", "ab", "<|im_end|>", "<|eot_id|>", "</s>", "<tool>"});
  return g;
}

std::string load_error(const GgufBytes& g) {
  try {
    g.open();
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

}  // namespace

TEST_CASE("F4 every id that any file calls EOS ends an answer") {
  Directory d;
  d.write("tokenizer_config.json", R"({"eos_token": {"content": "<|im_end|>"}, "bos_token": null})");
  d.write("generation_config.json", R"({"eos_token_id": [382, 380]})");
  d.write("config.json", R"({"eos_token_id": 383, "text_config": {"eos_token_id": [381]}})");
  auto t = tokenizer_from_hf(d.path);
  CHECK(t->eos_id == 382);
  CHECK(t->stop_ids == Ids{382, 380, 383, 381});
  CHECK(t->bos_id == -1);
}

TEST_CASE("a directory with tokenizer.json alone is enough") {
  Directory d;
  auto t = tokenizer_from_hf(d.path);
  CHECK(t->stop_ids.empty());
  CHECK(t->chat_template.empty());
  CHECK(t->encode("war").size() > 0);
}

TEST_CASE("companion files that are there must be right") {
  Directory d;
  for (const char* name : {"config.json", "generation_config.json", "tokenizer_config.json"}) {
    for (const char* bad : {"", "{", "[]", R"({"eos_token_id": "x", "eos_token": 3})",
                            R"({"eos_token_id": 384, "eos_token": "no such token"})",
                            R"({"eos_token_id": [-2], "eos_token": []})"}) {
      INFO(name << " " << bad);
      d.write(name, bad);
      CHECK_THROWS_AS(tokenizer_from_hf(d.path), Error);
    }
    fs::remove(d.path + "/" + name);
  }
  fs::remove(d.path + "/tokenizer.json");
  CHECK_THROWS_AS(tokenizer_from_hf(d.path), Error);
  CHECK_THROWS_AS(tokenizer_from_hf(d.path + "/nowhere"), Error);
}

TEST_CASE("the chat template: its own file first, then tokenizer_config.json") {
  Directory d;
  d.write("chat_template.json", R"({"chat_template": "json"})");
  CHECK(tokenizer_from_hf(d.path)->chat_template == "json");
  d.write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "d"}]})");
  CHECK(tokenizer_from_hf(d.path)->chat_template == "d");
  d.write("tokenizer_config.json",  // A18
          R"({"chat_template": [{"name": "rag", "template": "r"}, {"name": "tool_use", "template": "t"},
                                {"name": "default", "template": "d"}]})");
  CHECK(tokenizer_from_hf(d.path)->chat_template == "d");
  CHECK(tokenizer_from_hf(d.path)->tool_template == "t");
  d.write("tokenizer_config.json", R"({"chat_template": [{"name": "default"}]})");
  CHECK_THROWS_AS(tokenizer_from_hf(d.path), Error);
  d.write("tokenizer_config.json", R"({"chat_template": "string"})");
  CHECK(tokenizer_from_hf(d.path)->chat_template == "string");
  d.write("chat_template.jinja", "file");
  CHECK(tokenizer_from_hf(d.path)->chat_template == "file");
}

TEST_CASE("an unknown stage is an error with its name") {
  CHECK(load_error(tiny()) == "");
  CHECK(contains(load_error(tiny(R"(,"normalizer":{"type":"NFKC"})")),
                 "tokenizer.json: normalizer: unsupported normalizer \"NFKC\""));
  CHECK(contains(
      load_error(tiny(R"(,"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Whitespace"}]})")),
      "tokenizer.json: pre_tokenizer: unsupported pre-tokenizer \"Whitespace\""));
  CHECK(
      contains(load_error(tiny(R"(,"decoder":{"type":"WordPiece"})")), "unsupported decoder \"WordPiece\""));
  CHECK(contains(load_error(tiny(R"(,"post_processor":{"type":"BertProcessing"})")), "BertProcessing"));
  CHECK(contains(load_error(R"({"model":{"type":"Unigram","vocab":{}},"decoder":{"type":"Fuse"}})"),
                 "unsupported model \"Unigram\""));
  CHECK(contains(load_error(tiny("", R"(,"end_of_word_suffix":"</w>")")), "end_of_word_suffix"));
  CHECK(contains(load_error(tiny("", R"(,"dropout":0.1)")), "dropout"));
  CHECK(contains(load_error(R"({"model":{"type":"BPE","vocab":{},"merges":[]}})"), "\"decoder\" is missing"));
  CHECK(contains(load_error(tiny(R"(,"decoder":{"type":"Metaspace","replacement":"_"})")),
                 "unsupported decoder \"Metaspace\""));
  CHECK(contains(
      load_error(tiny(
          R"(,"pre_tokenizer":{"type":"Split","pattern":{"String":"a"},"behavior":"Removed","invert":true})")),
      "invert"));
  CHECK(contains(load_error(tiny(R"(,"added_tokens":[{"id":3,"content":"x","single_word":true}])")),
                 "added_tokens: single_word of \"x\""));
}

TEST_CASE("an added token marked as normalized is looked for in the normalised text, others as they stand") {
  const std::string normalizer = R"(,"normalizer":{"type":"Replace","pattern":{"String":" "},"content":"_"})";
  const auto encode = [&](const std::string& token, const std::string& text) {
    return tokenizer_from_json(tiny(normalizer + R"(,"added_tokens":[{"id":3,"content":)" + token + "}]"),
                               "t")
        ->encode(text);
  };
  CHECK(encode(R"("<x>","normalized":true)", "a<x>b") == Ids{0, 3, 1});
  CHECK(encode(R"("< >","normalized":true)", "a< >b<_>") == Ids{0, 3, 1, 3});
  CHECK(encode(R"("< >","normalized":false)", "a< >b<_>") == Ids{0, 3, 1});
  CHECK(encode(R"("<_>","normalized":false)", "a< >b<_>") == Ids{2, 3});  // "< >" is dropped: unknown
  CHECK(encode(R"("< >","special":true)", "a< >b<_>") == Ids{0, 3, 1});   // the default of special ones
  CHECK(encode(R"("< >")", "a< >b<_>") == Ids{0, 3, 1, 3});               // and of others
}

TEST_CASE("a Metaspace in its older and newer spelling, and one that is wrong") {
  const auto open = [](const std::string& members) {
    return tiny(R"(,"pre_tokenizer":{"type":"Metaspace","replacement":"a")" + members + "}");
  };
  const auto encode = [&](const std::string& members) {
    return tokenizer_from_json(open(members), "t")->encode("b b");
  };
  CHECK(encode("") == Ids{2, 2});  // "ab", "ab"
  CHECK(encode(R"(,"add_prefix_space":false)") == Ids{1, 2});
  CHECK(encode(R"(,"add_prefix_space":true,"prepend_scheme":"never")") == Ids{1, 2});
  CHECK(encode(R"(,"prepend_scheme":"first")") == Ids{2, 2});
  CHECK(contains(load_error(open(R"(,"prepend_scheme":"last")")), "unknown prepend_scheme \"last\""));
  CHECK(contains(load_error(tiny(R"(,"pre_tokenizer":{"type":"Metaspace","replacement":""})")), "is empty"));
}

TEST_CASE("damaged tokenizer.json files are errors that name the place") {
  for (
      const std::string& bad :
      {std::string("[]"),
       std::string("{}"),
       std::string("{\"model\":3}"),
       std::string(1000, '['),
       std::string("\xFF"),
       std::string(R"({"model":{"type":"BPE","vocab":{"a":-1},"merges":[]},"decoder":{"type":"Fuse"}})"),
       std::string(
           R"({"model":{"type":"BPE","vocab":{"a":2000000000},"merges":[]},"decoder":{"type":"Fuse"}})"),
       std::string(R"({"model":{"type":"BPE","vocab":{"a":0,"b":0},"merges":[]},"decoder":{"type":"Fuse"}})"),
       std::string(R"({"model":{"type":"BPE","vocab":{"a":0.5},"merges":[]},"decoder":{"type":"Fuse"}})"),
       std::string(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":["ab"]},"decoder":{"type":"Fuse"}})"),
       std::string(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[["a"]]},"decoder":{"type":"Fuse"}})"),
       std::string(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":["a a"]},"decoder":{"type":"Fuse"}})"),
       std::string(
           R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[],"unk_token":"x"},"decoder":{"type":"Fuse"}})"),
       tiny(R"(,"added_tokens":[{"id":1,"content":"a"}])"),
       tiny(R"(,"added_tokens":[{"id":-5,"content":"x"}])"),
       tiny(R"(,"added_tokens":[{"id":4,"content":"a\u0000b"},{"id":5,"content":"b"}])"),
       tiny(R"(,"pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"})"),
       tiny(R"(,"pre_tokenizer":{"type":"Split","pattern":{"Regex":"a"},"behavior":"Nearby"})"),
       tiny(
           R"(,"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]})"),
       tiny(R"(,"decoder":{"type":"Strip","content":" ","start":1,"stop":0})"),
       tiny(R"(,"post_processor":{"type":"TemplateProcessing","single":[]})")}) {
    INFO(bad);
    CHECK(contains(load_error(bad), "tokenizer.json: "));
  }
}

TEST_CASE("unknown characters give unk or nothing") {
  auto plain = tokenizer_from_json(tiny(), "t");
  CHECK(plain->encode("axb") == Ids{2});  // the unknown character is dropped first, as in the reference
  auto unk = tokenizer_from_json(tiny("", R"(,"unk_token":"b")"), "t");
  CHECK(unk->encode("xxab") == Ids{1, 1, 2});
  auto fused = tokenizer_from_json(tiny("", R"(,"unk_token":"b","fuse_unk":true)"), "t");
  CHECK(fused->encode("xxab") == Ids{1, 2});
}

TEST_CASE("of added tokens that begin at one place the longest is taken") {
  auto t = tokenizer_from_json(
      tiny(
          R"(,"added_tokens":[{"id":3,"content":"<t>","special":true},{"id":4,"content":"<t>a<","special":true}])"),
      "t");
  CHECK(t->encode("<t>a<t>b") == Ids{4, 1});  // "t>" is unknown: dropped
  CHECK(t->encode("<t>ab") == Ids{3, 2});
}

TEST_CASE("EOS of GGUF: eos, eot and eom ids and the well-known texts of control tokens") {
  GgufBytes g = tiny_gguf();
  g.text("tokenizer.ggml.pre", "gpt-2").ints("tokenizer.ggml.token_type", {1, 1, 1, 3, 3, 1, 4});
  auto by_text = g.open();
  CHECK(by_text->eos_id == -1);
  CHECK(by_text->stop_ids == Ids{3, 4});  // "</s>" is an ordinary token here
  auto by_id = g.integer("tokenizer.ggml.eos_token_id", 6).integer("tokenizer.ggml.eot_token_id", 4).open();
  CHECK(by_id->eos_id == 6);
  CHECK(by_id->stop_ids == Ids{6, 4, 3});
  CHECK(by_id->is_special(6));  // T6: a stop id is special whatever its type says
  CHECK(by_id->encode("<tool>", {false, false}).size() != 1);
  CHECK(by_text->encode("<tool>", {false, false}) == Ids{6});
}

TEST_CASE("GGUF: the default chat template and the one for tools, of several that have names") {
  auto t = tokenizer_from_gguf(GgufFile(nano_test::data_path("golden/tokenizers/templates.gguf")));
  CHECK(t->chat_template == "default: {{ messages }}");
  CHECK(t->tool_template == "tool_use: {{ messages }}");
  CHECK(tiny_gguf().text("tokenizer.ggml.pre", "gpt-2").open()->tool_template == "");
}

TEST_CASE("GGUF files with missing, unknown or damaged keys are errors that name the key") {
  CHECK(contains(load_error(tiny_gguf()), "tokenizer.ggml.pre"));
  CHECK(contains(load_error(tiny_gguf().text("tokenizer.ggml.pre", "my-bpe")),
                 "unknown pre-tokenizer \"my-bpe\""));
  CHECK(contains(load_error(tiny_gguf().text("tokenizer.ggml.pre", "my-bpe")), "(known: "));
  CHECK(contains(load_error(tiny_gguf().text("tokenizer.ggml.pre", "my-bpe")), "gpt-2, "));
  GgufBytes good = tiny_gguf().text("tokenizer.ggml.pre", "gpt-2");
  CHECK(load_error(good) == "");
  CHECK(contains(load_error(GgufBytes(good).ints("tokenizer.ggml.token_type", {1})), "token_type"));
  CHECK(contains(load_error(GgufBytes(good).ints("tokenizer.ggml.token_type", {1, 1, 1, 1, 1, 1, 9})),
                 "token_type"));
  CHECK(contains(load_error(GgufBytes(good).integer("tokenizer.ggml.eos_token_id", 7)), "eos_token_id"));
  CHECK(contains(load_error(GgufBytes().text("tokenizer.ggml.model", "bert")),
                 "unsupported tokenizer model \"bert\""));
  CHECK_THROWS_AS(GgufBytes().open(), Error);
  GgufBytes merges;
  merges.text("tokenizer.ggml.model", "gpt2")
      .text("tokenizer.ggml.pre", "gpt-2")
      .texts("tokenizer.ggml.tokens", {"a"});
  CHECK(contains(load_error(GgufBytes(merges).texts("tokenizer.ggml.merges", {"ab"})), "merges"));
  CHECK(contains(load_error(GgufBytes(merges).texts("tokenizer.ggml.merges", {"a a"})), "\"aa\""));
  CHECK(contains(load_error(GgufBytes(merges).texts("tokenizer.ggml.merges", {"a a"})),
                 "ggml.merges: the merge"));
}

TEST_CASE("JSON: nesting is limited, and errors say where") {
  CHECK(parse_json(std::string(100, '[') + std::string(100, ']'), "f").is_array());
  CHECK_THROWS_AS(parse_json(std::string(101, '[') + std::string(101, ']'), "f"), Error);
  CHECK_THROWS_AS(parse_json(std::string(1'000'000, '{'), "f"), Error);
  CHECK(parse_json("\"" + std::string(1000, '[') + "\"", "f").is_string());
  for (const char* bad : {"", "1 2", "\"\xFF\"", "{\"a\":}", "\"\\ud800\"", "1e999"}) {
    INFO(bad);
    CHECK_THROWS_AS(parse_json(bad, "f"), Error);
  }
  try {
    parse_json("{\n  \"a\": x}", "f");
    CHECK(false);
  } catch (const Error& e) {
    CHECK(contains(e.what(), "f: invalid JSON at line 2, column 8"));
  }
  CHECK(parse_ordered_json("{\"b\":1,\"a\":2}", "f").dump() == "{\"b\":1,\"a\":2}");
}

TEST_CASE(
    "JSON that keeps the order of keys: their number in one object is limited, it takes quadratic time") {
  const auto object = [](int num_keys) {
    std::string text = "{\"0\":\"a:b:{:\"";
    for (int i = 1; i < num_keys; ++i) text += ",\"" + std::to_string(i) + "\":{\"a\":1}";
    return text + "}";
  };
  const auto error = [](const std::string& text) { return error_of([&] { parse_ordered_json(text, "f"); }); };
  CHECK(parse_ordered_json(object(kMaxJsonKeys), "f").size() == size_t(kMaxJsonKeys));
  CHECK(error("[" + object(3000) + "," + object(3000) + "]") == "");
  CHECK(contains(error(object(kMaxJsonKeys + 1)), "f: invalid JSON at line 1, column "));
  CHECK(contains(error(object(kMaxJsonKeys + 1)), ": an object of more than 4000 keys"));
  CHECK(contains(error("[1," + object(300'000) + "]"), "more than 4000 keys"));
  CHECK(parse_json(object(100'000), "f").size() == 100'000);  // a vocabulary is one
  CHECK(contains(error("}}}:"), "line 1, column 1"));
}
