#include "text/pipeline.h"

#include <utility>

#include <fmt/format.h>

#include "base/error.h"  // Error
#include "text/utf8.h"   // find_invalid_utf8, LossyUtf8

namespace nano {

PipelineTokenizer::PipelineTokenizer(std::vector<Token> tokens,
                                     std::variant<BpeModel, SentencePieceModel> model, Normalizer normalizer,
                                     Pretokenizer pretokenizer, Decoding decoding)
    : tokens_(std::move(tokens)),
      normalizer_(std::move(normalizer)),
      pretokenizer_(std::move(pretokenizer)),
      model_(std::move(model)),
      decoding_(decoding) {
  for (size_t i = 0; i < tokens_.size(); ++i)
    if (!tokens_[i].text.empty()) ids_by_text_[tokens_[i].text] = int32_t(i);
}

void PipelineTokenizer::add_added_token(AddedToken token) {
  at(token.id);
  if (token.special) tokens_[size_t(token.id)].special = true;
  (token.normalized ? normalized_added_ : raw_added_).add(std::move(token));
}

void PipelineTokenizer::mark_special(int32_t id) {
  if (id < 0 || at(id).special) return;
  tokens_[size_t(id)].special = true;
  bool in_raw = raw_added_.mark_special(id), in_normalized = normalized_added_.mark_special(id);
  if (in_raw || in_normalized) return;
  AddedToken token;
  token.id = id;
  token.content = at(id).text;
  token.special = true;
  raw_added_.add(std::move(token));
}

const PipelineTokenizer::Token& PipelineTokenizer::at(int32_t id) const {
  if (id < 0 || id >= vocab_size())
    throw Error(fmt::format("token id {} is outside the vocabulary of {}", id, vocab_size()));
  return tokens_[size_t(id)];
}

void PipelineTokenizer::encode_plain(std::string_view text, bool parse_special, bool at_start,
                                     std::vector<int32_t>& ids) const {
  const std::string normalized = normalizer_.normalize(std::string(text));
  for (const AddedTokens::Segment& segment : normalized_added_.split(normalized, parse_special)) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
    } else {
      for (const std::string& piece : pretokenizer_.split(std::string(segment.text), at_start))
        std::visit([&](const auto& model) { model.encode(piece, ids); }, model_);
    }
    at_start = false;
  }
}

std::vector<int32_t> PipelineTokenizer::encode(std::string_view text, EncodeOptions options) const {
  size_t invalid = find_invalid_utf8(text);
  if (invalid != text.npos)
    throw Error(
        fmt::format("the text is not valid UTF-8: byte {} is 0x{:02x}", invalid, uint8_t(text[invalid])), "",
        "send UTF-8");
  std::vector<int32_t> ids;
  if (options.add_special_tokens) ids = prefix_ids;
  bool at_start = true;
  for (const AddedTokens::Segment& segment : raw_added_.split(text, options.parse_special)) {
    if (segment.id >= 0)
      ids.push_back(segment.id);
    else
      encode_plain(segment.text, options.parse_special, at_start, ids);
    at_start = false;
  }
  if (options.add_special_tokens) ids.insert(ids.end(), suffix_ids.begin(), suffix_ids.end());
  return ids;
}

std::string PipelineTokenizer::piece(int32_t id, bool skip_special_tokens, bool first) const {
  const Token& token = at(id);
  if (token.special && skip_special_tokens) return "";
  if (first && decoding_.strip_leading_space && token.bytes[0] == ' ') return token.bytes.substr(1);
  if (!first && decoding_.space_between) return " " + token.bytes;
  return token.bytes;
}

std::string PipelineTokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string text;
  LossyUtf8 utf8(replace_each_byte);
  bool first = true;
  for (int32_t id : ids) {
    if (skip_special_tokens && is_special(id)) continue;
    utf8.add(piece(id, skip_special_tokens, first), text);
    first = false;
  }
  utf8.finish(text);
  return text;
}

int32_t PipelineTokenizer::find(std::string_view token) const {
  auto found = ids_by_text_.find(std::string(token));
  return found == ids_by_text_.end() ? -1 : found->second;
}

}  // namespace nano
