// Text to token ids and back: byte-level BPE and SentencePiece-style BPE, from GGUF keys or tokenizer.json. One class
// for all, as a row of stages that the file fills in: added tokens are cut out, the rest is normalised, cut into
// pieces and each piece turned into ids. A stage that is not known is an Error, never a guess.
//
// Which tokens are special: those the file says are (GGUF: control or unknown; Hugging Face: "special": true), and
// BOS, EOS and every other stop id, whatever its mark. Added tokens that are not special ("<think>", Gemma's "\n\n")
// are ordinary vocabulary: they are found in any text, as in the reference tokenizers, because the model has seen
// that text only in this form.
//
// Not here: Unigram and WordPiece models, training, pairs of texts, truncation, padding.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/bpe.h"           // BpeModel
#include "text/pretokenizer.h"  // Normalizer, Pretokenizer

namespace nano {

class GgufFile;       // checkpoint/gguf.h
struct RenderedSpan;  // text/chat_template.h

// A token that is cut out of the text before anything else looks at it ("<|im_start|>", "<tool_call>"): the leftmost
// first, at one place the longest; those that are `normalized` after the others, in the normalised rest.
struct AddedToken {
  int32_t id = -1;
  std::string content;                  // "" is never found
  bool lstrip = false, rstrip = false;  // swallows the white space in front, behind
  bool normalized = false;              // its content is normalised too
};

class Tokenizer {
 public:
  struct Token {
    std::string text;   // as in the file, e.g. "Ġthe"; "": an id without a token
    std::string bytes;  // what it stands for inside a text (perhaps a part of a character)
    bool special = false;
  };
  Tokenizer(std::vector<Token> tokens, BpeModel model, Normalizer normalizer, Pretokenizer pretokenizer);
  void add_added_token(AddedToken token);  // of two with one text the first counts; Error: no such id
  void mark_special(int32_t id);           // from now on, whatever the file says; -1: nothing
  void add_stop_id(int32_t id);            // and marks it special; -1: nothing

  using ByteRange = std::pair<size_t, size_t>;  // [first, second)
  struct EncodeOptions {
    bool add_special_tokens = true;  // BOS / EOS as the file asks
    bool parse_special = true;  // "<|im_start|>" in the text is the control token; false: it is plain text
    // Where no special token may be recognised, not even partly; ascending, of the text as given (before NFC).
    // Everything else is as if they were not there: words, merges and NFC go across their ends.
    std::span<const ByteRange> foreign = {};
  };
  // Empty text gives no ids (but for BOS). Invalid UTF-8 in the input is an Error.
  std::vector<int32_t> encode(std::string_view text, EncodeOptions options) const;
  std::vector<int32_t> encode(std::string_view text) const { return encode(text, EncodeOptions{}); }

  // All ids at once. Bytes that are not valid UTF-8 become U+FFFD. Ids outside the vocabulary: Error.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;
  // The bytes one id stands for; "" for a skipped special.
  // `first` tells whether it is the first piece of the whole text (SentencePiece drops one leading space there).
  std::string piece(int32_t id, bool skip_special_tokens, bool first) const;

  int32_t vocab_size() const { return int32_t(tokens_.size()); }  // ids 0 .. vocab_size-1
  std::string token_text(int32_t id) const { return at(id).text; }
  bool is_special(int32_t id) const { return at(id).special; }
  int32_t find(std::string_view token) const;  // id of an exact token text, -1 if none

  int32_t bos_id = -1, eos_id = -1;
  std::vector<int32_t> prefix_ids, suffix_ids;  // BOS, EOS: added if add_special_tokens says so
  std::vector<int32_t> stop_ids;                // EOS, EOT, EOM and their like: each ends an answer
  std::string chat_template;                    // Jinja source; "" if the file has none
  std::string tool_template;         // the same, for conversations with tools, if it is another one
  bool strip_leading_space = false;  // decode drops one space at the start of the whole text
  // How invalid bytes are shown: one U+FFFD for each byte (vocabularies with byte fallback, as SentencePiece does)
  // or one for each maximal piece of a character (byte-level ones).
  bool replace_each_byte = false;

 private:
  struct Segment {
    std::string_view text;
    int32_t id;  // -1: text that is still to be tokenised
  };
  using AddedTokens = std::map<std::string, AddedToken, std::less<>>;  // by content
  const Token& at(int32_t id) const;                                   // Error: no such id
  bool allowed(const AddedToken& token, size_t begin, const EncodeOptions& options) const;
  const AddedToken* find_added(const AddedTokens& added, std::string_view text, size_t begin,
                               const EncodeOptions& options) const;
  std::vector<Segment> cut_added(const AddedTokens& added, std::string_view text,
                                 const EncodeOptions& options) const;
  std::vector<ByteRange> normalized_ranges(std::string_view text, size_t begin, size_t end, size_t size,
                                           std::span<const ByteRange> ranges) const;

  std::vector<Token> tokens_;
  std::unordered_map<std::string, int32_t> ids_by_text_;
  AddedTokens added_, added_normalized_;
  Normalizer normalizer_;
  Pretokenizer pretokenizer_;
  BpeModel model_;
};

// A rendered conversation, tokenised as one text in which only what the template wrote can be a special token. The
// template writes BOS itself where it wants one.
std::vector<int32_t> encode_spans(const Tokenizer& tokenizer, const std::vector<RenderedSpan>& spans);

// Error naming the key or the unknown feature. Needs no tensors.
std::unique_ptr<Tokenizer> tokenizer_from_gguf(const GgufFile& file);
// A directory with tokenizer.json (and, if there, tokenizer_config.json, chat_template.jinja,
// generation_config.json, config.json for the stop ids), or the tokenizer.json file itself.
// What is added to a text (BOS, EOS) is what tokenizer.json's post_processor says. add_bos_token and add_eos_token of
// tokenizer_config.json are not read: where they differ from it, transformers' fast tokenizers do not agree with
// themselves from class to class either.
std::unique_ptr<Tokenizer> tokenizer_from_hf(const std::string& path);
// The text of a tokenizer.json alone; `where` names it in errors.
std::unique_ptr<Tokenizer> tokenizer_from_json(std::string_view text, const std::string& where);

}  // namespace nano
