// UTF-8: what is valid (Unicode 15, table 3-7: no overlong forms, no surrogates), and how invalid bytes are shown.
// Normalisation and the classes of characters are utf8proc's.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace nano {

// Length of the character at the start of `s`: 1..4. 0 if the bytes can't be one. If `s` ends inside a character
// that is right so far: minus the bytes it has.
int utf8_length(std::string_view s);
// Bytes of the first and of the last character; what is not UTF-8 counts byte by byte. REQUIRES: `s` is not empty.
size_t first_character(std::string_view s);
size_t last_character(std::string_view s);
// Offset of the first byte that is not valid UTF-8; npos if all is well.
size_t find_invalid_utf8(std::string_view s);
// Every `from` in `text` becomes `to`.
std::string replace_text(std::string_view text, std::string_view from, std::string_view to);

// Bytes in, valid UTF-8 out, as soon as each character is complete. Invalid bytes become U+FFFD: one for each
// maximal piece of a character (as Rust's from_utf8_lossy does), or one for each byte (as SentencePiece does).
class LossyUtf8 {
 public:
  explicit LossyUtf8(bool replace_each_byte) : replace_each_byte_(replace_each_byte) {}
  void add(std::string_view bytes, std::string& out);
  void finish(std::string& out);  // a character that was cut off becomes U+FFFD

 private:
  void replace(size_t num_bytes, std::string& out) const;

  const bool replace_each_byte_;
  std::string pending_;  // the first 1..3 bytes of a character
};

}  // namespace nano
