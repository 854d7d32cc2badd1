// Text to token ids and back: byte-level BPE and SentencePiece-style BPE, from GGUF keys or tokenizer.json.
// Facts: the tokenizer.ggml.* keys of GGUF; huggingface/tokenizers' tokenizer.json. An unknown pre-tokenizer,
// normalizer or decoder is an Error, never a guess.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nano {

class GgufFile;  // checkpoint/gguf.h

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  struct EncodeOptions {
    bool add_special_tokens = true;  // BOS / EOS as the file asks
    bool parse_special = true;       // "<|im_start|>" in the text is the control token; false: it is plain text
  };
  // Empty text gives no ids (but for BOS). Invalid UTF-8 in the input is an Error.
  virtual std::vector<int32_t> encode(std::string_view text, EncodeOptions options) const = 0;
  std::vector<int32_t> encode(std::string_view text) const { return encode(text, EncodeOptions{}); }

  // All ids at once. Bytes that are not valid UTF-8 become U+FFFD. Ids outside the vocabulary: Error.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const = 0;
  // The raw bytes one id stands for inside a text (perhaps a part of a character); "" for a skipped special.
  // `first` tells whether it is the first piece of the whole text (SentencePiece drops one leading space there).
  virtual std::string piece(int32_t id, bool skip_special_tokens, bool first) const = 0;

  virtual int32_t vocab_size() const = 0;           // ids 0 .. vocab_size-1 have a text
  virtual std::string token_text(int32_t id) const = 0;  // as in the file, e.g. "Ġthe"
  virtual bool is_special(int32_t id) const = 0;
  virtual int32_t find(std::string_view token) const = 0;  // id of an exact token text, -1 if none

  int32_t bos_id = -1, eos_id = -1;
  bool add_bos = false, add_eos = false;            // by default, when add_special_tokens is on
  std::vector<int32_t> stop_ids;                    // EOS, EOT, EOM and their like: each ends an answer
  std::string chat_template;                        // Jinja source; "" if the file has none
  // How invalid bytes are shown: one U+FFFD for each byte (vocabularies with byte fallback, as SentencePiece does)
  // or one for each maximal piece of a character (byte-level ones).
  bool replace_each_byte = false;
};

// Error naming the key or the unknown feature. Needs no tensors.
std::unique_ptr<Tokenizer> tokenizer_from_gguf(const GgufFile& file);
// A directory with tokenizer.json (and, if there, tokenizer_config.json, chat_template.jinja,
// generation_config.json, config.json for the stop ids), or the tokenizer.json file itself.
std::unique_ptr<Tokenizer> tokenizer_from_hf(const std::string& path);

}  // namespace nano
