// The pre-tokenizer cuts text into pieces that are tokenised apart: "it's 12" → "it", "'s", " ", "12". Which rule
// it follows is part of a model, as its merges are: another rule gives other ids and a worse model, unnoticed.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"  // Regex

namespace nano {

// What becomes of the text a Split's pattern matches (names of tokenizer.json).
enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

class Pretokenizer {
 public:
  void add_split(Regex pattern, SplitBehavior behavior, bool invert);
  void add_leading_space();  // " " in front of every piece that has none (ByteLevel's add_prefix_space)
  // " " → `mark`, and one `mark` in front where there is none: always, or only at the start of the whole text.
  enum class Prepend { always, first, never };
  void add_metaspace(std::string mark, Prepend prepend);

  // `at_start`: this text begins the whole input (nothing, not even a special token, is in front of it).
  std::vector<std::string> split(std::string text, bool at_start) const;

 private:
  struct Step {
    enum class Kind { split, leading_space, metaspace } kind;
    std::unique_ptr<Regex> pattern = nullptr;          // split
    SplitBehavior behavior = SplitBehavior::isolated;  // split
    bool invert = false;                               // split: what is between the matches counts as matched
    std::string mark = "";                             // metaspace
    Prepend prepend = Prepend::never;                  // metaspace
  };
  static void apply(const Step& step, const std::string& piece, bool at_start, std::vector<std::string>& out);

  std::vector<Step> steps_;
};

// The rule behind GGUF's tokenizer.ggml.pre. Error: unknown, with the list of the known.
Pretokenizer pretokenizer_by_name(const std::string& name);
// GPT-2's pattern, which ByteLevel with use_regex means.
Regex gpt2_regex();

}  // namespace nano
