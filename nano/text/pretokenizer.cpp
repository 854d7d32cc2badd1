#include "text/pretokenizer.h"

#include <utility>

#include <fmt/format.h>

#include "base/error.h"  // Error
#include "text/utf8.h"   // replace_text

namespace nano {
namespace {

struct Span {
  size_t begin, end;
  bool matched;
};

// The whole text as a chain of spans, matched and not.
std::vector<Span> cut(const Regex& pattern, const std::string& text, bool invert) {
  std::vector<Span> spans;
  size_t done = 0;
  pattern.find_all(text, [&](size_t begin, size_t end) {
    if (begin > done) spans.push_back({done, begin, invert});
    spans.push_back({begin, end, !invert});
    done = end;
  });
  if (done < text.size()) spans.push_back({done, text.size(), invert});
  return spans;
}

// Spans that belong together become one; `b` follows `a`.
bool joined(const Span& a, const Span& b, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::merged_with_previous: return b.matched && !a.matched;
    case SplitBehavior::merged_with_next: return a.matched && !b.matched;
    case SplitBehavior::contiguous: return a.matched == b.matched;
    case SplitBehavior::isolated:
    case SplitBehavior::removed: break;
  }
  return false;
}

void append_pieces(const std::string& text, const std::vector<Span>& spans, SplitBehavior behavior,
                   std::vector<std::string>& out) {
  for (size_t i = 0, next; i < spans.size(); i = next) {
    next = i + 1;
    while (next < spans.size() && joined(spans[next - 1], spans[next], behavior)) ++next;
    if (behavior == SplitBehavior::removed && spans[i].matched) continue;
    size_t begin = spans[i].begin, end = spans[next - 1].end;
    if (begin < end) out.push_back(text.substr(begin, end - begin));
  }
}

// The Llama-3 pattern; Qwen-2 takes digits one by one.
std::string llama3_pattern(const char* digits) {
  return std::string(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)") + digits +
         R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

}  // namespace

void Pretokenizer::add_split(Regex pattern, SplitBehavior behavior, bool invert) {
  steps_.push_back({Step::Kind::split, std::make_unique<Regex>(std::move(pattern)), behavior, invert});
}
void Pretokenizer::add_leading_space() { steps_.push_back({Step::Kind::leading_space}); }
void Pretokenizer::add_metaspace(std::string mark, Prepend prepend) {
  Step step{Step::Kind::metaspace};
  step.mark = std::move(mark);
  step.prepend = prepend;
  steps_.push_back(std::move(step));
}

void Pretokenizer::apply(const Step& step, const std::string& piece, bool at_start,
                         std::vector<std::string>& out) {
  if (step.kind == Step::Kind::split) {
    append_pieces(piece, cut(*step.pattern, piece, step.invert), step.behavior, out);
  } else if (step.kind == Step::Kind::leading_space) {
    out.push_back(piece[0] == ' ' ? piece : " " + piece);
  } else {
    std::string marked = replace_text(piece, " ", step.mark);
    bool wanted = step.prepend == Prepend::always || (step.prepend == Prepend::first && at_start);
    if (wanted && marked.compare(0, step.mark.size(), step.mark) != 0) marked = step.mark + marked;
    out.push_back(std::move(marked));
  }
}

std::vector<std::string> Pretokenizer::split(std::string text, bool at_start) const {
  std::vector<std::string> pieces;
  if (!text.empty()) pieces.push_back(std::move(text));
  for (const Step& step : steps_) {
    std::vector<std::string> next;
    for (size_t i = 0; i < pieces.size(); ++i) apply(step, pieces[i], at_start && i == 0, next);
    pieces = std::move(next);
  }
  return pieces;
}

Regex gpt2_regex() {
  return Regex(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)");
}

Pretokenizer pretokenizer_by_name(const std::string& name) {
  auto isolate = [](Pretokenizer& p, Regex r) { p.add_split(std::move(r), SplitBehavior::isolated, false); };
  Pretokenizer rule;
  if (name == "llama-bpe" || name == "llama3" || name == "llama-v3") {
    isolate(rule, Regex(llama3_pattern(R"(\p{N}{1,3})")));
  } else if (name == "qwen2") {
    isolate(rule, Regex(llama3_pattern(R"(\p{N})")));
  } else if (name == "smollm" || name == "starcoder" || name == "refact" || name == "command-r") {
    isolate(rule, Regex(R"(\p{N})"));
    isolate(rule, gpt2_regex());
  } else if (name == "gpt-2") {
    isolate(rule, gpt2_regex());
  } else {
    throw Error(fmt::format("unknown pre-tokenizer \"{}\"", name), "tokenizer.ggml.pre",
                "known: gpt-2, llama-bpe (llama3, llama-v3), qwen2, smollm (starcoder, refact, command-r)");
  }
  return rule;
}

}  // namespace nano
