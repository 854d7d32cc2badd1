#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <fmt/format.h>

#include "base/error.h"  // Error
#include "text/utf8.h"   // utf8_length

namespace nano {
namespace {

constexpr uint32_t kMatchLimit =
    20'000'000;  // backtracking steps for one match: a megabyte of spaces needs 2 M
constexpr uint32_t kHeapLimitKiB = 256 * 1024;
constexpr size_t kLongestPattern = 10'000;

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[200];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<char*>(text);
}

// The tokenizers' own engine takes \s as Unicode's White_Space. PCRE2 adds U+180E, which stopped being white
// space in Unicode 6.3, so \s (and \S outside a class) is spelt out.
std::string spell_out_white_space(const std::string& pattern) {
  const std::string white = R"(\p{Z}\x09-\x0d\x{85})";
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    char c = pattern[i], next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (c == '\\' && next == 's') {
      out += in_class ? white : "[" + white + "]";
      ++i;
    } else if (c == '\\' && next == 'S' && !in_class) {
      out += "[^" + white + "]";
      ++i;
    } else if (c == '\\' && i + 1 < pattern.size()) {
      out += c;
      out += pattern[++i];
    } else {
      if (c == '[') in_class = true;
      if (c == ']') in_class = false;
      out += c;
    }
  }
  return out;
}

}  // namespace

void Regex::Free::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }
void Regex::Free::operator()(pcre2_real_match_context_8* context) const { pcre2_match_context_free(context); }

Regex::Regex(const std::string& pattern) : pattern_(pattern) {
  if (pattern.size() > kLongestPattern) throw Error("a regular expression is longer than 10000 bytes");
  std::string spelt = spell_out_white_space(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelt.data()), spelt.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr));
  if (!code_)
    throw Error(fmt::format("invalid regular expression \"{}\": {}", pattern, pcre2_message(error)));
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // only faster: where it can't, pcre2_match interprets
  limits_.reset(pcre2_match_context_create(nullptr));
  NANO_CHECK(limits_ != nullptr, "out of memory");
  pcre2_set_match_limit(limits_.get(), kMatchLimit);
  pcre2_set_heap_limit(limits_.get(), kHeapLimitKiB);
}

Regex Regex::literal(std::string_view text) {
  std::string pattern;
  for (char c : text) {
    bool plain = (c & 0x80) || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    pattern += plain ? std::string(1, c) : fmt::format("\\x{{{:x}}}", static_cast<unsigned char>(c));
  }
  return Regex(pattern);
}

void Regex::find_all(std::string_view text, const std::function<void(size_t, size_t)>& found) const {
  std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create_from_pattern(code_.get(), nullptr), pcre2_match_data_free);
  NANO_CHECK(data != nullptr, "out of memory");
  auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (size_t at = 0; at < text.size();) {
    // Checking the text's UTF-8 again for each match would make this quadratic.
    uint32_t options = PCRE2_NO_UTF_CHECK;
    int rc = pcre2_match(code_.get(), subject, text.size(), at, options, data.get(), limits_.get());
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
      rc = pcre2_match(code_.get(), subject, text.size(), at, options | PCRE2_NO_JIT, data.get(),
                       limits_.get());
    if (rc == PCRE2_ERROR_NOMATCH) return;
    if (rc < 0)
      throw Error(fmt::format("the tokenizer's regular expression \"{}\" failed at byte {}: {}", pattern_, at,
                              pcre2_message(rc)),
                  "", "send the text in smaller parts");
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    size_t begin = range[0], end = range[1];
    if (begin > end || begin < at)
      throw Error(fmt::format("regular expression \"{}\" moves backwards", pattern_));
    found(begin, end);
    // After an empty match the search goes on one character later, or it would find it for ever.
    at = end > begin ? end : end < text.size() ? end + size_t(utf8_length(text.substr(end))) : end + 1;
  }
}

}  // namespace nano
