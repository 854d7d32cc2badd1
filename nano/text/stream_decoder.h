// From token ids to text that may be shown at once: never half a character, never a part of a stop string.
// One object a stream. Sum of all chunks = decode(all ids), cut at the stop string. Stop ids and max_tokens are the
// engine's business.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"  // Tokenizer
#include "text/utf8.h"       // LossyUtf8

namespace nano {

// Invariants:
//  1. text() + held back = the decoded text of all complete characters so far.
//  2. What is held back is the longest end of the text that may still become a stop string, nothing more.
class StreamDecoder {
 public:
  // Empty stop strings are ignored: an empty text is no reason to stop. The tokenizer must outlive the decoder.
  // `continues_text`: the ids go on where a prompt ended, so SentencePiece's leading space is a real one and stays
  // ("The capital is" + " Paris"); without it the ids are a whole text, as for decode().
  StreamDecoder(const Tokenizer& tokenizer, std::vector<std::string> stop = {}, bool include_stop_str = false,
                bool skip_special_tokens = true, bool continues_text = false);

  // Text that became certain with this token. `check_stop` false (output ≤ min_tokens): no stop string is looked
  // for in what this token adds. After a stop nothing more comes.
  std::string add(int32_t id, bool check_stop = true);
  std::string finish();  // what was held back: cut characters become U+FFFD

  bool stopped() const { return !stop_string_.empty(); }           // a stop string was found
  const std::string& stop_string() const { return stop_string_; }  // which one: the earliest in the text
  const std::string& text() const { return text_; }                // everything returned so far

 private:
  // How far the text's end agrees with a stop string (Knuth, Morris, Pratt 1977), so that each byte is looked at
  // once, however long the stop string is.
  struct Matcher {
    std::string stop;
    std::vector<size_t> border;  // of each prefix: its longest proper prefix that is also its end
    size_t matched = 0;
    bool advance(char c);  // true: the stop string ends here
  };
  bool find_stop(size_t old_size, bool check_stop);
  std::string release(size_t num_bytes);

  const Tokenizer& tokenizer_;
  const bool include_stop_str_, skip_special_tokens_;
  LossyUtf8 utf8_;
  bool first_;
  std::vector<Matcher> matchers_;
  std::string held_;  // decoded, not yet returned
  std::string stop_string_, text_;
};

}  // namespace nano
