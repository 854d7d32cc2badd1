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

std::string normalize_newlines(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i)
    if (source[i] != '\r' || source.substr(i, 2) != "\r\n") out += source[i] == '\r' ? '\n' : source[i];
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

  void add(Token::Kind kind, size_t end) {  // the text up to `end` as a token
    tokens_.push_back({kind, line_, source_.substr(at_, end - at_)});
    advance(end);
  }

  size_t find_tag() const {
    for (size_t i = at_; i + 1 < source_.size(); ++i)
      if (source_[i] == '{' && std::string_view("{%#").find(source_[i + 1]) != std::string::npos) return i;
    return source_.size();
  }

  // The text up to a tag, and "{%-". '-' strips all white space before the tag; otherwise a tag that is the first
  // thing on its line takes its indentation with it (lstrip_blocks), but not {{ and not with '+'.
  void text_before(size_t tag, char kind) {
    std::string_view text = rest().substr(0, tag - at_);
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    const size_t line_begin = text.rfind('\n') + 1;  // 0 where there is none: npos + 1
    const bool sees_line_begin = line_begin > 0 || at_ == 0 || source_[at_ - 1] == '\n';
    if (sign == '-') {
      text = strip(text, kWhiteSpace, false, true);
    } else if (sign != '+' && kind != '{' && sees_line_begin) {
      if (strip(text.substr(line_begin), kWhiteSpace, true, false).empty()) text = text.substr(0, line_begin);
    }
    if (!text.empty()) add(Token::data, at_ + text.size());
    advance(tag + 2 + (sign == '-' || sign == '+'));
  }

  // Consumes "-%}" with all white space behind it, "+%}", or "%}" with one newline (trim_blocks).
  bool tag_end(const std::string& close) {
    const char sign = looking_at("-" + close) ? '-' : looking_at("+" + close) && close != "}}" ? '+' : ' ';
    if (sign == ' ' && !looking_at(close)) return false;
    advance(at_ + (sign == ' ' ? 2 : 3));
    if (sign == '-') skip_spaces();
    if (sign == ' ' && close != "}}" && looking_at("\n")) advance(at_ + 1);
    return true;
  }

  void comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) syntax_error(line_, "a comment has no end");
    const bool sign = end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+');
    advance(end - sign);
    tag_end("#}");
  }

  void tag_body(const std::string& close) {
    const int line = line_;
    int braces = 0;  // open ones: a } that closes one of them is not the end of the tag
    while (skip_spaces(), braces > 0 || !tag_end(close)) {
      if (at_ >= source_.size()) syntax_error(line, fmt::format("the tag has no '{}'", close));
      const char c = source_[at_];
      if (is_name_char(c)) {
        word(is_digit(c));
      } else if (c == '\'' || c == '"') {
        string(c);
      } else {
        braces += c == '{' ? 1 : c == '}' ? -1 : 0;
        symbol();
      }
    }
    tokens_.push_back({Token::end, line, ""});
  }

  void word(bool number) {
    size_t end = at_;
    while (end < source_.size() && (is_name_char(source_[end]) || (number && source_[end] == '.'))) ++end;
    const std::string text = source_.substr(at_, end - at_);
    if (number && (!std::all_of(text.begin(), text.end(), is_digit) || text.size() > 18))
      syntax_error(line_, fmt::format("unsupported number '{}'", text));
    add(number ? Token::integer : Token::name, end);
  }

  void string(char quote) {
    static constexpr std::string_view kFrom = "\\'\"nrt", kTo = "\\'\"\n\r\t";
    Token token{Token::string, line_, ""};
    size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      const bool escaped = source_[i] == '\\' && i + 1 < source_.size();
      const size_t known = escaped ? kFrom.find(source_[++i]) : 0;
      if (known == std::string::npos)
        syntax_error(line_, fmt::format("unsupported escape '\\{}'", source_[i]));
      token.text += escaped ? kTo[known] : source_[i];
    }
    if (i >= source_.size()) syntax_error(line_, "a string has no end");
    tokens_.push_back(std::move(token));
    advance(i + 1);
  }

  void symbol() {
    for (const char* two : {"**", "//", "==", "!=", "<=", ">="})
      if (looking_at(two)) return add(Token::symbol, at_ + 2);
    const std::string_view character = rest().substr(0, character_size(rest()));
    if (std::string_view("+-*/%~[](){}<>=.:|,").find(character) == std::string::npos)
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
  size_t size = 1;  // a stray byte is a character of its own
  if (static_cast<unsigned char>(text[0]) >= 0xc0)
    while (size < 4 && size < text.size() && continues(text[size])) ++size;
  return size;
}

std::string_view strip(std::string_view text, std::string_view characters, bool left, bool right) {
  const auto goes = [&](std::string_view character) {
    const bool stray = character.size() == 1 && static_cast<unsigned char>(character[0]) >= 0x80;
    return !stray && characters.find(character) != std::string::npos;
  };
  while (left && !text.empty() && goes(text.substr(0, character_size(text))))
    text.remove_prefix(character_size(text));
  while (right && !text.empty()) {
    size_t size = 1;
    while (size < 4 && size < text.size() && continues(text[text.size() - size])) ++size;
    if (!goes(text.substr(text.size() - size))) break;
    text.remove_suffix(size);
  }
  return text;
}

}  // namespace nano::jinja
