#include "text/pretokenizer.h"

#include <cstdlib>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <fmt/format.h>
#include <utf8proc.h>

#include "base/error.h"  // Error
#include "text/utf8.h"   // first_character, replace_text

namespace nano {
namespace {

constexpr uint32_t kMatchLimit = 20'000'000;  // backtracking steps a match: a megabyte of spaces needs 2 M
constexpr uint32_t kHeapLimitKiB = 256 * 1024;
constexpr size_t kLongestPattern = 10'000;
// Composition sorts runs of combining marks in quadratic time. Real text has a handful in a row.
constexpr int kMostMarksInARow = 1000;

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
    const std::string_view escape = std::string_view(pattern).substr(i, pattern[i] == '\\' ? 2 : 1);
    if (escape == "\\s")
      out += in_class ? white : "[" + white + "]";
    else if (escape == "\\S" && !in_class)
      out += "[^" + white + "]";
    else
      out += escape;
    if (escape == "[") in_class = true;
    if (escape == "]") in_class = false;
    i += escape.size() - 1;
  }
  return out;
}

}  // namespace

// ---- Regex ----

void Regex::Free::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }
void Regex::Free::operator()(pcre2_real_match_context_8* context) const { pcre2_match_context_free(context); }

Regex::Regex(const std::string& pattern, bool literal) : pattern_(pattern) {
  if (pattern.size() > kLongestPattern) throw Error("a regular expression is longer than 10000 bytes");
  const std::string spelt = literal ? pattern : spell_out_white_space(pattern);
  const uint32_t options =
      literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelt.data()), spelt.size(), options, &error,
                            &offset, nullptr));
  if (!code_)
    throw Error(fmt::format("invalid regular expression \"{}\": {}", pattern, pcre2_message(error)));
  limits_.reset(pcre2_match_context_create(nullptr));
  NANO_CHECK(limits_ != nullptr, "out of memory");
  pcre2_set_match_limit(limits_.get(), kMatchLimit);
  pcre2_set_heap_limit(limits_.get(), kHeapLimitKiB);
}

void Regex::find_all(std::string_view text, const std::function<void(size_t, size_t)>& found) const {
  std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create_from_pattern(code_.get(), nullptr), pcre2_match_data_free);
  NANO_CHECK(data != nullptr, "out of memory");
  auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (size_t at = 0; at < text.size();) {
    // Checking the text's UTF-8 again for each match would make this quadratic.
    int rc =
        pcre2_match(code_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, data.get(), limits_.get());
    if (rc == PCRE2_ERROR_NOMATCH) return;
    if (rc < 0)
      throw Error(fmt::format("the tokenizer's regular expression \"{}\" failed at byte {}: {}", pattern_, at,
                              pcre2_message(rc)),
                  "", "send the text in smaller parts");
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    const size_t begin = range[0], end = range[1];
    if (begin > end || begin < at)
      throw Error(fmt::format("regular expression \"{}\" moves backwards", pattern_));
    found(begin, end);
    // After an empty match the search goes on one character later, or it would find it for ever.
    at = end > begin ? end : end < text.size() ? end + first_character(text.substr(end)) : end + 1;
  }
}

// ---- Normalizer ----

namespace {

void check_marks(const std::string& text) {
  int marks = 0;
  for (size_t i = 0; i < text.size();) {
    utf8proc_int32_t c = 0;
    auto at = reinterpret_cast<const utf8proc_uint8_t*>(text.data() + i);
    i += size_t(utf8proc_iterate(at, utf8proc_ssize_t(text.size() - i), &c));
    marks = utf8proc_get_property(c)->combining_class != 0 ? marks + 1 : 0;
    if (marks > kMostMarksInARow)
      throw Error(
          fmt::format("the text has more than {} combining marks in a row at byte {}", kMostMarksInARow, i));
  }
}

std::string compose(const std::string& text) {
  check_marks(text);
  utf8proc_uint8_t* composed = nullptr;
  auto options = utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                       utf8proc_ssize_t(text.size()), &composed, options);
  std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(composed, std::free);
  if (size < 0) throw Error(fmt::format("the text can't be normalised: {}", utf8proc_errmsg(size)));
  return std::string(reinterpret_cast<char*>(composed), size_t(size));
}

}  // namespace

std::string Normalizer::normalize(std::string text) const {
  for (const Step& step : steps_) {
    if (text.empty()) break;
    switch (step.kind) {
      case Step::Kind::nfc: text = compose(text); break;
      case Step::Kind::replace: text = replace_text(text, step.from, step.to); break;
      case Step::Kind::prepend: text = step.to + text; break;
    }
  }
  return text;
}

// ---- Pretokenizer ----

namespace {

struct Span {
  size_t begin, end;
  bool matched;
};

bool joined(const Span& a, const Span& b, SplitBehavior behavior) {  // `b` follows `a`
  switch (behavior) {
    case SplitBehavior::merged_with_previous: return b.matched && !a.matched;
    case SplitBehavior::merged_with_next: return a.matched && !b.matched;
    case SplitBehavior::contiguous: return a.matched == b.matched;
    case SplitBehavior::isolated:
    case SplitBehavior::removed: break;
  }
  return false;
}

// The whole text as a chain of spans, matched and not; those that belong together are one, named after its last part.
std::vector<Span> cut(const Regex& pattern, const std::string& text, SplitBehavior behavior) {
  std::vector<Span> spans;
  const auto add = [&](const Span& span) {
    if (!spans.empty() && joined(spans.back(), span, behavior))
      spans.back() = {spans.back().begin, span.end, span.matched};
    else
      spans.push_back(span);
  };
  size_t done = 0;
  pattern.find_all(text, [&](size_t begin, size_t end) {
    if (begin > done) add({done, begin, false});
    add({begin, end, true});
    done = end;
  });
  if (done < text.size()) add({done, text.size(), false});
  return spans;
}

// The Llama-3 pattern; Qwen-2 takes digits one by one.
std::string llama3_pattern(const char* digits) {
  return std::string(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)") + digits +
         R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

}  // namespace

void Pretokenizer::add_gpt2_split() {
  add_split(Regex(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"));
}

std::vector<std::string> Pretokenizer::split(std::string text) const {
  std::vector<std::string> pieces;
  if (!text.empty()) pieces.push_back(std::move(text));
  for (const Step& step : steps_) {
    std::vector<std::string> next;
    for (std::string& piece : pieces) {
      if (!step.pattern) {
        next.push_back(piece[0] == ' ' ? std::move(piece) : " " + piece);
        continue;
      }
      for (const Span& span : cut(*step.pattern, piece, step.behavior))
        if (span.begin < span.end && !(span.matched && step.behavior == SplitBehavior::removed))
          next.push_back(piece.substr(span.begin, span.end - span.begin));
    }
    pieces = std::move(next);
  }
  return pieces;
}

Pretokenizer pretokenizer_by_name(const std::string& name) {
  Pretokenizer rule;
  if (name == "llama-bpe" || name == "llama3" || name == "llama-v3") {
    rule.add_split(Regex(llama3_pattern(R"(\p{N}{1,3})")));
  } else if (name == "qwen2") {
    rule.add_split(Regex(llama3_pattern(R"(\p{N})")));
  } else if (name == "smollm" || name == "starcoder" || name == "refact" || name == "command-r") {
    rule.add_split(Regex(R"(\p{N})"));
    rule.add_gpt2_split();
  } else if (name == "gpt-2") {
    rule.add_gpt2_split();
  } else {
    throw Error(fmt::format("unknown pre-tokenizer \"{}\"", name), "tokenizer.ggml.pre",
                "known: gpt-2, llama-bpe (llama3, llama-v3), qwen2, smollm (starcoder, refact, command-r)");
  }
  return rule;
}

}  // namespace nano
