#include "text/added_tokens.h"

#include <utility>

#include <utf8proc.h>

#include "text/utf8.h"  // utf8_length

namespace nano {
namespace {

int32_t code_point(std::string_view s) {
  utf8proc_int32_t c = -1;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(s.data()), utf8proc_ssize_t(s.size()), &c);
  return c;
}

std::string_view last_character(std::string_view s) {
  size_t begin = s.size();
  while (begin > 0 && (s[--begin] & 0xC0) == 0x80) {
  }
  return s.substr(begin);
}
std::string_view first_character(std::string_view s) { return s.substr(0, size_t(utf8_length(s))); }

bool is_space(std::string_view character) {  // Unicode's White_Space
  if (character.empty()) return false;
  int32_t c = code_point(character);
  auto category = utf8proc_category(c);
  return (c >= 9 && c <= 13) || c == 0x85 || category == UTF8PROC_CATEGORY_ZS ||
         category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

// \w of Unicode's regular expressions: letters (also Roman numerals and circled ones), marks, decimal digits,
// connectors, and the two joiners.
bool is_word(std::string_view character) {
  if (character.empty()) return false;
  int32_t c = code_point(character);
  auto category = utf8proc_category(c);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9);
}

}  // namespace

void AddedTokens::add(AddedToken token) {
  if (token.content.empty()) return;
  size_t node = 0;
  for (char c : token.content) {
    auto [edge, is_new] = nodes_[node].next.try_emplace(c, int32_t(nodes_.size()));
    node = size_t(edge->second);
    if (is_new) nodes_.emplace_back();
  }
  nodes_[node].token = int32_t(tokens_.size());
  tokens_.push_back(std::move(token));
}

bool AddedTokens::mark_special(int32_t id) {
  bool found = false;
  for (AddedToken& token : tokens_)
    if (token.id == id) token.special = found = true;
  return found;
}

const AddedToken* AddedTokens::longest_at(std::string_view text) const {
  const AddedToken* longest = nullptr;
  size_t node = 0;
  for (char c : text) {
    auto edge = nodes_[node].next.find(c);
    if (edge == nodes_[node].next.end()) break;
    node = size_t(edge->second);
    if (nodes_[node].token >= 0) longest = &tokens_[size_t(nodes_[node].token)];
  }
  return longest;
}

std::vector<AddedTokens::Segment> AddedTokens::split(std::string_view text, bool parse_special) const {
  std::vector<Segment> segments;
  size_t done = 0;  // everything before it is in a segment
  for (size_t i = 0; i < text.size();) {
    const AddedToken* token = longest_at(text.substr(i));
    if (!token) {
      ++i;
      continue;
    }
    size_t begin = i, end = i + token->content.size();
    i = end;  // a match that is turned down is passed over whole, as the reference does
    if (token->special && !parse_special) continue;
    std::string_view before = text.substr(done, begin - done), after = text.substr(end);
    if (token->single_word &&
        (is_word(last_character(text.substr(0, begin))) || is_word(first_character(after))))
      continue;
    if (token->lstrip) {
      while (is_space(last_character(before))) before.remove_suffix(last_character(before).size());
    }
    if (token->rstrip) {
      while (is_space(first_character(after))) after.remove_prefix(first_character(after).size());
    }
    if (!before.empty()) segments.push_back({before, -1});
    segments.push_back({{}, token->id});
    done = text.size() - after.size();
    if (done > i) i = done;
  }
  if (done < text.size()) segments.push_back({text.substr(done), -1});
  return segments;
}

}  // namespace nano
