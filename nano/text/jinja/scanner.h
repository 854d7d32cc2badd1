// A template's source as words, the first step of parser.cpp. All white space is settled here: trim_blocks,
// lstrip_blocks and the signs in {%- … +%}. It knows neither statements nor expressions.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"        // Error
#include "text/jinja/jinja.h"  // strip, kWhiteSpace
#include "text/utf8.h"         // first_character, replace_text

namespace nano::jinja {

using Words = std::vector<std::string_view>;
inline bool any_of(const Words& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
inline bool is_name(std::string_view word) {
  return !word.empty() && is_name_char(word[0]) && !is_digit(word[0]);
}
inline bool is_string(std::string_view word) { return word.starts_with('\'') || word.starts_with('"'); }

class Scanner {
 protected:
  explicit Scanner(std::string_view source)
      : source_(replace_text(replace_text(source, "\r\n", "\n"), "\r", "\n")) {
    if (source_.ends_with('\n')) source_.pop_back();  // Jinja drops one
  }

  std::string_view close_;  // what closes the tag at hand
  std::string_view word_;   // names, numbers, strings with their quotes, symbols; "" where the tag ends
  int passed_line_ = 1;     // of the word before word_

  [[noreturn]] void fail(const std::string& problem) const { fail(problem, line_); }
  [[noreturn]] void fail(const std::string& problem, int line) const {
    throw Error(problem, fmt::format("chat template line {}", line), "see the template's Jinja source");
  }

  // --- text and tags
  // The text up to the next tag, whose opening is passed, too: close_ becomes what must close it, "" at the end of
  // the template. {%- strips all white space in front; without a sign, a tag that is the first thing on its line
  // takes its indentation with it (lstrip_blocks), but not {{.
  std::string_view open_tag() {
    size_t tag = source_.find('{', at_);
    while (tag != source_.npos && !any_of({"{{", "{%", "{#"}, source_.substr(tag, 2)))
      tag = source_.find('{', tag + 1);
    std::string_view text = rest().substr(0, tag - at_);
    const std::string_view opening = rest().substr(text.size(), 2);
    const char sign = opening.empty() ? ' ' : source_[tag + 2];  // '\0' where the template ends here
    const size_t passed = text.size() + opening.size() + (sign == '-' || sign == '+');
    const size_t line_begin = text.rfind('\n') + 1;  // 0 where there is none: npos + 1
    const bool sees_line_begin = line_begin > 0 || at_ == 0 || source_[at_ - 1] == '\n';
    if (sign == '-') {
      text = strip(text, kWhiteSpace, false, true);
    } else if (sign != '+' && any_of({"{%", "{#"}, opening) && sees_line_begin) {
      if (strip(text.substr(line_begin), kWhiteSpace, true, false).empty()) text = text.substr(0, line_begin);
    }
    advance(passed);
    tag_line_ = line_;
    close_ = opening == "{{" ? "}}" : opening == "{%" ? "%}" : opening == "{#" ? "#}" : "";
    if (close_ == "#}") skip_comment();
    if (close_ == "%}" || close_ == "}}") read_word();
    return text;
  }

  // -%} takes all white space behind it, %} one newline (trim_blocks).
  void close_tag() {
    const size_t size = tag_end_size();
    if (size == 0) unexpected("the end of the tag");
    const char sign = size > close_.size() ? source_[at_] : ' ';
    at_ += size;
    if (sign == '-') skip_spaces();
    if (sign == ' ' && close_ != "}}" && rest().starts_with('\n')) advance(1);
  }

  // --- words
  std::string_view next() {  // the word, which is passed
    const std::string_view passed = word_;
    passed_line_ = line_;
    braces_ += word_ == "{" ? 1 : word_ == "}" ? -1 : 0;  // with open ones, }} does not end the tag
    advance(passed.size());
    read_word();
    return passed;
  }
  std::string_view word_after() const {
    return first_word(strip(rest().substr(word_.size()), kWhiteSpace, true, false));
  }

  bool is(std::string_view word) const { return word_ == word; }
  bool skip(std::string_view word) { return is(word) && (next(), true); }

  [[noreturn]] void unexpected(const std::string& wanted) const {
    if (rest().empty()) fail(fmt::format("the tag has no '{}'", close_), tag_line_);
    const std::string_view quote = is_string(word_) || word_.empty() ? "" : "'";
    fail(fmt::format("unsupported here: expected {}, got {}{}{}", wanted, quote,
                     word_.empty() ? "the end" : word_, quote));
  }
  void expect(std::string_view word) {
    if (!skip(word)) unexpected(fmt::format("'{}'", word));
  }
  std::string_view name() {
    if (!is_name(word_)) unexpected("a name");
    return next();
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }

  void advance(size_t size) {
    const std::string_view passed = rest().substr(0, size);
    line_ += int(std::count(passed.begin(), passed.end(), '\n'));
    at_ += size;
  }
  void skip_spaces() { advance(rest().size() - strip(rest(), kWhiteSpace, true, false).size()); }

  size_t tag_end_size() const {  // 0: the tag does not end here
    const bool sign = rest().starts_with('-') || (rest().starts_with('+') && close_ != "}}");
    return rest().substr(sign).starts_with(close_) ? sign + close_.size() : 0;
  }

  void skip_comment() {  // up to its end, or the sign in front
    const size_t size = rest().find("#}");
    if (size == std::string::npos) fail("a comment has no end");
    advance(size > 0 && any_of({"-", "+"}, rest().substr(size - 1, 1)) ? size - 1 : size);
  }

  void read_word() {
    skip_spaces();
    word_ = braces_ == 0 && tag_end_size() > 0 ? "" : first_word(rest());
  }

  std::string_view first_word(std::string_view text) const {
    if (text.empty()) return text;
    size_t size = 1;
    if (is_name_char(text[0])) {
      const bool number = is_digit(text[0]);
      while (size < text.size() && (is_name_char(text[size]) || (number && text[size] == '.'))) ++size;
    } else if (is_string(text)) {
      while (size < text.size() && text[size] != text[0]) size += text[size] == '\\' ? 2 : 1;
      if (++size > text.size()) fail("a string has no end");
    } else if (any_of({"**", "//", "==", "!=", "<=", ">="}, text.substr(0, 2))) {
      size = 2;
    } else if (std::string_view("+-*/%~[](){}<>=.:|,").find(text[0]) == std::string::npos) {
      fail(fmt::format("unexpected character '{}'", text.substr(0, first_character(text))));
    }
    return text.substr(0, size);
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1, tag_line_ = 1, braces_ = 0;
};

}  // namespace nano::jinja
