#include "text/utf8.h"

#include <algorithm>

namespace nano {

int utf8_length(std::string_view s) {
  if (s.empty()) return 0;
  auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range is narrower after some leads: that shuts out overlong forms, surrogates and values
  // above U+10FFFF.
  unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (int i = 1; i < length; ++i, low = 0x80, high = 0xBF) {
    if (size_t(i) == s.size()) return -i;
    if (byte(i) < low || byte(i) > high) return 0;
  }
  return length;
}

size_t first_character(std::string_view s) { return size_t(std::max(utf8_length(s), 1)); }

size_t last_character(std::string_view s) {
  for (size_t size = 1; size <= std::min<size_t>(s.size(), 4); ++size)
    if (utf8_length(s.substr(s.size() - size)) == int(size)) return size;
  return 1;
}

size_t find_invalid_utf8(std::string_view s) {
  for (size_t i = 0; i < s.size();) {
    int length = utf8_length(s.substr(i));
    if (length <= 0) return i;
    i += size_t(length);
  }
  return std::string_view::npos;
}

std::string replace_text(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t done = 0, at;
  while ((at = text.find(from, done)) != text.npos) {
    out.append(text.substr(done, at - done)).append(to);
    done = at + from.size();
  }
  return out.append(text.substr(done));
}

void LossyUtf8::replace(size_t num_bytes, std::string& out) const {
  for (size_t i = 0; i < (replace_each_byte_ ? num_bytes : 1); ++i) out += "\xEF\xBF\xBD";
}

void LossyUtf8::add(std::string_view bytes, std::string& out) {
  for (char c : bytes) {
    // pending_ is always the right beginning of a character, so it alone is what an unfitting byte cuts off.
    pending_ += c;
    int length = utf8_length(pending_);
    if (length == 0 && pending_.size() > 1) {
      replace(pending_.size() - 1, out);
      pending_.assign(1, c);
      length = utf8_length(pending_);
    }
    if (length < 0) continue;
    if (length == 0)
      replace(1, out);
    else
      out += pending_;
    pending_.clear();
  }
}

void LossyUtf8::finish(std::string& out) {
  if (!pending_.empty()) replace(pending_.size(), out);
  pending_.clear();
}

}  // namespace nano
