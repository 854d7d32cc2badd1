// A tokenizer from the tokenizer.ggml.* keys of a GGUF file.
// Source: gguf-py/gguf/constants.py and src/llama-vocab.cpp of ggml-org/llama.cpp (names and defaults).
#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"       // Error
#include "checkpoint/gguf.h"  // GgufFile
#include "text/tokenizer.h"   // Tokenizer
#include "text/utf8.h"        // replace_text

namespace nano {
namespace {

const std::string kPrefix = "tokenizer.ggml.";
const std::string kSpaceMark = "\u2581";

enum class Kind { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

// Texts that end an answer in some model family, used where the file does not name them by id.
constexpr const char* kEndTexts[] = {
    "<|eot_id|>",      "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
    "<|end_of_text|>", "<|eom_id|>", "<EOT>",   "</s>",          "<eos>"};

struct Vocabulary {
  bool sentencepiece;
  std::vector<std::string> texts;
  std::vector<Kind> kinds;
  std::vector<double> scores;  // empty unless SentencePiece

  bool is(size_t id, Kind kind) const { return kinds[id] == kind; }
  // Found in a text, or the result of a merge.
  bool ordinary(size_t id) const {
    return is(id, Kind::normal) || is(id, Kind::user_defined) || (sentencepiece && is(id, Kind::byte));
  }
};

Vocabulary read_vocabulary(const GgufFile& file, bool sentencepiece) {
  Vocabulary v{sentencepiece, {}, {}, {}};
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
      if (v.is(i, Kind::byte) && byte_of_token(v.texts[i]) < 0)
        throw Error(fmt::format("token {} is marked as a byte but is not of the form <0x0A>", i),
                    kPrefix + "token_type");
    }
  }
  if (sentencepiece) {
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
  if (id >= -1 && id < int64_t(v.texts.size())) return int32_t(id);
  if (!file.has(kPrefix + key)) return -1;  // the fallback does not fit this vocabulary
  throw Error(fmt::format("id {} is outside the vocabulary of {}", id, v.texts.size()), kPrefix + key);
}

std::vector<Tokenizer::Token> make_tokens(const Vocabulary& v) {
  std::vector<Tokenizer::Token> tokens(v.texts.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string& text = v.texts[i];
    Tokenizer::Token& token = tokens[i];
    token.text = token.bytes = text;
    token.special = v.is(i, Kind::control) || v.is(i, Kind::unknown) || v.is(i, Kind::unused);
    if (v.is(i, Kind::byte))
      token.bytes = std::string(1, char(byte_of_token(text)));
    else if (v.sentencepiece && !token.special)
      token.bytes = replace_text(text, kSpaceMark, " ");
    else if (!v.sentencepiece && v.is(i, Kind::normal))
      token.bytes = bytes_of_stand_ins(text).value_or(text);
  }
  return tokens;
}

BpeModel make_model(const GgufFile& file, const Vocabulary& v, BpeModel::Options options) {
  BpeModel model(options);
  for (size_t i = 0; i < v.texts.size(); ++i) model.add_token(int32_t(i), v.texts[i], !v.ordinary(i));
  if (v.sentencepiece) {
    for (size_t i = 0; i < v.texts.size(); ++i)
      if (v.is(i, Kind::normal) || v.is(i, Kind::user_defined)) model.add_cost(int32_t(i), -v.scores[i]);
    return model;
  }
  double rank = 0;
  const std::vector<std::string> merges = file.get_strings(kPrefix + "merges");
  try {
    for (const std::string& merge : merges) model.add_merge(merge, rank++);
  } catch (const Error& e) {
    throw Error(e.problem, kPrefix + "merges", e.hint);
  }
  return model;
}

void add_added_tokens(const Vocabulary& v, Tokenizer& out) {
  for (size_t i = 0; i < v.texts.size(); ++i) {
    const bool user_defined = v.is(i, Kind::user_defined);
    if (!user_defined && !v.is(i, Kind::control) && !v.is(i, Kind::unknown)) continue;
    const std::string& text = v.texts[i];
    out.add_added_token(
        {int32_t(i), v.sentencepiece && user_defined ? replace_text(text, kSpaceMark, " ") : text});
  }
}

void read_ids(const GgufFile& file, const Vocabulary& v, Tokenizer& out) {
  out.bos_id = read_id(file, v, "bos_token_id", v.sentencepiece ? 1 : -1);
  out.eos_id = read_id(file, v, "eos_token_id", v.sentencepiece ? 2 : -1);
  out.mark_special(out.bos_id);
  out.add_stop_id(out.eos_id);
  out.add_stop_id(read_id(file, v, "eot_token_id"));
  out.add_stop_id(read_id(file, v, "eom_token_id"));
  for (size_t i = 0; i < v.texts.size(); ++i) {
    bool may_end = v.is(i, Kind::control) || v.is(i, Kind::user_defined);
    if (may_end && std::count(std::begin(kEndTexts), std::end(kEndTexts), v.texts[i]))
      out.add_stop_id(int32_t(i));
  }
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
  BpeModel::Options options;
  bool space_prefix = false, add_bos = sentencepiece;
  if (sentencepiece) {
    if (file.get_bool(kPrefix + "remove_extra_whitespaces", false))
      throw Error("removing extra white space is not supported", kPrefix + "remove_extra_whitespaces");
    space_prefix = file.get_bool(kPrefix + "add_space_prefix", true);
    if (space_prefix) normalizer.add_prepend(kSpaceMark);
    normalizer.add_replace(" ", kSpaceMark);
    options.byte_level = false;
    options.byte_fallback = true;
    options.unk_id = read_id(file, v, "unknown_token_id", 0);
    if (options.unk_id < 0) throw Error("there is no unknown token", kPrefix + "unknown_token_id");
  } else {
    if (!file.has(kPrefix + "pre"))
      throw Error(
          "the file does not name its pre-tokenizer", kPrefix + "pre",
          "convert the model again with a current converter, or write the key (for example \"gpt-2\")");
    NamedRule rule = rule_by_name(file.get_string(kPrefix + "pre"));
    normalizer = std::move(rule.normalizer);
    pretokenizer = std::move(rule.pretokenizer);
    options.ignore_merges = rule.ignore_merges;
    add_bos = rule.add_bos;
  }

  auto out = std::make_unique<Tokenizer>(make_tokens(v), make_model(file, v, options), std::move(normalizer),
                                         std::move(pretokenizer));
  out->replace_each_byte = sentencepiece;
  out->strip_leading_space = space_prefix;
  add_added_tokens(v, *out);
  read_ids(file, v, *out);
  if (file.get_bool(kPrefix + "add_bos_token", add_bos) && out->bos_id >= 0) out->prefix_ids = {out->bos_id};
  if (file.get_bool(kPrefix + "add_eos_token", false) && out->eos_id >= 0) out->suffix_ids = {out->eos_id};
  out->chat_template = file.get_string("tokenizer.chat_template", "");
  out->tool_template = file.get_string("tokenizer.chat_template.tool_use", "");
  return out;
}

}  // namespace nano
