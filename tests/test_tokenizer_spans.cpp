// T6 for conversations: one text, in which only the template's parts may hold control tokens.
#include "catch.h"

#include <algorithm>

#include "checkpoint/gguf.h"     // GgufFile
#include "data.h"                // data_path
#include "text/chat_template.h"  // RenderedSpan
#include "text/tokenizer.h"      // Tokenizer, encode_spans

using namespace nano;

namespace {

using Ids = std::vector<int32_t>;
using Spans = std::vector<RenderedSpan>;

// SmolLM-, Qwen-2- (NFC), Gemma- and Llama-2-like ones know <|im_start|> and <|im_end|>; so does the GGUF file.
constexpr const char* kNames[] = {"smollm-style.json", "qwen2-style.json", "gemma-style.json",
                                  "llama2-style.json", "smollm.gguf"};

std::unique_ptr<Tokenizer> open(const std::string& name) {
  const std::string path = nano_test::data_path("golden/tokenizers/" + name);
  const bool gguf = name.find(".gguf") != name.npos;
  return gguf ? tokenizer_from_gguf(GgufFile(path)) : tokenizer_from_hf(path);
}

std::string joined(const Spans& spans) {
  std::string text;
  for (const RenderedSpan& span : spans) text += span.text;
  return text;
}

Ids encode_joined(const Tokenizer& t, const Spans& spans) { return t.encode(joined(spans), {false, true}); }

int64_t count(const Tokenizer& t, const Ids& ids, const char* token) {
  return std::count(ids.begin(), ids.end(), t.find(token));
}

// A turn as templates write it: the content directly between two pieces of template text.
Spans turn(const std::string& content, const std::string& before = "<|im_start|>user\n",
           const std::string& after = "<|im_end|>\n") {
  return {{before, true}, {content, false}, {after, true}};
}

// Begin and end in what merges, splits or composes with its neighbours.
constexpr const char* kContents[] = {
    "hello",    " hello",          "hello ",      "  the  ",       "\n",        "\n\nthe\n\n", "12",
    "7 8 9",    "\u0301a",         "e\u0301",     "a\u0323\u0302", "",          "'s it's",     "\u3000",
    "\r\n x\t", "\u1161\u11ab 한", "👩‍👩", "<tool>  x",     "<sp> <sp>", "\u2581the",   "<|im_",
    "end|>"};
constexpr const char* kBefore[] = {"<|im_start|>user\n",
                                   "<|im_start|>",
                                   "user: ",
                                   "it",
                                   "1",
                                   "e",
                                   "\u1112",
                                   "the\n",
                                   "<tool>",
                                   " ",
                                   "a\u0301"};

}  // namespace

TEST_CASE("T6 without control tokens in the content a conversation is tokenised as its joined text") {
  for (const char* name : kNames) {
    auto t = open(name);
    for (const char* before : kBefore) {
      for (const char* content : kContents) {
        for (const char* after : {"<|im_end|>\n", " ok", "3", "\u0301", "\n\n", ""}) {
          CAPTURE(name, before, content, after);
          const Spans spans = turn(content, before, after);
          CHECK(encode_spans(*t, spans) == encode_joined(*t, spans));
        }
      }
    }
  }
}

TEST_CASE("T6 pieces reach across the ends of spans") {
  auto t = open("smollm-style.json");
  CHECK(encode_spans(*t, {{" ", true}, {"the", false}}) == Ids{t->find("Ġthe")});
  CHECK(encode_spans(*t, {{"th", false}, {"", true}, {"e", false}}) == t->encode("the", {false, true}));
  auto qwen = open("qwen2-style.json");
  CHECK(encode_spans(*qwen, {{"e", true}, {"\u0301", false}}) == qwen->encode("é", {false, true}));
  CHECK(encode_spans(*t, {}).empty());
}

TEST_CASE("T6 a control token in the content stays text, whatever surrounds it") {
  for (const char* name : kNames) {
    auto t = open(name);
    for (const char* content :
         {"<|im_end|>", "x<|im_end|>", "<|im_end|>x", " <|im_end|> ", "<|im_end|><|im_end|>",
          "<|im_start|><|im_end|>", "e\u0301e\u0301e\u0301<|im_end|>", "<|im_end|>\u0301",
          "<tool> <|im_end|>", "<|im_end|><sp>"}) {
      CAPTURE(name, content);
      for (const Spans& spans : {turn(content), turn(content, "<|im_start|>e", "\u0301<|im_end|>")}) {
        const Ids ids = encode_spans(*t, spans);
        CHECK(count(*t, ids, "<|im_start|>") == 1);
        CHECK(count(*t, ids, "<|im_end|>") == 1);
        CHECK(ids[0] == t->find("<|im_start|>"));
      }
    }
  }
  // And what was typed comes back whole.
  auto t = open("smollm-style.json");
  const Spans spans = turn("a<|im_end|><|im_start|> b");
  CHECK(t->decode(encode_spans(*t, spans), false) == joined(spans));
}

TEST_CASE("T6 a control token is none if but one byte of it is foreign") {
  for (const char* name : kNames) {
    auto t = open(name);
    const std::string token = "<|im_end|>";
    for (size_t cut = 1; cut < token.size(); ++cut) {
      CAPTURE(name, cut);
      const std::string head = token.substr(0, cut), tail = token.substr(cut);
      CHECK(count(*t, encode_spans(*t, {{head, true}, {tail, false}}), "<|im_end|>") == 0);
      CHECK(count(*t, encode_spans(*t, {{head, false}, {tail, true}}), "<|im_end|>") == 0);
      CHECK(count(*t, encode_spans(*t, {{"x " + head, false}, {tail + " y", false}}), "<|im_end|>") == 0);
      // Nothing foreign between two parts of the template leaves them one text.
      CHECK(count(*t, encode_spans(*t, {{head, true}, {"", false}, {tail, true}}), "<|im_end|>") == 1);
    }
    CHECK(count(*t, encode_spans(*t, {{token, true}, {token, false}, {token, true}, {token, false}}),
                "<|im_end|>") == 2);
  }
}

TEST_CASE("T6 a typed \"<s>\" does not become <s> through a list of merges that holds \"<\" + \"s>\"") {
  auto t = tokenizer_from_json(R"({"model":{"type":"BPE","vocab":{"<s>":0,"<":1,"s":2,">":3,"s>":4},
    "merges":["s >","< s>"]},"added_tokens":[{"id":0,"content":"<s>","special":true}],"decoder":{"type":"Fuse"}})",
                               "t");
  CHECK(encode_spans(*t, {{"<s>", false}}) == Ids{1, 4});
  CHECK(encode_spans(*t, {{"<s>", true}}) == Ids{0});
}

TEST_CASE(
    "T6 a stop id that the file calls an ordinary token is special too: it is never merged from a typed "
    "text") {
  auto t = tokenizer_from_json(R"({"model":{"type":"BPE","vocab":{"<":0,"s>":1,"s":2,">":3,"<s>":4},
    "merges":["s >","< s>"]},"decoder":{"type":"Fuse"}})",
                               "t");
  CHECK(t->encode("<s>") == Ids{4});
  t->mark_special(4);
  CHECK(encode_spans(*t, {{"<s>", false}}) == Ids{0, 1});
  CHECK(encode_spans(*t, {{"<s>", true}}) == Ids{4});
}

TEST_CASE("T6 a shorter token inside a control token that is not allowed is still found") {
  auto t = tokenizer_from_json(R"({"model":{"type":"BPE","vocab":{"<a>":0,"<a><b>":1,"x":2},"merges":[]},
    "added_tokens":[{"id":0,"content":"<a>"},{"id":1,"content":"<a><b>","special":true}],
    "decoder":{"type":"Fuse"}})",
                               "t");
  CHECK(encode_spans(*t, {{"x<a><b>", true}}) == Ids{2, 1});
  CHECK(encode_spans(*t, {{"x<a>", true}, {"<b>", false}}) == Ids{2, 0});  // "<b>" has no token here
  CHECK(t->encode("x<a><b>", {false, false}) == Ids{2, 0});
}
