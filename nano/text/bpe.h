// Byte-pair encoding: a piece of text starts as single symbols, and the cheapest pair of neighbours is merged until
// no merge is left. Source: Sennrich et al. 2016, "Neural machine translation of rare words with subword units",
// algorithm 1.
//
// GPT-2, Llama-3, Qwen, SmolLM: symbols are bytes, merges are listed by rank. Gemma and Llama-2: symbols are
// characters; those not in the vocabulary are spelt as byte tokens or become unk. A GGUF file of these states scores
// in place of merges (SentencePiece; Kudo & Richardson 2018): two tokens merge if their joined text is a token, the
// one with the highest score first. That is the same thing with cost = -score.
//
// Not here: cutting a text into pieces (pretokenizer.h), dropout, WordPiece's prefixes and suffixes.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nano {

struct Symbol {
  int32_t id;
  size_t begin, end;  // bytes of the piece
};
struct Merge {
  double cost;  // the cheapest pair is merged first, the leftmost among equals
  int32_t id;   // of the joined symbol
};
using FindMerge = std::function<std::optional<Merge>(const Symbol& left, const Symbol& right)>;

// O(n log n) in the number of symbols, also for a megabyte of "a": a heap of candidate pairs over a linked list.
void merge_symbols(std::vector<Symbol>& symbols, const FindMerge& find);

// GPT-2's byte-level alphabet: each byte has a printable stand-in in token texts ("Ġ" for a space).
// The bytes behind a token's text; nothing if a character is not a stand-in.
std::optional<std::string> bytes_of_stand_ins(std::string_view text);

// The token that stands for one byte in vocabularies with byte fallback: "<0x0A>". -1: not of this form.
int byte_of_token(std::string_view token);

class BpeModel {
 public:
  struct Options {
    bool byte_level = true;
    bool ignore_merges = false;  // a piece that is a token is that token, whatever the merges say
    bool byte_fallback = false;
    bool fuse_unk = false;  // neighbouring unknown characters give one unk
    int32_t unk_id = -1;    // -1: unknown characters are dropped, as the reference does
  };
  explicit BpeModel(Options options);
  // All tokens come before the merges; `text` as in the file. Special tokens are never a result: lists of merges made
  // from a SentencePiece vocabulary hold "<" + "s>", by which a typed "<s>" would become the control token.
  void add_token(int32_t id, const std::string& text, bool special);
  void add_merge(const std::string& left, const std::string& right, double cost);  // Error: no such token
  void add_merge(const std::string& pair, double cost);                            // "left right"
  // In place of a list of merges: two tokens whose joined text is this token are a merge. They are looked up when a
  // text asks for them: a list would take all cuts of all tokens.
  void add_cost(int32_t id, double cost);

  void forbid(int32_t id);  // from now on a special token
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  std::vector<Symbol> split_into_symbols(std::string_view piece) const;
  std::optional<Merge> find_merge(std::string_view piece, const Symbol& left, const Symbol& right) const;
  bool spell_as_bytes(std::string_view character, size_t begin, std::vector<Symbol>& symbols) const;
  int32_t find(std::string_view bytes) const;

  Options options_;
  std::unordered_map<std::string, int32_t> ids_by_text_;  // as in the file; special: -1
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;  // a part of a text is looked up without a copy
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>>
      ids_by_bytes_;                            // as in the text; no special ones
  std::unordered_map<uint64_t, Merge> merges_;  // (left id, right id) →
  std::unordered_map<int32_t, double>
      costs_;  // of the tokens that are results of merges; empty: merges_ is the list
  std::array<int32_t, 256> byte_tokens_;  // "<0x00>" …, -1 if missing
};

}  // namespace nano
