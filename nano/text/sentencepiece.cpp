#include "text/sentencepiece.h"

#include <algorithm>

#include "base/error.h"  // Error
#include "text/bpe.h"    // merge_symbols, byte_of_token
#include "text/utf8.h"   // utf8_length

namespace nano {

SentencePieceModel::SentencePieceModel(int32_t unk_id) : unk_id_(unk_id) { byte_tokens_.fill(-1); }

void SentencePieceModel::add_token(int32_t id, const std::string& text, double score) {
  tokens_[text] = {id, score};
  longest_token_ = std::max(longest_token_, text.size());
}

void SentencePieceModel::add_byte_token(int32_t id, const std::string& text) {
  int byte = byte_of_token(text);
  if (byte < 0) throw Error("token \"" + text + "\" is marked as a byte but is not of the form <0x0A>");
  byte_tokens_[size_t(byte)] = id;
}

const SentencePieceModel::Token* SentencePieceModel::find(std::string_view text) const {
  if (text.size() > longest_token_) return nullptr;
  auto found = tokens_.find(std::string(text));
  return found == tokens_.end() ? nullptr : &found->second;
}

void SentencePieceModel::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  std::vector<Symbol> symbols;
  for (size_t i = 0, length; i < piece.size(); i += length) {
    length = size_t(utf8_length(piece.substr(i)));
    const Token* token = find(piece.substr(i, length));
    symbols.push_back({token ? token->id : -1, i, i + length});
  }
  merge_symbols(symbols, [&](const Symbol& left, const Symbol& right) -> std::optional<Merge> {
    const Token* token = find(piece.substr(left.begin, right.end - left.begin));
    if (!token) return std::nullopt;
    return Merge{-token->score, token->id};
  });
  for (const Symbol& s : symbols) {
    if (s.id >= 0) {
      ids.push_back(s.id);
      continue;
    }
    for (char c : piece.substr(s.begin, s.end - s.begin)) {  // a character without a token
      int32_t byte = byte_tokens_[uint8_t(c)];
      if (byte < 0 && unk_id_ < 0)
        throw Error("a character of the text has no token, and there is no unknown token");
      ids.push_back(byte >= 0 ? byte : unk_id_);
      if (byte < 0) break;
    }
  }
}

}  // namespace nano
