#include "text/tokenizer_json.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"      // Error
#include "text/json_node.h"  // JsonNode, parse_json
#include "text/utf8.h"       // replace_text

namespace nano {
namespace {

using Token = PipelineTokenizer::Token;

constexpr int64_t kMostUnusedIds = 100'000;  // between the ids of a vocabulary: more is a damaged file

struct Vocabulary {
  std::vector<Token> tokens;
  std::vector<AddedToken> added;
};

Regex read_pattern(const JsonNode& pattern) {
  if (pattern.has("String")) return Regex::literal(pattern["String"].string());
  try {
    return Regex(pattern["Regex"].string());
  } catch (const Error& e) {
    pattern.fail(e.problem);
  }
}

std::vector<AddedToken> read_added_tokens(const JsonNode& root) {
  std::vector<AddedToken> added;
  if (!root.has("added_tokens")) return added;
  for (const JsonNode& node : root["added_tokens"].items()) {
    AddedToken token;
    int64_t id = node["id"].integer();
    if (id < 0 || id > INT32_MAX) node.fail("the id is out of range");
    token.id = int32_t(id);
    token.content = node["content"].string();
    token.single_word = node.boolean("single_word", false);
    token.lstrip = node.boolean("lstrip", false);
    token.rstrip = node.boolean("rstrip", false);
    token.special = node.boolean("special", false);
    token.normalized = node.boolean("normalized", !token.special);
    added.push_back(std::move(token));
  }
  return added;
}

// Token texts by id, from the model's vocabulary and the added tokens.
Vocabulary read_vocabulary(const JsonNode& root) {
  Vocabulary v;
  v.added = read_added_tokens(root);
  const JsonNode vocab = root["model"]["vocab"];
  if (!vocab.value().is_object()) vocab.fail("must be an object of token texts and ids");
  int64_t num_tokens = int64_t(vocab.value().size() + v.added.size());
  auto put = [&](const std::string& text, int64_t id) {
    if (id < 0 || id >= num_tokens + kMostUnusedIds)
      vocab.fail(fmt::format("token \"{}\" has the id {}, with only {} tokens", text, id, num_tokens));
    if (id >= int64_t(v.tokens.size())) v.tokens.resize(size_t(id) + 1);
    std::string& slot = v.tokens[size_t(id)].text;
    if (!slot.empty() && slot != text)
      vocab.fail(fmt::format("id {} belongs to \"{}\" and to \"{}\"", id, slot, text));
    slot = text;
  };
  for (const auto& [text, id] : vocab.value().items()) {
    if (!id.is_number_integer()) vocab.fail("the id of \"" + text + "\" is not an integer");
    put(text, id.get<int64_t>());
  }
  for (const AddedToken& token : v.added) {
    auto known = vocab.value().find(token.content);
    if (known != vocab.value().end() && known->get<int64_t>() != token.id)
      vocab.fail(fmt::format("\"{}\" has the id {} here and {} in added_tokens", token.content,
                             known->get<int64_t>(), token.id));
    put(token.content, token.id);
  }
  for (Token& token : v.tokens) token.special = token.text.empty();  // an id without a token shows nothing
  return v;
}

void read_normalizer(const JsonNode& node, Normalizer& out) {
  const std::string type = node["type"].string();
  if (type == "Sequence") {
    for (const JsonNode& part : node["normalizers"].items()) read_normalizer(part, out);
  } else if (type == "NFC") {
    out.add_nfc();
  } else if (type == "Replace") {
    out.add_replace(read_pattern(node["pattern"]), node["content"].string());
  } else if (type == "Prepend") {
    out.add_prepend(node["prepend"].string());
  } else {
    node.fail("unsupported normalizer \"" + type + "\"", "known: NFC, Prepend, Replace, Sequence");
  }
}

SplitBehavior read_behavior(const JsonNode& node) {
  const std::map<std::string, SplitBehavior> known = {
      {"Isolated", SplitBehavior::isolated},
      {"Removed", SplitBehavior::removed},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous}};
  auto found = known.find(node.string());
  if (found == known.end()) node.fail("unknown behavior \"" + node.string() + "\"");
  return found->second;
}

Pretokenizer::Prepend read_prepend_scheme(const JsonNode& node) {
  // Older files have add_prefix_space in place of prepend_scheme.
  const std::string scheme =
      node.string("prepend_scheme", node.boolean("add_prefix_space", true) ? "always" : "never");
  if (scheme == "always") return Pretokenizer::Prepend::always;
  if (scheme == "first") return Pretokenizer::Prepend::first;
  if (scheme != "never") node.fail("unknown prepend_scheme \"" + scheme + "\"");
  return Pretokenizer::Prepend::never;
}

// `byte_level` becomes true at a ByteLevel step, which must be the last: after it the text is no longer text.
void read_pretokenizer(const JsonNode& node, Pretokenizer& out, bool& byte_level) {
  const std::string type = node["type"].string();
  if (byte_level) node.fail("a pre-tokenizer after ByteLevel is not supported");
  if (type == "Sequence") {
    for (const JsonNode& part : node["pretokenizers"].items()) read_pretokenizer(part, out, byte_level);
  } else if (type == "Split") {
    out.add_split(read_pattern(node["pattern"]), read_behavior(node["behavior"]),
                  node.boolean("invert", false));
  } else if (type == "Digits") {
    bool each = node.boolean("individual_digits", false);
    out.add_split(Regex(R"(\p{N})"), each ? SplitBehavior::isolated : SplitBehavior::contiguous, false);
  } else if (type == "ByteLevel") {
    if (node.boolean("add_prefix_space", true)) out.add_leading_space();
    if (node.boolean("use_regex", true)) out.add_split(gpt2_regex(), SplitBehavior::isolated, false);
    byte_level = true;
  } else if (type == "Metaspace") {
    const std::string mark = node["replacement"].string();
    out.add_metaspace(mark, read_prepend_scheme(node));
    if (node.boolean("split", true))
      out.add_split(Regex::literal(mark), SplitBehavior::merged_with_next, false);
  } else {
    node.fail("unsupported pre-tokenizer \"" + type + "\"",
              "known: ByteLevel, Digits, Metaspace, Sequence, Split");
  }
}

void read_merges(const JsonNode& merges, BpeModel& model) {
  if (!merges.value().is_array()) merges.fail("must be a list");
  for (const nlohmann::json& merge : merges.value()) {
    std::string left, right;
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      size_t space = text.find(' ', 1);
      if (space == text.npos) merges.fail("\"" + text + "\" has no second part");
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else {
      merges.fail("each entry must be \"left right\" or [\"left\", \"right\"]");
    }
    try {
      model.add_merge(left, right);
    } catch (const Error& e) {
      merges.fail(e.problem);
    }
  }
}

BpeModel read_model(const JsonNode& node, const Vocabulary& v, bool byte_level) {
  // Files of the first years state no type; only BPE has merges.
  const std::string type = node.string("type", node.has("merges") ? "BPE" : "");
  if (type != "BPE") node.fail("unsupported model \"" + type + "\"", "known: BPE");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!node.string(key, "").empty()) node[key].fail("not supported");
  if (node.has("dropout") && node["dropout"].value() != 0) node["dropout"].fail("not supported");

  BpeModel::Options options;
  options.byte_level = byte_level;
  options.ignore_merges = node.boolean("ignore_merges", false);
  options.byte_fallback = node.boolean("byte_fallback", false);
  options.fuse_unk = node.boolean("fuse_unk", false);
  const auto& vocab = node["vocab"].value();
  if (node.has("unk_token")) {
    auto unk = vocab.find(node["unk_token"].string());
    if (unk == vocab.end()) node["unk_token"].fail("not in the vocabulary");
    options.unk_id = int32_t(unk->get<int64_t>());
  }
  std::set<int32_t> special;
  for (const AddedToken& token : v.added)
    if (token.special) special.insert(token.id);
  BpeModel model(options);
  for (const auto& [text, id] : vocab.items())
    model.add_token(id.get<int32_t>(), text, special.count(id.get<int32_t>()) > 0);
  read_merges(node["merges"], model);
  return model;
}

// What a decoder does, worked out once per token: the bytes each token stands for.
struct DecoderBuilder {
  std::vector<Token>& tokens;
  std::set<int32_t> added;
  PipelineTokenizer::Decoding decoding;
  bool byte_fallback = false, fused = false;

  void read(const JsonNode& node);
  void read_strip(const JsonNode& node);
  void replace(const std::string& from, const std::string& to) {
    for (Token& token : tokens) token.bytes = replace_text(token.bytes, from, to);
  }
};

void DecoderBuilder::read(const JsonNode& node) {
  const std::string type = node["type"].string();
  if (fused && type != "Strip" && type != "Fuse")
    node.fail("decoder " + type + " after Fuse is not supported");
  if (type == "Sequence") {
    for (const JsonNode& part : node["decoders"].items()) read(part);
  } else if (type == "ByteLevel") {
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
    const JsonNode pattern = node["pattern"];
    if (!pattern.has("String")) pattern.fail("only a String pattern is supported in a decoder");
    if (pattern["String"].string().empty()) pattern.fail("the pattern is empty");
    replace(pattern["String"].string(), node["content"].string());
  } else if (type == "Metaspace") {
    replace(node["replacement"].string(), " ");
    decoding.strip_leading_space = read_prepend_scheme(node) != Pretokenizer::Prepend::never;
  } else if (type == "Strip") {
    read_strip(node);
  } else if (type == "Fuse") {
    fused = true;
  } else {
    node.fail("unsupported decoder \"" + type + "\"",
              "known: ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip");
  }
}

void DecoderBuilder::read_strip(const JsonNode& node) {
  int64_t start = node["start"].integer(), stop = node["stop"].integer();
  if (start == 0 && stop == 0) return;
  if (!fused || node["content"].string() != " " || start != 1 || stop != 0)
    node.fail("only a Strip of one space at the start, after Fuse, is supported");
  decoding.strip_leading_space = true;
}

// The ids a TemplateProcessing puts around a text.
void read_post_processor(const JsonNode& node, PipelineTokenizer& out) {
  const std::string type = node["type"].string();
  if (type == "Sequence") {
    for (const JsonNode& part : node["processors"].items()) read_post_processor(part, out);
  } else if (type == "TemplateProcessing") {
    std::vector<int32_t> prefix, suffix;
    int num_texts = 0;
    for (const JsonNode& item : node["single"].items()) {
      if (item.has("Sequence")) {
        ++num_texts;
        continue;
      }
      const std::string name = item["SpecialToken"]["id"].string();
      for (const JsonNode& id : node["special_tokens"][name.c_str()]["ids"].items()) {
        if (id.integer() < 0 || id.integer() >= out.vocab_size()) id.fail("no such token id");
        (num_texts ? suffix : prefix).push_back(int32_t(id.integer()));
      }
    }
    if (num_texts != 1) node["single"].fail("must hold the text once");
    out.prefix_ids.insert(out.prefix_ids.begin(), prefix.begin(), prefix.end());
    out.suffix_ids.insert(out.suffix_ids.end(), suffix.begin(), suffix.end());
  } else if (type != "ByteLevel") {  // ByteLevel only trims offsets
    node.fail("unsupported post-processor \"" + type + "\"",
              "known: ByteLevel, Sequence, TemplateProcessing");
  }
}

}  // namespace

std::unique_ptr<PipelineTokenizer> tokenizer_from_json(std::string_view text, const std::string& where) {
  const nlohmann::json json = parse_json(text, where);
  const JsonNode root(json, where);
  Vocabulary v = read_vocabulary(root);

  Normalizer normalizer;
  if (root.has("normalizer")) read_normalizer(root["normalizer"], normalizer);
  Pretokenizer pretokenizer;
  bool byte_level = false;
  if (root.has("pre_tokenizer")) read_pretokenizer(root["pre_tokenizer"], pretokenizer, byte_level);
  BpeModel model = read_model(root["model"], v, byte_level);

  for (Token& token : v.tokens) token.bytes = token.text;
  DecoderBuilder decoder{v.tokens, {}, {}};
  for (AddedToken& token : v.added) {
    decoder.added.insert(token.id);
    if (!token.normalized) continue;
    token.content = normalizer.normalize(token.content);
    v.tokens[size_t(token.id)].bytes =
        token.content;  // may hold the space that Prepend or Replace brought in
  }
  if (root.has("decoder"))
    decoder.read(root["decoder"]);
  else
    decoder.decoding.space_between = true;

  auto out = std::make_unique<PipelineTokenizer>(std::move(v.tokens), std::move(model), std::move(normalizer),
                                                 std::move(pretokenizer), decoder.decoding);
  out->replace_each_byte = decoder.byte_fallback;
  for (AddedToken& token : v.added) out->add_added_token(std::move(token));
  if (root.has("post_processor")) read_post_processor(root["post_processor"], *out);
  return out;
}

}  // namespace nano
