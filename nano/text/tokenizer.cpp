#include "text/tokenizer.h"

#include <algorithm>

#include <fmt/format.h>
#include <utf8proc.h>

#include "base/error.h"          // Error
#include "text/chat_template.h"  // RenderedSpan
#include "text/utf8.h"           // find_invalid_utf8, first_character, LossyUtf8

namespace nano {
namespace {

// Bytes of the white space character (Unicode's White_Space) that `text` begins with; 0: another character.
size_t space_at_start(std::string_view text) {
  utf8proc_int32_t c = -1;
  auto size = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                               utf8proc_ssize_t(text.size()), &c);
  if (size <= 0) return 0;
  auto category = utf8proc_category(c);
  bool space = (c >= 9 && c <= 13) || c == 0x85 ||
               (category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP);  // separators
  return space ? size_t(size) : 0;
}

// The first range that ends behind `begin`; they are ascending.
using ByteRanges = std::span<const Tokenizer::ByteRange>;
ByteRanges::iterator first_behind(ByteRanges ranges, size_t begin) {
  return std::upper_bound(ranges.begin(), ranges.end(), begin,
                          [](size_t at, const Tokenizer::ByteRange& r) { return at < r.second; });
}

}  // namespace

Tokenizer::Tokenizer(std::vector<Token> tokens, BpeModel model, Normalizer normalizer,
                     Pretokenizer pretokenizer)
    : tokens_(std::move(tokens)),
      normalizer_(std::move(normalizer)),
      pretokenizer_(std::move(pretokenizer)),
      model_(std::move(model)) {
  for (size_t i = 0; i < tokens_.size(); ++i)
    if (!tokens_[i].text.empty()) ids_by_text_[tokens_[i].text] = int32_t(i);
}

void Tokenizer::add_added_token(AddedToken token) {
  at(token.id);
  if (token.normalized) token.content = normalizer_.normalize(token.content);
  if (!token.content.empty()) (token.normalized ? added_normalized_ : added_).emplace(token.content, token);
}

void Tokenizer::mark_special(int32_t id) {
  if (id < 0 || at(id).special) return;
  Token& token = tokens_[size_t(id)];
  token.special = true;
  model_.forbid(id);
  const auto is_it = [id](const auto& entry) { return entry.second.id == id; };
  if (std::none_of(added_.begin(), added_.end(), is_it) &&
      std::none_of(added_normalized_.begin(), added_normalized_.end(), is_it))
    add_added_token({id, token.text});
}

void Tokenizer::add_stop_id(int32_t id) {
  mark_special(id);
  if (id >= 0 && !std::count(stop_ids.begin(), stop_ids.end(), id)) stop_ids.push_back(id);
}

const Tokenizer::Token& Tokenizer::at(int32_t id) const {
  if (id < 0 || id >= vocab_size())
    throw Error(fmt::format("token id {} is outside the vocabulary of {}", id, vocab_size()));
  return tokens_[size_t(id)];
}

bool Tokenizer::allowed(const AddedToken& token, size_t begin, const EncodeOptions& options) const {
  if (!is_special(token.id)) return true;
  if (!options.parse_special) return false;
  const auto range = first_behind(options.foreign, begin);
  return range == options.foreign.end() || range->first >= begin + token.content.size();
}

// The longest allowed token that text[begin, …) begins with.
const AddedToken* Tokenizer::find_added(const AddedTokens& added, std::string_view text, size_t begin,
                                        const EncodeOptions& options) const {
  std::string_view rest = text.substr(begin);
  for (;;) {
    // All tokens that `rest` begins with sort before it. The last one before it is either the longest of them, or
    // tells that they all lie within what it has in common with `rest`.
    auto next = added.upper_bound(rest);
    if (next == added.begin()) return nullptr;
    const auto& [content, token] = *std::prev(next);
    size_t common = size_t(std::mismatch(content.begin(), content.end(), rest.begin(), rest.end()).first -
                           content.begin());
    if (common == content.size()) {
      if (allowed(token, begin, options)) return &token;
      --common;
    }
    if (common == 0) return nullptr;
    rest = rest.substr(0, common);
  }
}

std::vector<Tokenizer::Segment> Tokenizer::cut_added(const AddedTokens& added, std::string_view text,
                                                     const EncodeOptions& options) const {
  std::vector<Segment> segments;
  size_t done = 0;   // where the text that is in no segment yet begins
  size_t space = 0;  // the end of the last white space that was swallowed
  for (size_t i = 0; i < text.size();) {
    const AddedToken* token = find_added(added, text, i, options);
    if (!token) {
      ++i;
      continue;
    }
    // The search goes on right behind the token itself, so a token of white space that was swallowed is found again,
    // and what follows it is text again: as in the reference. Only one that swallows what is before it is gone then.
    std::string_view before = text.substr(0, i);
    size_t end = i += token->content.size();
    if (token->rstrip) {
      space = std::max(space, end);
      while (size_t size = space_at_start(text.substr(space))) space += size;
      end = space;
    }
    if (token->lstrip && end <= done) continue;
    before.remove_prefix(std::min(done, before.size()));
    if (token->lstrip)
      while (!before.empty() && space_at_start(before.substr(before.size() - last_character(before))) > 0)
        before.remove_suffix(last_character(before));
    if (!before.empty()) segments.push_back({before, -1});
    segments.push_back({{}, token->id});
    done = end;
  }
  if (done < text.size()) segments.push_back({text.substr(done), -1});
  return segments;
}

// Where `ranges` of the text lie in what normalising makes of text[begin, end), which has `size` bytes. Parts that
// are normalised apart join to the whole where nothing composes across their ends; a range grows until that is so.
std::vector<Tokenizer::ByteRange> Tokenizer::normalized_ranges(std::string_view text, size_t begin,
                                                               size_t end, size_t size,
                                                               std::span<const ByteRange> ranges) const {
  const auto normalize = [&](size_t from, size_t to) {
    return normalizer_.normalize(std::string(text.substr(from, to - from)), from == begin);
  };
  // Nothing composes across `edge`. ASCII characters compose with nothing in front of them, so those bound the view.
  const auto clean = [&](size_t edge) {
    size_t low = edge, high = edge;
    while (low > begin && uint8_t(text[--low]) >= 0x80) {
    }
    while (high < end && uint8_t(text[high]) >= 0x80) ++high;
    return normalize(low, edge) + normalize(edge, high) == normalize(low, high);
  };
  std::vector<ByteRange> out;
  size_t done = begin, done_size = 0;
  for (auto range = first_behind(ranges, begin); range != ranges.end() && range->first < end; ++range) {
    if (range->second <= done) continue;
    size_t first = std::max(range->first, done), last = std::min(range->second, end);
    while (first > done && !clean(first)) first -= last_character(text.substr(0, first));
    while (last < end && !clean(last)) last += first_character(text.substr(last));
    done_size += normalize(done, first).size();
    out.push_back({done_size, done_size + normalize(first, last).size()});
    done_size = out.back().second;
    done = last;
  }
  if (done_size + normalize(done, end).size() != size) return {{0, size}};  // nowhere can one be sure
  return out;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  const size_t invalid = find_invalid_utf8(text);
  if (invalid != text.npos)
    throw Error(
        fmt::format("the text is not valid UTF-8: byte {} is 0x{:02x}", invalid, uint8_t(text[invalid])), "",
        "send UTF-8");
  std::vector<int32_t> ids;
  if (options.add_special_tokens) ids = prefix_ids;
  for (const Segment& segment : cut_added(added_, text, options)) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
      continue;
    }
    const size_t begin = size_t(segment.text.data() - text.data());
    const std::string normal = normalizer_.normalize(std::string(segment.text));
    EncodeOptions inner = options;
    std::vector<ByteRange> foreign;
    if (!added_normalized_.empty() && !options.foreign.empty())
      foreign = normalized_ranges(text, begin, begin + segment.text.size(), normal.size(), options.foreign);
    inner.foreign = foreign;
    for (const Segment& part : cut_added(added_normalized_, normal, inner)) {
      if (part.id >= 0) {
        ids.push_back(part.id);
        continue;
      }
      const bool at_start = begin == 0 && part.text.data() == normal.data();
      for (const std::string& piece : pretokenizer_.split(std::string(part.text), at_start))
        model_.encode(piece, ids);
    }
  }
  if (options.add_special_tokens) ids.insert(ids.end(), suffix_ids.begin(), suffix_ids.end());
  return ids;
}

std::string Tokenizer::piece(int32_t id, bool skip_special_tokens, bool first) const {
  const Token& token = at(id);
  if (token.special && skip_special_tokens) return "";
  return first && strip_leading_space && token.bytes[0] == ' ' ? token.bytes.substr(1) : token.bytes;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
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

int32_t Tokenizer::find(std::string_view token) const {
  auto found = ids_by_text_.find(std::string(token));
  return found == ids_by_text_.end() ? -1 : found->second;
}

std::vector<int32_t> encode_spans(const Tokenizer& tokenizer, const std::vector<RenderedSpan>& spans) {
  std::string text;
  std::vector<Tokenizer::ByteRange> foreign;
  for (const RenderedSpan& span : spans) {
    if (!span.from_template && !span.text.empty())
      foreign.push_back({text.size(), text.size() + span.text.size()});
    text += span.text;
  }
  return tokenizer.encode(text, {/*add_special_tokens=*/false, /*parse_special=*/true, foreign});
}

}  // namespace nano
