#include "text/stream_decoder.h"

#include <algorithm>
#include <utility>

namespace nano {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, std::vector<std::string> stop, bool include_stop_str,
                             bool skip_special_tokens, bool continues_text)
    : tokenizer_(tokenizer),
      include_stop_str_(include_stop_str),
      skip_special_tokens_(skip_special_tokens),
      utf8_(tokenizer.replace_each_byte),
      first_(!continues_text) {
  for (std::string& s : stop) {
    if (s.empty()) continue;
    Matcher m;
    m.border.assign(s.size() + 1, 0);
    for (size_t i = 1, k = 0; i < s.size(); ++i) {
      while (k > 0 && s[i] != s[k]) k = m.border[k];
      if (s[i] == s[k]) ++k;
      m.border[i + 1] = k;
    }
    m.stop = std::move(s);
    matchers_.push_back(std::move(m));
  }
}

bool StreamDecoder::Matcher::advance(char c) {
  while (matched > 0 && (matched == stop.size() || c != stop[matched])) matched = border[matched];
  if (c == stop[matched]) ++matched;
  return matched == stop.size();
}

// Feeds held_[old_size, end) to the matchers. A match must end in these new bytes but may begin before them, always
// inside held_: that is why held_ is held. The one that begins first wins, the shorter of two at one place, and
// held_ is cut there.
bool StreamDecoder::find_stop(size_t old_size, bool check_stop) {
  size_t best_begin = held_.size(), best_end = 0;
  for (Matcher& m : matchers_) {
    for (size_t i = old_size; i < held_.size(); ++i) {
      if (!m.advance(held_[i]) || !check_stop) continue;
      size_t end = i + 1, begin = end - m.stop.size();
      if (begin > best_begin || (begin == best_begin && end >= best_end)) continue;
      best_begin = begin;
      best_end = end;
      stop_string_ = m.stop;
    }
  }
  if (stop_string_.empty()) return false;
  held_.resize(include_stop_str_ ? best_end : best_begin);
  return true;
}

std::string StreamDecoder::release(size_t num_bytes) {
  std::string out = held_.substr(0, num_bytes);
  held_.erase(0, num_bytes);
  text_ += out;
  return out;
}

std::string StreamDecoder::add(int32_t id, bool check_stop) {
  if (stopped() || (skip_special_tokens_ && tokenizer_.is_special(id))) return "";
  size_t old_size = held_.size();
  utf8_.add(tokenizer_.piece(id, skip_special_tokens_, first_), held_);
  first_ = false;
  if (find_stop(old_size, check_stop)) return release(held_.size());
  size_t may_become_stop = 0;
  for (const Matcher& m : matchers_)
    // A whole stop string that was not looked for has only its borders left to go on with.
    may_become_stop = std::max(may_become_stop, m.matched == m.stop.size() ? m.border[m.matched] : m.matched);
  return release(held_.size() - may_become_stop);
}

std::string StreamDecoder::finish() {
  if (!stopped()) utf8_.finish(held_);
  return release(held_.size());
}

}  // namespace nano
