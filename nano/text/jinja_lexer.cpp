// Cuts a template into text and tokens, and settles all white space on the way (trim_blocks, lstrip_blocks and
// the signs in {%- … +%}), so that the parser and everything behind it never sees it.
#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "base/error.h"  // Error
#include "text/jinja.h"  // Token

namespace nano::jinja {

const std::string_view kWhiteSpace =
    "\t\n\v\f\r\x1c\x1d\x1e\x1f "
    "\u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
    "\u200a\u2028\u2029\u202f\u205f\u3000";

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
bool continues(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

bool is_one_of(std::string_view character, std::string_view characters) {
  const bool broken = character.size() == 1 && static_cast<unsigned char>(character[0]) >= 0x80;
  return !broken && characters.find(character) != std::string_view::npos;
}

std::string normalize_newlines(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    out += source[i] == '\r' ? '\n' : source[i];
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();  // Jinja drops one final newline
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)) {}

  std::vector<Token> run() {
    for (size_t tag; (tag = find_tag()) < source_.size();) {
      const char kind = source_[tag + 1];
      text_before(tag, kind);
      if (kind == '#') {
        comment();
      } else {
        add(kind == '%' ? Token::block_begin : Token::output_begin, at_);
        tag_body(kind == '%' ? "%}" : "}}");
      }
    }
    if (at_ < source_.size()) add(Token::data, source_.size());
    add(Token::stop, at_);
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool looking_at(std::string_view s) const { return rest().substr(0, s.size()) == s; }

  void advance(size_t to) {
    line_ += int(std::count(source_.begin() + int64_t(at_), source_.begin() + int64_t(to), '\n'));
    at_ = to;
  }
  void skip_spaces() { advance(source_.size() - strip(rest(), kWhiteSpace, true, false).size()); }

  // The text up to `end`, as a token.
  void add(Token::Kind kind, size_t end) {
    tokens_.push_back({kind, line_, source_.substr(at_, end - at_)});
    advance(end);
  }

  size_t find_tag() const {
    for (size_t i = at_; (i = source_.find('{', i)) != std::string::npos; ++i)
      if (i + 1 < source_.size() && std::string_view("{%#").find(source_[i + 1]) != std::string::npos)
        return i;
    return source_.size();
  }

  // The text up to a tag, and "{%-". '-' strips all white space before the tag; otherwise a tag that is the first
  // thing on its line takes its indentation with it (lstrip_blocks), but not {{ and not with '+'.
  void text_before(size_t tag, char kind) {
    std::string_view text = std::string_view(source_).substr(at_, tag - at_);
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    if (sign == '-') {
      text = strip(text, kWhiteSpace, false, true);
    } else if (sign != '+' && kind != '{') {
      const size_t newline = text.rfind('\n');
      const size_t line_begin = newline == std::string::npos ? 0 : newline + 1;
      const bool sees_begin = line_begin > 0 || at_ == 0 || source_[at_ - 1] == '\n';
      if (sees_begin && strip(text.substr(line_begin), kWhiteSpace, true, false).empty())
        text = text.substr(0, line_begin);
    }
    if (!text.empty()) add(Token::data, at_ + text.size());
    advance(tag + 2 + (sign == '-' || sign == '+'));
  }

  // Consumes "-%}" with all white space behind it, "+%}", or "%}" with one newline (trim_blocks).
  bool tag_end(std::string_view close) {
    const bool output = close == "}}";
    if (looking_at("-" + std::string(close))) {
      advance(at_ + 3);
      skip_spaces();
    } else if (!output && looking_at("+" + std::string(close))) {
      advance(at_ + 3);
    } else if (looking_at(close)) {
      advance(at_ + 2);
      if (!output && looking_at("\n")) advance(at_ + 1);
    } else {
      return false;
    }
    return true;
  }

  void comment() {
    const int line = line_;
    while (!tag_end("#}")) {
      if (at_ >= source_.size()) syntax_error(line, "a comment has no end");
      advance(at_ + 1);
    }
  }

  void tag_body(std::string_view close) {
    const int line = line_;
    int braces = 0;  // open ones: a } that closes one of them is not the end of the tag
    while (skip_spaces(), braces > 0 || !tag_end(close)) {
      if (at_ >= source_.size()) syntax_error(line, fmt::format("the tag has no '{}'", close));
      const char c = source_[at_];
      if (is_digit(c)) {
        number();
      } else if (is_name_char(c)) {
        add(Token::name, end_of(is_name_char));
      } else if (c == '\'' || c == '"') {
        string(c);
      } else {
        braces += c == '{' ? 1 : c == '}' ? -1 : 0;
        symbol();
      }
    }
    tokens_.push_back({Token::end, tokens_.back().line, ""});
  }

  size_t end_of(bool (*belongs)(char)) const {
    return size_t(std::find_if_not(source_.begin() + int64_t(at_), source_.end(), belongs) - source_.begin());
  }

  void number() {
    const size_t end = end_of(is_digit), size = end - at_;
    const bool more = end < source_.size() && (is_name_char(source_[end]) || source_[end] == '.');
    if (more || size > 18 ||
        (size > 1 && source_[at_] == '0'))  // 1.5, 0x1f, 1_000; 19 digits may be too many
      syntax_error(line_, fmt::format("unsupported number '{}'", source_.substr(at_, size + more)));
    add(Token::integer, end);
  }

  void string(char quote) {
    static constexpr std::string_view kFrom = "\\'\"nrt", kTo = "\\'\"\n\r\t";
    Token token{Token::string, line_, ""};
    size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] == '\\' && ++i < source_.size()) {
        const size_t escape = kFrom.find(source_[i]);
        if (escape == std::string::npos)
          syntax_error(line_, fmt::format("unsupported escape '\\{}'", source_[i]));
        token.text += kTo[escape];
      } else if (i < source_.size()) {
        token.text += source_[i];
      }
    }
    if (i >= source_.size()) syntax_error(line_, "a string has no end");
    tokens_.push_back(std::move(token));
    advance(i + 1);
  }

  void symbol() {
    for (const char* two : {"**", "//", "==", "!=", "<=", ">="})
      if (looking_at(two)) return add(Token::symbol, at_ + 2);
    const std::string character(rest().substr(0, character_size(rest())));
    if (!is_one_of(character, "+-*/%~[](){}<>=.:|,"))
      syntax_error(line_, fmt::format("unexpected character '{}'", character));
    add(Token::symbol, at_ + 1);
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

void syntax_error(int line, const std::string& problem) {
  throw Error(problem, fmt::format("chat template line {}", line), "see the template's Jinja source");
}

size_t character_size(std::string_view text) {
  size_t size = 1;
  if (static_cast<unsigned char>(text[0]) >= 0xc0)
    while (size < 4 && size < text.size() && continues(text[size])) ++size;
  return size;
}

std::string_view strip(std::string_view text, std::string_view characters, bool left, bool right) {
  while (left && !text.empty() && is_one_of(text.substr(0, character_size(text)), characters))
    text.remove_prefix(character_size(text));
  while (right && !text.empty()) {
    size_t size = 1;
    while (size < 4 && size < text.size() && continues(text[text.size() - size])) ++size;
    if (!is_one_of(text.substr(text.size() - size), characters)) break;
    text.remove_suffix(size);
  }
  return text;
}

}  // namespace nano::jinja
