// A tokenizer from the tokenizer.ggml.* keys of a GGUF file.
// Source: gguf-py/gguf/constants.py and src/llama-vocab.cpp of ggml-org/llama.cpp (names and defaults).
#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"       // Error
#include "checkpoint/gguf.h"  // GgufFile
#include "text/pipeline.h"    // PipelineTokenizer
#include "text/utf8.h"        // replace_text

namespace nano {
namespace {

using Token = PipelineTokenizer::Token;

const std::string kPrefix = "tokenizer.ggml.";
const std::string kSpaceMark = "\u2581";

enum class Kind { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

// Texts that end an answer in some model family, used where the file does not name them by id.
constexpr const char* kEndTexts[] = {
    "<|eot_id|>",      "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
    "<|end_of_text|>", "<|eom_id|>", "<EOT>",   "</s>",          "<eos>"};

struct Vocabulary {
  std::vector<std::string> texts;
  std::vector<Kind> kinds;
  std::vector<double> scores;  // empty unless SentencePiece

  bool valid(int64_t id) const { return id >= 0 && id < int64_t(texts.size()); }
};

Vocabulary read_vocabulary(const GgufFile& file, bool with_scores) {
  Vocabulary v;
  v.texts = file.get_strings(kPrefix + "tokens");
  if (v.texts.empty()) throw Error("no tokens", kPrefix + "tokens");
  v.kinds.assign(v.texts.size(), Kind::normal);
  auto check_size = [&](size_t size, const char* key) {
    if (size != v.texts.size())
      throw Error(fmt::format("{} entries for {} tokens", size, v.texts.size()), kPrefix + key);
  };
  if (file.has(kPrefix + "token_type")) {
    std::vector<int64_t> types = file.get_ints(kPrefix + "token_type");
    check_size(types.size(), "token_type");
    for (size_t i = 0; i < types.size(); ++i) {
      if (types[i] < 1 || types[i] > 6)
        throw Error(fmt::format("token {} has the unknown type {}", i, types[i]), kPrefix + "token_type");
      v.kinds[i] = Kind(types[i]);
    }
  }
  if (with_scores) {
    v.scores = file.get_floats(kPrefix + "scores");
    check_size(v.scores.size(), "scores");
    for (size_t i = 0; i < v.scores.size(); ++i)
      if (std::isnan(v.scores[i]))
        throw Error(fmt::format("token {} has the score NaN", i), kPrefix + "scores");
  }
  return v;
}

// The id under `key`, or `fallback`; -1 = none.
int32_t read_id(const GgufFile& file, const Vocabulary& v, const char* key, int64_t fallback = -1) {
  int64_t id = file.get_int(kPrefix + key, fallback);
  if (id == -1 || v.valid(id)) return int32_t(id);
  if (!file.has(kPrefix + key)) return -1;  // the fallback does not fit this vocabulary
  throw Error(fmt::format("id {} is outside the vocabulary of {}", id, v.texts.size()), kPrefix + key);
}

std::vector<Token> make_tokens(const Vocabulary& v, bool byte_level) {
  std::vector<Token> tokens(v.texts.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string& text = v.texts[i];
    Token& token = tokens[i];
    token.text = token.bytes = text;
    token.special = v.kinds[i] == Kind::control || v.kinds[i] == Kind::unknown || v.kinds[i] == Kind::unused;
    int byte = v.kinds[i] == Kind::byte ? byte_of_token(text) : -1;
    if (byte >= 0)
      token.bytes = std::string(1, char(byte));
    else if (!byte_level && !token.special)
      token.bytes = replace_text(text, kSpaceMark, " ");
    else if (byte_level && v.kinds[i] == Kind::normal)
      token.bytes = bytes_of_stand_ins(text).value_or(text);
  }
  return tokens;
}

BpeModel make_bpe(const GgufFile& file, const Vocabulary& v, const std::string& pre) {
  BpeModel::Options options;
  options.ignore_merges = pre == "llama-bpe" || pre == "llama3" || pre == "llama-v3";
  BpeModel model(options);
  for (size_t i = 0; i < v.texts.size(); ++i)
    model.add_token(int32_t(i), v.texts[i], v.kinds[i] != Kind::normal && v.kinds[i] != Kind::user_defined);
  for (const std::string& merge : file.get_strings(kPrefix + "merges")) {
    size_t space = merge.find(' ', 1);
    if (space == merge.npos) throw Error("merge \"" + merge + "\" has no second part", kPrefix + "merges");
    model.add_merge(merge.substr(0, space), merge.substr(space + 1));
  }
  return model;
}

SentencePieceModel make_sentencepiece(const Vocabulary& v, int32_t unk_id) {
  SentencePieceModel model(unk_id);
  for (size_t i = 0; i < v.texts.size(); ++i) {
    if (v.kinds[i] == Kind::byte)
      model.add_byte_token(int32_t(i), v.texts[i]);
    else if (v.kinds[i] == Kind::normal || v.kinds[i] == Kind::user_defined)
      model.add_token(int32_t(i), v.texts[i], v.scores[i]);
  }
  return model;
}

void read_ids(const GgufFile& file, const Vocabulary& v, bool sentencepiece, Tokenizer& out) {
  out.bos_id = read_id(file, v, "bos_token_id", sentencepiece ? 1 : -1);
  out.eos_id = read_id(file, v, "eos_token_id", sentencepiece ? 2 : -1);
  auto add = [&](int32_t id) {
    if (id >= 0 && !std::count(out.stop_ids.begin(), out.stop_ids.end(), id)) out.stop_ids.push_back(id);
  };
  add(out.eos_id);
  add(read_id(file, v, "eot_token_id"));
  add(read_id(file, v, "eom_token_id"));
  for (size_t i = 0; i < v.texts.size(); ++i) {
    bool may_end = v.kinds[i] == Kind::control || v.kinds[i] == Kind::user_defined;
    if (may_end && std::count(std::begin(kEndTexts), std::end(kEndTexts), v.texts[i])) add(int32_t(i));
  }
}

void add_added_tokens(const Vocabulary& v, bool sentencepiece, PipelineTokenizer& out) {
  for (size_t i = 0; i < v.texts.size(); ++i) {
    AddedToken token;
    token.id = int32_t(i);
    token.special = v.kinds[i] == Kind::control || v.kinds[i] == Kind::unknown;
    if (!token.special && v.kinds[i] != Kind::user_defined) continue;
    token.content = sentencepiece && !token.special ? replace_text(v.texts[i], kSpaceMark, " ") : v.texts[i];
    out.add_added_token(std::move(token));
  }
  out.mark_special(out.bos_id);
  for (int32_t id : out.stop_ids) out.mark_special(id);
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_gguf(const GgufFile& file) {
  const std::string model_name = file.get_string(kPrefix + "model");
  const bool sentencepiece = model_name == "llama";
  if (!sentencepiece && model_name != "gpt2")
    throw Error("unsupported tokenizer model \"" + model_name + "\"", kPrefix + "model",
                "known: gpt2 (byte-level BPE), llama (SentencePiece)");
  Vocabulary v = read_vocabulary(file, sentencepiece);

  Normalizer normalizer;
  Pretokenizer pretokenizer;
  PipelineTokenizer::Decoding decoding;
  std::optional<std::variant<BpeModel, SentencePieceModel>> model;
  bool add_bos = sentencepiece;
  if (sentencepiece) {
    if (file.get_bool(kPrefix + "remove_extra_whitespaces", false))
      throw Error("removing extra white space is not supported", kPrefix + "remove_extra_whitespaces");
    decoding.strip_leading_space = file.get_bool(kPrefix + "add_space_prefix", true);
    if (decoding.strip_leading_space) normalizer.add_prepend(kSpaceMark);
    normalizer.add_replace(Regex::literal(" "), kSpaceMark);
    model = make_sentencepiece(v, read_id(file, v, "unknown_token_id", 0));
  } else {
    if (!file.has(kPrefix + "pre"))
      throw Error(
          "the file does not name its pre-tokenizer", kPrefix + "pre",
          "convert the model again with a current converter, or write the key (for example \"gpt-2\")");
    std::string pre = file.get_string(kPrefix + "pre");
    pretokenizer = pretokenizer_by_name(pre);
    BpeModel bpe = make_bpe(file, v, pre);
    model = std::move(bpe);
    add_bos = pre == "llama-bpe" || pre == "llama3" || pre == "llama-v3";
  }

  auto out = std::make_unique<PipelineTokenizer>(make_tokens(v, !sentencepiece), std::move(*model),
                                                 std::move(normalizer), std::move(pretokenizer), decoding);
  out->replace_each_byte = sentencepiece;
  read_ids(file, v, sentencepiece, *out);
  add_added_tokens(v, sentencepiece, *out);
  out->add_bos = file.get_bool(kPrefix + "add_bos_token", add_bos) && out->bos_id >= 0;
  out->add_eos = file.get_bool(kPrefix + "add_eos_token", false) && out->eos_id >= 0;
  if (out->add_bos) out->prefix_ids = {out->bos_id};
  if (out->add_eos) out->suffix_ids = {out->eos_id};
  out->chat_template = file.get_string("tokenizer.chat_template", "");
  return out;
}

}  // namespace nano
