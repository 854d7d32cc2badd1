// A tokenizer from a Hugging Face directory: tokenizer.json, and around it the files that say which ids begin and end
// a text and how a conversation is written. Each of those may be missing; one that is there must be right. Whatever
// stages tokenizer.json states are built; one that is not known is an Error with its name. Its truncation and padding
// are training settings and not used.
#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"        // Error
#include "base/mapped_file.h"  // read_file
#include "text/hf_json.h"      // has, get_id, read_member, read_object
#include "text/tokenizer.h"    // Tokenizer
#include "text/utf8.h"         // replace_text

namespace nano {
namespace {

namespace fs = std::filesystem;
using Token = Tokenizer::Token;

constexpr int64_t kMostUnusedIds = 100'000;  // between the ids of a vocabulary: more is a damaged file

// fn(step) for a stage of one step, or for each step of a Sequence, which lists them under `key`.
template <class Fn>
void each_step(const Json& json, const char* key, Fn fn) {
  if (json.at("type") != "Sequence") return fn(json);
  for (const Json& part : items(json.at(key))) each_step(part, key, fn);
}

// {"pattern": {"String": from}, "content": to}
std::pair<std::string, std::string> get_replacement(const Json& json) {
  const std::string from = json.at("pattern").at("String");
  if (from.empty()) throw Error("the pattern of a Replace is empty");
  return {from, json.at("content")};
}

// ---- tokenizer.json ----

struct Vocabulary {
  std::vector<Token> tokens;
  std::vector<AddedToken> added;
  std::set<int32_t> added_ids, special_ids;
};

void read_added_tokens(const Json& list, Vocabulary& v) {
  for (const Json& item : items(list)) {
    AddedToken token;
    token.id = get_id(item.at("id"), INT32_MAX);
    token.content = item.at("content").get<std::string>();
    token.lstrip = get_or(item, "lstrip", false);
    token.rstrip = get_or(item, "rstrip", false);
    if (get_or(item, "single_word", false))
      throw Error("single_word of \"" + token.content + "\" is not supported");
    const bool special = get_or(item, "special", false);
    token.normalized = get_or(item, "normalized", !special);
    v.added_ids.insert(token.id);
    if (special) v.special_ids.insert(token.id);
    v.added.push_back(std::move(token));
  }
}

// Token texts by id, from the model's vocabulary and the added tokens.
void read_tokens(const Json& vocab, Vocabulary& v) {
  if (!vocab.is_object()) throw Error("vocab must be an object of token texts and ids");
  const int64_t limit = int64_t(vocab.size() + v.added.size()) + kMostUnusedIds;
  auto put = [&](const std::string& text, int32_t id) {
    if (id >= limit) throw Error(fmt::format("token \"{}\" has the id {}, beyond {}", text, id, limit));
    if (id >= int32_t(v.tokens.size())) v.tokens.resize(size_t(id) + 1);
    std::string& slot = v.tokens[size_t(id)].text;
    if (!slot.empty() && slot != text)
      throw Error(fmt::format("id {} belongs to \"{}\" and to \"{}\"", id, slot, text));
    slot = text;
  };
  for (const auto& [text, id] : vocab.items()) put(text, get_id(id, limit));
  for (const AddedToken& token : v.added) {
    const auto known = vocab.find(token.content);
    if (known != vocab.end() && *known != token.id)
      throw Error("the added token \"" + token.content + "\" has another id in the vocabulary");
    put(token.content, token.id);
  }
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    Token& token = v.tokens[i];
    token.bytes = token.text;
    token.special =
        token.text.empty() || v.special_ids.count(int32_t(i)) > 0;  // an id without a token shows nothing
  }
}

void read_normalizer(const Json& json, Normalizer& out) {
  const std::string type = json.at("type");
  if (type == "NFC") {
    out.add_nfc();
  } else if (type == "Replace") {
    const auto [from, to] = get_replacement(json);
    out.add_replace(from, to);
  } else if (type == "Prepend") {
    out.add_prepend(json.at("prepend"));
  } else {
    unsupported("normalizer", type, "NFC, Prepend, Replace, Sequence");
  }
}

void read_split(const Json& json, Pretokenizer& out) {
  constexpr const char* kNames[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                    "Contiguous"};
  const std::string name = json.at("behavior");
  auto found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) throw Error("unknown behavior \"" + name + "\"");
  if (get_or(json, "invert", false)) throw Error("a Split with \"invert\" is not supported");
  const Json& pattern = json.at("pattern");
  Regex regex = has(pattern, "String") ? Regex(pattern["String"], true) : Regex(pattern.at("Regex"));
  out.add_split(std::move(regex), SplitBehavior(found - std::begin(kNames)));
}

void read_metaspace(const Json& json, Pretokenizer& out) {
  constexpr const char* kSchemes[] = {"always", "first", "never"};
  const std::string mark = json.at("replacement");
  // Files of the first years say add_prefix_space: true or false in place of a scheme.
  const bool prefix = get_or(json, "add_prefix_space", true);
  const std::string scheme = get_or(json, "prepend_scheme", std::string(prefix ? "always" : "never"));
  auto found = std::find(std::begin(kSchemes), std::end(kSchemes), scheme);
  if (found == std::end(kSchemes)) throw Error("unknown prepend_scheme \"" + scheme + "\"");
  if (mark.empty()) throw Error("the replacement of a Metaspace is empty");
  out.add_space_mark(mark, Pretokenizer::Prefix(found - std::begin(kSchemes)));
  if (get_or(json, "split", true)) out.add_split(Regex(mark, true), SplitBehavior::merged_with_next);
}

// `byte_level` becomes true at a ByteLevel step, which must be the last: after it the text is no longer text.
void read_pretokenizer(const Json& json, Pretokenizer& out, bool& byte_level) {
  const std::string type = json.at("type");
  if (byte_level) throw Error("a pre-tokenizer after ByteLevel is not supported");
  if (type == "Split") {
    read_split(json, out);
  } else if (type == "Digits") {
    const bool each = get_or(json, "individual_digits", false);
    out.add_split(Regex(R"(\p{N})"), each ? SplitBehavior::isolated : SplitBehavior::contiguous);
  } else if (type == "ByteLevel") {
    if (get_or(json, "add_prefix_space", true)) out.add_space_mark(" ", Pretokenizer::Prefix::always);
    if (get_or(json, "use_regex", true)) out.add_gpt2_split();
    byte_level = true;
  } else if (type == "Metaspace") {
    read_metaspace(json, out);
  } else {
    unsupported("pre-tokenizer", type, "ByteLevel, Digits, Metaspace, Sequence, Split");
  }
}

void read_merges(const Json& merges, BpeModel& model) {
  double rank = 0;
  for (const Json& merge : items(merges)) {
    if (merge.is_array() && merge.size() == 2)
      model.add_merge(merge[0], merge[1], rank++);
    else
      model.add_merge(merge.get<std::string>(), rank++);  // "left right", the older form
  }
}

BpeModel read_model(const Json& json, const Vocabulary& v, bool byte_level) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!get_or(json, key, std::string()).empty()) throw Error(std::string(key) + " is not supported");
  if (get_or(json, "dropout", 0.0) != 0) throw Error("dropout is not supported");
  BpeModel::Options options;
  options.byte_level = byte_level;
  options.ignore_merges = get_or(json, "ignore_merges", false);
  options.byte_fallback = get_or(json, "byte_fallback", false);
  options.fuse_unk = get_or(json, "fuse_unk", false);
  const Json& vocab = json.at("vocab");
  if (has(json, "unk_token")) options.unk_id = vocab.at(json["unk_token"].get<std::string>());
  BpeModel model(options);
  for (const auto& [text, id] : vocab.items())
    model.add_token(id, text, v.special_ids.count(id.get<int32_t>()) > 0);
  read_merges(json.at("merges"), model);
  return model;
}

// What a decoder does, worked out once per token: the bytes each token stands for.
struct DecoderBuilder {
  std::vector<Token>& tokens;
  const std::set<int32_t>& added;
  bool byte_fallback = false, fused = false, strip_leading_space = false;

  void read(const Json& json);
};

void DecoderBuilder::read(const Json& json) {
  const std::string type = json.at("type");
  if (fused && type != "Strip" && type != "Fuse")
    throw Error("a decoder " + type + " after Fuse or ByteLevel is not supported");
  if (type == "ByteLevel") {
    for (size_t i = 0; i < tokens.size(); ++i)  // added tokens are written as they are
      if (!added.count(int32_t(i)))
        tokens[i].bytes = bytes_of_stand_ins(tokens[i].bytes).value_or(tokens[i].bytes);
    fused = true;
  } else if (type == "ByteFallback") {
    for (Token& token : tokens) {
      int byte = byte_of_token(token.bytes);
      if (byte >= 0) token.bytes = std::string(1, char(byte));
    }
    byte_fallback = true;
  } else if (type == "Replace") {
    const auto [from, to] = get_replacement(json);
    for (Token& token : tokens) token.bytes = replace_text(token.bytes, from, to);
  } else if (type == "Strip") {
    if (!fused || json.at("content") != " " || json.at("start") != 1 || json.at("stop") != 0)
      throw Error("only a Strip of one space at the start, after Fuse, is supported");
    strip_leading_space = true;
  } else if (type == "Fuse") {
    fused = true;
  } else {
    unsupported("decoder", type, "ByteFallback, ByteLevel, Fuse, Replace, Sequence, Strip");
  }
}

// The ids a TemplateProcessing puts around a text.
void read_post_processor(const Json& json, Tokenizer& out) {
  const std::string type = json.at("type");
  if (type == "TemplateProcessing") {
    std::vector<int32_t> prefix, suffix;
    int num_texts = 0;
    for (const Json& item : items(json.at("single"))) {
      if (has(item, "Sequence")) {
        ++num_texts;
        continue;
      }
      const std::string name = item.at("SpecialToken").at("id");
      for (const Json& id : items(json.at("special_tokens").at(name).at("ids")))
        (num_texts ? suffix : prefix).push_back(get_id(id, out.vocab_size()));
    }
    if (num_texts != 1) throw Error("single must hold the text once");
    out.prefix_ids.insert(out.prefix_ids.begin(), prefix.begin(), prefix.end());
    out.suffix_ids.insert(out.suffix_ids.end(), suffix.begin(), suffix.end());
  } else if (type != "ByteLevel") {  // ByteLevel only trims offsets
    unsupported("post-processor", type, "ByteLevel, Sequence, TemplateProcessing");
  }
}

// ---- the files around it ----

// The id of "bos_token": "<s>", or of the older {"content": "<s>", …}.
int32_t read_token(const Json& json, const Tokenizer& tokenizer) {
  const std::string text = json.is_object() ? json.at("content") : json;
  const int32_t id = tokenizer.find(text);
  if (id < 0) throw Error("\"" + text + "\" is not in the vocabulary");
  return id;
}

// A template, or a list of named ones, of which transformers takes these two by itself.
void read_templates(const Json& json, Tokenizer& out) {
  if (json.is_string()) out.chat_template = json.get<std::string>();
  if (json.is_string()) return;
  for (const Json& named : json) {
    const std::string name = named.at("name"), source = named.at("template");
    if (name == "default") out.chat_template = source;
    if (name == "tool_use") out.tool_template = source;
  }
}

void read_tokenizer_config(const Json& config, const std::string& file, Tokenizer& out) {
  read_member(config, "bos_token", file, [&](const Json& json) { out.bos_id = read_token(json, out); });
  read_member(config, "eos_token", file, [&](const Json& json) {
    out.eos_id = read_token(json, out);
    out.add_stop_id(out.eos_id);
  });
  read_member(config, "chat_template", file, [&](const Json& json) { read_templates(json, out); });
}

// config.json or generation_config.json. An answer ends at any id that any of the files calls EOS: fine-tuned models
// often add one in one file only.
void read_config_ids(const Json& config, const std::string& file, bool bos, Tokenizer& out) {
  read_member(config, "eos_token_id", file, [&](const Json& json) {  // 2, or [2, 32000]
    for (const Json& id : json.is_array() ? json : Json::array({json}))
      if (id != -1)  // "none"
        out.add_stop_id(get_id(id, out.vocab_size()));
  });
  if (bos && out.bos_id < 0)
    read_member(config, "bos_token_id", file,
                [&](const Json& json) { out.bos_id = get_id(json, out.vocab_size()); });
  read_member(config, "text_config", file,  // a multimodal model nests the language model's keys
              [&](const Json& json) { read_config_ids(json, file, bos, out); });
}

void read_companions(const std::string& directory, Tokenizer& out) {
  std::string file = directory + "/tokenizer_config.json";
  const bool has_tokenizer_config = fs::exists(file);
  // A template in a file of its own wins: it is not even looked at in the others then.
  Json tokenizer_config = read_object_if_there(file);
  const bool has_template_file = fs::exists(directory + "/chat_template.jinja");
  if (has_template_file) tokenizer_config.erase("chat_template");
  read_tokenizer_config(tokenizer_config, file, out);
  if (has_template_file) out.chat_template = read_file(directory + "/chat_template.jinja");
  const std::string named = directory + "/additional_chat_templates/tool_use.jinja";
  if (fs::exists(named)) out.tool_template = read_file(named);
  file = directory + "/chat_template.json";
  if (out.chat_template.empty())
    read_member(read_object_if_there(file), "chat_template", file,
                [&](const Json& json) { read_templates(json, out); });
  for (const char* name : {"/generation_config.json", "/config.json"}) {
    file = directory + name;
    read_config_ids(read_object_if_there(file), file, /*bos=*/!has_tokenizer_config, out);
  }
  if (out.eos_id < 0 && !out.stop_ids.empty()) out.eos_id = out.stop_ids[0];
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_json(std::string_view text, const std::string& where) {
  const Json root = read_object(text, where);
  for (const char* key : {"model", "decoder"})
    if (!has(root, key)) throw Error(fmt::format("\"{}\" is missing: this is no tokenizer.json", key), where);
  Vocabulary v;
  Normalizer normalizer;
  Pretokenizer pretokenizer;
  bool byte_level = false;
  DecoderBuilder decoder{v.tokens, v.added_ids};
  std::optional<BpeModel> model;
  const auto read_steps = [&](const char* stage, const char* list, auto read) {
    read_member(root, stage, where, [&](const Json& json) { each_step(json, list, read); });
  };
  read_steps("normalizer", "normalizers", [&](const Json& step) { read_normalizer(step, normalizer); });
  read_steps("pre_tokenizer", "pretokenizers",
             [&](const Json& step) { read_pretokenizer(step, pretokenizer, byte_level); });
  read_member(root, "added_tokens", where, [&](const Json& json) { read_added_tokens(json, v); });
  read_member(root, "model", where, [&](const Json& json) {
    // Files of the first years state no type; only BPE has merges.
    const std::string type = get_or(json, "type", std::string(has(json, "merges") ? "BPE" : ""));
    if (type != "BPE") unsupported("model", type, "BPE");
    read_tokens(json.at("vocab"), v);
    model = read_model(json, v, byte_level);
  });
  read_steps("decoder", "decoders", [&](const Json& step) { decoder.read(step); });

  auto out = std::make_unique<Tokenizer>(std::move(v.tokens), std::move(*model), std::move(normalizer),
                                         std::move(pretokenizer));
  out->replace_each_byte = decoder.byte_fallback;
  out->strip_leading_space = decoder.strip_leading_space;
  for (bool special :
       {true, false})  // of two that normalise to one text the first counts, special ones before others
    for (const AddedToken& token : v.added)
      if (v.special_ids.count(token.id) == size_t(special)) out->add_added_token(token);
  read_steps("post_processor", "processors", [&](const Json& step) { read_post_processor(step, *out); });
  return out;
}

std::unique_ptr<Tokenizer> tokenizer_from_hf(const std::string& path) {
  const bool is_directory = fs::is_directory(path);
  const std::string file = is_directory ? path + "/tokenizer.json" : path;
  if (is_directory && !fs::exists(file))
    throw Error("there is no tokenizer.json", path,
                fs::exists(path + "/tokenizer.model")
                    ? "convert tokenizer.model with transformers (save_pretrained)"
                    : "is this a Hugging Face model directory?");
  auto out = tokenizer_from_json(read_file(file), file);
  if (is_directory) read_companions(path, *out);
  if (out->bos_id < 0 && out->prefix_ids.size() == 1) out->bos_id = out->prefix_ids[0];
  out->mark_special(out->bos_id);
  return out;
}

}  // namespace nano
