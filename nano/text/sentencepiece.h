// SentencePiece's BPE as GGUF stores it: no list of merges; a pair may merge when its joined text is a token, and
// the token with the highest score goes first. Source: Kudo & Richardson 2018, "SentencePiece".
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nano {

class SentencePieceModel {
 public:
  explicit SentencePieceModel(int32_t unk_id);
  void add_token(int32_t id, const std::string& text, double score);
  void add_byte_token(int32_t id, const std::string& text);  // "<0x0A>"; Error: of another form

  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  struct Token {
    int32_t id;
    double score;
  };
  const Token* find(std::string_view text) const;

  int32_t unk_id_;
  std::unordered_map<std::string, Token> tokens_;
  std::array<int32_t, 256> byte_tokens_;
  size_t longest_token_ = 0;  // bytes
};

}  // namespace nano
