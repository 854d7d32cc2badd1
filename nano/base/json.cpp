#include "base/json.h"

#include <algorithm>
#include <array>
#include <climits>

#include <fmt/format.h>

#include "base/error.h"  // Error

namespace nano {
namespace {

[[noreturn]] void fail(std::string_view text, size_t offset, const std::string& what,
                       const std::string& where) {
  offset = std::min(offset, text.size());
  std::string_view before = text.substr(0, offset);
  size_t line = 1 + size_t(std::count(before.begin(), before.end(), '\n'));
  size_t line_start = before.rfind('\n') == before.npos ? 0 : before.rfind('\n') + 1;
  throw Error(fmt::format("invalid JSON at line {}, column {}: {}", line, offset - line_start + 1, what),
              where);
}

// Brackets and colons outside strings, counted. Right for valid JSON; on invalid JSON the parser stops no later.
void check_sizes(std::string_view text, const std::string& where, int max_keys) {
  int depth = 0;
  std::array<int, kMaxJsonDepth + 1> keys{};  // of the object that is open at each depth
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) fail(text, i, fmt::format("nested deeper than {}", kMaxJsonDepth), where);
      keys[size_t(depth)] = 0;
    } else if (c == ']' || c == '}') {
      if (--depth < 0) return;
    } else if (c == ':' && ++keys[size_t(depth)] > max_keys) {
      fail(text, i, fmt::format("an object of more than {} keys", max_keys), where);
    }
  }
}

// The parser's message without its own prefix, and without the piece of input it quotes (long, perhaps not UTF-8).
std::string short_reason(const std::exception& e) {
  std::string what = e.what();
  for (const char* prefix : {"] ", "parse error", ": "}) {
    size_t at = what.find(prefix);
    if (at != what.npos) what.erase(0, at + std::string(prefix).size());
  }
  size_t quote = what.find("; last read: "), expected = what.rfind("; expected ");
  if (quote != what.npos)
    what = what.substr(0, quote) + (expected > quote && expected != what.npos ? what.substr(expected) : "");
  return what;
}

template <class Json>
Json parse(std::string_view text, const std::string& where, int max_keys) {
  check_sizes(text, where, max_keys);
  // The parser takes a NUL for the end, and would not see what follows.
  if (const size_t nul = text.find('\0'); nul != text.npos) fail(text, nul, "a NUL byte", where);
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const typename Json::parse_error& e) {
    fail(text, e.byte == 0 ? 0 : e.byte - 1, short_reason(e), where);
  } catch (const typename Json::exception& e) {  // a number too large for a double
    throw Error("invalid JSON: " + short_reason(e), where);
  }
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& where) {
  return parse<nlohmann::json>(text, where, INT_MAX);
}
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where) {
  return parse<nlohmann::ordered_json>(text, where, kMaxJsonKeys);
}

}  // namespace nano
