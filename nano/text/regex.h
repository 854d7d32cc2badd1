// A Unicode regular expression from a tokenizer's file (PCRE2), with limits: the pattern and the text are foreign,
// so a search that takes too long is an Error, not a hang.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_context_8;

namespace nano {

class Regex {
 public:
  explicit Regex(const std::string& pattern);   // Error: the pattern does not compile
  static Regex literal(std::string_view text);  // matches exactly this text

  // Calls found(begin, end) for each match from left to right, as byte offsets. `text` must be valid UTF-8.
  // Error: the match limit was reached.
  void find_all(std::string_view text, const std::function<void(size_t, size_t)>& found) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
    void operator()(pcre2_real_match_context_8* context) const;
  };
  std::string pattern_;
  std::unique_ptr<pcre2_real_code_8, Free> code_;
  std::unique_ptr<pcre2_real_match_context_8, Free> limits_;
};

}  // namespace nano
