#include "text/bpe.h"

#include <cstdlib>
#include <queue>

#include <fmt/format.h>

#include "base/error.h"  // Error
#include "text/utf8.h"   // utf8_length

namespace nano {
namespace {

struct Candidate {
  double cost;
  size_t left, right;  // indices of symbols
  size_t end;          // of the right symbol when the pair was found: if it has changed, the pair is gone
  int32_t id;
  bool operator<(const Candidate& other) const {  // priority_queue pops the greatest
    return cost != other.cost ? cost > other.cost : left > other.left;
  }
};

uint64_t pair_key(int32_t left, int32_t right) { return uint64_t(uint32_t(left)) << 32 | uint32_t(right); }

// Bytes that print as themselves; the others stand as U+0100, U+0101 … in order.
bool prints_as_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

const std::array<int, 0x144>& bytes_by_code_point() {
  static const std::array<int, 0x144> table = [] {
    std::array<int, 0x144> t;
    t.fill(-1);
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) t[size_t(prints_as_itself(byte) ? byte : next++)] = byte;
    return t;
  }();
  return table;
}

}  // namespace

void merge_symbols(std::vector<Symbol>& symbols, const FindMerge& find) {
  const size_t n = symbols.size(), none = n;
  std::vector<size_t> prev(n), next(n);
  for (size_t i = 0; i < n; ++i)
    prev[i] = i == 0 ? none : i - 1, next[i] = i + 1;  // n - 1 is followed by none

  std::priority_queue<Candidate> queue;
  auto consider = [&](size_t left, size_t right) {
    if (left == none || right == none) return;
    if (auto merge = find(symbols[left], symbols[right]))
      queue.push({merge->cost, left, right, symbols[right].end, merge->id});
  };
  for (size_t i = 0; i + 1 < n; ++i) consider(i, i + 1);

  while (!queue.empty()) {
    Candidate best = queue.top();
    queue.pop();
    Symbol &left = symbols[best.left], &right = symbols[best.right];
    bool gone = left.begin == left.end || next[best.left] != best.right || right.end != best.end;
    if (gone) continue;
    left.id = best.id;
    left.end = right.end;
    right.begin = right.end;  // empty: merged away
    next[best.left] = next[best.right];
    if (next[best.left] != none) prev[next[best.left]] = best.left;
    consider(prev[best.left], best.left);
    consider(best.left, next[best.left]);
  }
  size_t kept = 0;
  for (const Symbol& s : symbols)
    if (s.begin != s.end) symbols[kept++] = s;
  symbols.resize(kept);
}

std::optional<std::string> bytes_of_stand_ins(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size();) {
    int length = utf8_length(text.substr(i));
    if (length < 1 || length > 2) return std::nullopt;  // stand-ins end at U+0143
    size_t c = length == 1 ? size_t(text[i]) : size_t(text[i] & 0x1F) << 6 | size_t(text[i + 1] & 0x3F);
    const auto& table = bytes_by_code_point();
    if (c >= table.size() || table[c] < 0) return std::nullopt;
    bytes += char(table[c]);
    i += size_t(length);
  }
  return bytes;
}

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
  int value = 0;
  for (char c : token.substr(3, 2)) {
    int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

BpeModel::BpeModel(Options options) : options_(options) { byte_tokens_.fill(-1); }

void BpeModel::add_token(int32_t id, const std::string& text, bool special) {
  ids_by_text_[text] = special ? -1 : id;
  if (special) return;
  if (!options_.byte_level)
    ids_by_bytes_[text] = id;
  else if (auto bytes = bytes_of_stand_ins(text))
    ids_by_bytes_[*bytes] = id;
  int byte = byte_of_token(text);
  if (byte >= 0) byte_tokens_[size_t(byte)] = id;
}

void BpeModel::add_merge(const std::string& left, const std::string& right, double cost) {
  auto id = [&](const std::string& text) {
    auto found = ids_by_text_.find(text);
    if (found == ids_by_text_.end())
      throw Error(
          fmt::format("the merge \"{}\" + \"{}\" needs the token \"{}\", which is not in the vocabulary",
                      left, right, text));
    return found->second;
  };
  const int32_t left_id = id(left), right_id = id(right), joined_id = id(left + right);
  if (left_id < 0 || right_id < 0 || joined_id < 0) return;
  merges_[pair_key(left_id, right_id)] = {cost, joined_id};  // listed twice: the later, as in the reference
}

void BpeModel::add_merge(const std::string& pair, double cost) {
  const size_t space = pair.find(' ', 1);
  if (space == pair.npos) throw Error("merge \"" + pair + "\" has no second part");
  add_merge(pair.substr(0, space), pair.substr(space + 1), cost);
}

void BpeModel::add_cost(int32_t id, double cost) { costs_[id] = cost; }

void BpeModel::forbid(int32_t id) {
  std::erase_if(ids_by_bytes_, [id](const auto& entry) { return entry.second == id; });
  std::erase_if(merges_, [id](const auto& entry) { return entry.second.id == id; });
}

int32_t BpeModel::find(std::string_view bytes) const {
  auto found = ids_by_bytes_.find(bytes);
  return found == ids_by_bytes_.end() ? -1 : found->second;
}

bool BpeModel::spell_as_bytes(std::string_view character, size_t begin, std::vector<Symbol>& symbols) const {
  for (char c : character)
    if (byte_tokens_[uint8_t(c)] < 0) return false;
  for (char c : character) {
    symbols.push_back({byte_tokens_[uint8_t(c)], begin, begin + 1});
    ++begin;
  }
  return true;
}

std::vector<Symbol> BpeModel::split_into_symbols(std::string_view piece) const {
  std::vector<Symbol> symbols;
  bool after_unk = false;
  for (size_t i = 0, length; i < piece.size(); i += length) {
    length = options_.byte_level ? 1 : size_t(utf8_length(piece.substr(i)));
    std::string_view character = piece.substr(i, length);
    int32_t id = find(character);
    bool unknown = id < 0 && !(options_.byte_fallback && spell_as_bytes(character, i, symbols));
    if (id >= 0) {
      symbols.push_back({id, i, i + length});
    } else if (unknown && options_.unk_id >= 0) {
      if (after_unk && options_.fuse_unk)
        symbols.back().end = i + length;
      else
        symbols.push_back({options_.unk_id, i, i + length});
    }
    after_unk = unknown;
  }
  return symbols;
}

std::optional<Merge> BpeModel::find_merge(std::string_view piece, const Symbol& left,
                                          const Symbol& right) const {
  if (costs_.empty()) {
    auto merge = merges_.find(pair_key(left.id, right.id));
    return merge == merges_.end() ? std::nullopt : std::optional(merge->second);
  }
  for (int32_t id : {left.id, right.id})  // bytes and unknown characters stay what they are
    if (id == options_.unk_id || !costs_.count(id)) return std::nullopt;
  const int32_t joined = find(piece.substr(left.begin, right.end - left.begin));
  auto cost = costs_.find(joined);
  return cost == costs_.end() ? std::nullopt : std::optional(Merge{cost->second, joined});
}

void BpeModel::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (options_.ignore_merges) {
    int32_t whole = find(piece);
    if (whole >= 0) return ids.push_back(whole);
  }
  std::vector<Symbol> symbols = split_into_symbols(piece);
  merge_symbols(symbols,
                [&](const Symbol& left, const Symbol& right) { return find_merge(piece, left, right); });
  for (const Symbol& s : symbols) ids.push_back(s.id);
}

}  // namespace nano
