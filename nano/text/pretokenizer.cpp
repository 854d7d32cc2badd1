#include "text/pretokenizer.h"

#include <algorithm>
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

// What all patterns together may take of a text. Those of real tokenizers take up to 12 a byte.
constexpr int64_t kSteps = 2000, kStepsPerByte = 100;
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

// PCRE2 limits the steps of a match for each place where it may begin, but a text has many. It calls this in front of
// every item of a pattern, also when it comes back to one to try another way.
struct Progress {
  int64_t& steps;
  size_t at;  // of the last item
};
int count_step(pcre2_callout_block* item, void* data) {
  Progress& progress = *static_cast<Progress*>(data);
  const size_t at = item->current_position;
  progress.steps -= 1 + int64_t(at > progress.at ? (at - progress.at) / 16 : 0);  // what \s+ went through
  progress.at = at;
  return progress.steps < 0 ? PCRE2_ERROR_MATCHLIMIT : 0;
}

template <class T>
using Owner = std::unique_ptr<T, void (*)(T*)>;

}  // namespace

// ---- Regex ----

void Regex::Free::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

Regex::Regex(const std::string& pattern, bool literal) : pattern_(pattern) {
  if (pattern.size() > kLongestPattern) throw Error("a regular expression is longer than 10000 bytes");
  const std::string spelt = literal ? pattern : spell_out_white_space(pattern);
  const uint32_t options =
      PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_AUTO_CALLOUT);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelt.data()), spelt.size(), options, &error,
                            &offset, nullptr));
  if (!code_)
    throw Error(fmt::format("invalid regular expression \"{}\": {}", pattern, pcre2_message(error)));
}

void Regex::find_all(std::string_view text, int64_t& steps,
                     const std::function<void(size_t, size_t)>& found) const {
  const Owner<pcre2_match_data> data(pcre2_match_data_create_from_pattern(code_.get(), nullptr),
                                     pcre2_match_data_free);
  const Owner<pcre2_match_context> limits(pcre2_match_context_create(nullptr), pcre2_match_context_free);
  NANO_CHECK(data != nullptr && limits != nullptr, "out of memory");
  pcre2_set_match_limit(limits.get(), UINT32_MAX);
  pcre2_set_heap_limit(limits.get(), kHeapLimitKiB);
  Progress progress{steps, 0};
  pcre2_set_callout(limits.get(), count_step, &progress);
  auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (size_t at = 0; at < text.size();) {
    // Checking the text's UTF-8 again for each match would make this quadratic.
    int rc = pcre2_match(code_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, data.get(), limits.get());
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

std::string Normalizer::normalize(std::string text, bool at_start) const {
  for (const Step& step : steps_) {
    if (text.empty()) break;
    switch (step.kind) {
      case Step::Kind::nfc: text = compose(text); break;
      case Step::Kind::replace: text = replace_text(text, step.from, step.to); break;
      case Step::Kind::prepend: text = at_start ? step.to + text : text; break;
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
std::vector<Span> cut(const Regex& pattern, const std::string& text, SplitBehavior behavior, int64_t& steps) {
  std::vector<Span> spans;
  const auto add = [&](const Span& span) {
    if (!spans.empty() && joined(spans.back(), span, behavior))
      spans.back() = {spans.back().begin, span.end, span.matched};
    else
      spans.push_back(span);
  };
  size_t done = 0;
  pattern.find_all(text, steps, [&](size_t begin, size_t end) {
    if (begin > done) add({done, begin, false});
    add({begin, end, true});
    done = end;
  });
  if (done < text.size()) add({done, text.size(), false});
  return spans;
}

// ---- rules by name ----

constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Llama 3's; others take digits one by one, or line ends apart from the punctuation before them.
std::string words(const char* digits, const char* after_punctuation = R"([\r\n]*)") {
  return std::string(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)") + digits +
         R"(| ?[^\s\p{L}\p{N}]+)" + after_punctuation + R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
}
constexpr const char* kTekken =  // "HTMLElement" is "HTML", "Element"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDeepseekV3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char*
    kDeepseekLetters =  // alphabets with upper and lower case; \x: NFC would change the letter
    R"(\s?[A-Za-z)"
    R"(µÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽ)"
    R"(ᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D})"
    R"(ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕ)"
    R"(ℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳ)"
    R"(Ꙁ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻)"
    R"(𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃)"
    R"(]+)";
constexpr const char* kBloom = R"( ?[^(\s|.,!?…。，、।۔،)]+)";

// The names that llama.cpp's converter writes, for the architectures nano knows: several for one rule where the files
// differ only in other respects. Each pattern cuts what the one before it left; what none matches is a piece too.
struct NamedPatterns {
  std::vector<std::string> names, patterns;
  bool nfc = false, ignore_merges = false, add_bos = false;
};

const std::vector<NamedPatterns>& known_rules() {
  static const std::vector<NamedPatterns> rules = {
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2", "pixtral", "midm-2.0"},
       {words(R"(\p{N}{1,3})")},
       false,
       true,
       true},
      {{"smaug-bpe", "dbrx"}, {words(R"(\p{N}{1,3})")}},
      {{"qwen2", "deepseek-r1-qwen", "megrez", "kormo"}, {words(R"(\p{N})")}, true},
      {{"seed-coder"}, {words(R"(\p{N})", "")}},
      {{"tekken"}, {kTekken}, false, true, true},
      {{"gpt-2", "phi-2", "exaone4", "modern-bert", "mellum", "a.x-4.0", "trillion", "granite-docling"},
       {kGpt2}},
      {{"mpt", "olmo"}, {kGpt2}, true},  // GPT-NeoX's vocabulary
      {{"smollm", "starcoder", "refact", "minerva-7b", "exaone"}, {R"(\p{N})", kGpt2}},
      {{"command-r"}, {R"(\p{N})", kGpt2}, true},
      {{"falcon"}, {R"([\p{P}$+<=>^~|`]+)", kGpt2, "[0-9][0-9][0-9]"}},
      {{"default"}, {R"([\p{P}$+<=>^~|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
      {{"deepseek-llm"},
       {R"([\r\n])", kDeepseekLetters, R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)",
        R"((?<!\s)\s++$)",  // \s+$ in linear time
        "[一-龥ࠀ-一가-퟿]+", R"(\p{N})"}},
      {{"deepseek-coder"},
       {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-퟿]+", R"(\p{N})"}},
      {{"deepseek-v3"}, {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+", kDeepseekV3}},
      {{"poro-chat", "bloom"}, {kBloom}},
      {{"viking"}, {kBloom, R"(\p{N})"}},
  };
  return rules;
}

}  // namespace

void Pretokenizer::add_gpt2_split() { add_split(Regex(kGpt2)); }

std::vector<std::string> Pretokenizer::split(std::string text, bool at_start) const {
  std::vector<std::string> pieces;
  int64_t steps_left = kSteps + kStepsPerByte * int64_t(text.size());
  if (!text.empty()) pieces.push_back(std::move(text));
  for (const Step& step : steps_) {
    std::vector<std::string> next;
    for (std::string& piece : pieces) {
      if (!step.pattern) {
        std::string marked = replace_text(piece, " ", step.mark);
        const bool wanted =
            step.prefix == Prefix::always || (step.prefix == Prefix::first && at_start && next.empty());
        if (wanted && marked.rfind(step.mark, 0) != 0) marked = step.mark + marked;
        next.push_back(std::move(marked));
        continue;
      }
      for (const Span& span : cut(*step.pattern, piece, step.behavior, steps_left))
        if (span.begin < span.end && !(span.matched && step.behavior == SplitBehavior::removed))
          next.push_back(piece.substr(span.begin, span.end - span.begin));
    }
    pieces = std::move(next);
  }
  return pieces;
}

NamedRule rule_by_name(const std::string& name) {
  std::string known;
  for (const NamedPatterns& row : known_rules()) {
    if (std::find(row.names.begin(), row.names.end(), name) == row.names.end()) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", fmt::join(row.names, ", "));
      continue;
    }
    NamedRule rule;
    if (row.nfc) rule.normalizer.add_nfc();
    for (const std::string& pattern : row.patterns) rule.pretokenizer.add_split(Regex(pattern));
    rule.ignore_merges = row.ignore_merges;
    rule.add_bos = row.add_bos;
    return rule;
  }
  throw Error(fmt::format("unknown pre-tokenizer \"{}\"", name), "tokenizer.ggml.pre", "known: " + known);
}

}  // namespace nano
