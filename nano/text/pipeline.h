// The tokenizer behind both file formats, as a row of stages: added tokens are cut out, the rest is normalised,
// cut into pieces (Pretokenizer) and each piece turned into ids (BpeModel or SentencePieceModel).
// tokenizer_gguf.cpp and tokenizer_hf.cpp only fill it in.
//
// Special tokens and parse_special = false: a token is special if the file says so (GGUF: control or unknown; HF:
// "special": true) or if it is BOS, EOS or another stop id, whatever its mark. None of these is found in the text
// then. Added tokens that are not special ("<think>", Gemma's "\n\n") are ordinary vocabulary: they are found
// either way, as in the reference tokenizers, because the model has seen that text only in this form.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "text/added_tokens.h"   // AddedTokens
#include "text/bpe.h"            // BpeModel
#include "text/normalizer.h"     // Normalizer
#include "text/pretokenizer.h"   // Pretokenizer
#include "text/sentencepiece.h"  // SentencePieceModel
#include "text/tokenizer.h"      // Tokenizer

namespace nano {

class PipelineTokenizer final : public Tokenizer {
 public:
  struct Token {
    std::string text;   // as in the file
    std::string bytes;  // what it stands for inside a text
    bool special = false;
  };
  struct Decoding {
    bool strip_leading_space = false;  // one, at the start of the whole text
    bool space_between = false;        // a tokenizer.json without a decoder
  };
  PipelineTokenizer(std::vector<Token> tokens, std::variant<BpeModel, SentencePieceModel> model,
                    Normalizer normalizer, Pretokenizer pretokenizer, Decoding decoding);

  void add_added_token(AddedToken token);       // its content as normalised, if so marked; Error: no such id
  void mark_special(int32_t id);                // from now on, whatever the file says; -1: nothing
  std::vector<int32_t> prefix_ids, suffix_ids;  // around every text when add_special_tokens is on

  using Tokenizer::encode;
  std::vector<int32_t> encode(std::string_view text, EncodeOptions options) const override;
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const override;
  std::string piece(int32_t id, bool skip_special_tokens, bool first) const override;
  int32_t vocab_size() const override { return int32_t(tokens_.size()); }
  std::string token_text(int32_t id) const override { return at(id).text; }
  bool is_special(int32_t id) const override { return at(id).special; }
  int32_t find(std::string_view token) const override;

 private:
  const Token& at(int32_t id) const;  // Error: no such id
  void encode_plain(std::string_view text, bool parse_special, bool at_start,
                    std::vector<int32_t>& ids) const;

  std::vector<Token> tokens_;
  std::unordered_map<std::string, int32_t> ids_by_text_;
  AddedTokens raw_added_, normalized_added_;
  Normalizer normalizer_;
  Pretokenizer pretokenizer_;
  std::variant<BpeModel, SentencePieceModel> model_;
  Decoding decoding_;
};

}  // namespace nano
