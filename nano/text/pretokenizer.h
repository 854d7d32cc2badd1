// What happens to a text before BPE: it is normalised (Normalizer), then cut into pieces that are tokenised apart
// (Pretokenizer): "it's 12" → "it", "'s", " ", "12". Both are part of a model, as its merges are: another rule gives
// other ids and a worse model, unnoticed. So an unknown rule is an Error. Not here: lower case, NFKC, and where a
// piece stood in the text as it was given.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

struct pcre2_real_code_8;

namespace nano {

// A Unicode regular expression from a tokenizer's file (PCRE2), with limits: pattern and text are foreign, so a
// search that takes too long is an Error, not a hang.
class Regex {
 public:
  // `literal`: matches exactly this text. Error: the pattern does not compile.
  explicit Regex(const std::string& pattern, bool literal = false);

  // Calls found(begin, end) for each match from left to right, as byte offsets. `text` must be valid UTF-8.
  // Error: the search took all `steps` that were left; a step is an item of the pattern, tried at one place.
  void find_all(std::string_view text, int64_t& steps,
                const std::function<void(size_t, size_t)>& found) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::string pattern_;
  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

// Canonical composition (NFC), fixed replacements, a prefix.
class Normalizer {
 public:
  void add_nfc() { steps_.push_back({Step::Kind::nfc, "", ""}); }
  void add_replace(std::string from, std::string to) {  // `from` is not empty
    steps_.push_back({Step::Kind::replace, std::move(from), std::move(to)});
  }
  void add_prepend(std::string prefix) {  // in front of every text that is not empty
    steps_.push_back({Step::Kind::prepend, "", std::move(prefix)});
  }
  // Valid UTF-8 in and out. `at_start` false: a part of a text, without the prefix.
  std::string normalize(std::string text, bool at_start = true) const;

 private:
  struct Step {
    enum class Kind { nfc, replace, prepend } kind;
    std::string from, to;
  };
  std::vector<Step> steps_;
};

// What becomes of the text a Split's pattern matches (names of tokenizer.json).
enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

class Pretokenizer {
 public:
  void add_split(Regex pattern, SplitBehavior behavior = SplitBehavior::isolated) {
    steps_.push_back({std::move(pattern), behavior});
  }
  void add_gpt2_split();  // GPT-2's pattern, which ByteLevel with use_regex means
  // Metaspace: " " becomes `mark`, and a piece that does not begin with one gets one in front: every piece, only the
  // first of a whole text, or none. ByteLevel's add_prefix_space is the mark " ".
  enum class Prefix { always, first, never };
  void add_space_mark(std::string mark, Prefix prefix) {
    steps_.push_back({std::nullopt, SplitBehavior::isolated, std::move(mark), prefix});
  }

  // `at_start`: `text` is the beginning of the whole text, not what follows an added token.
  std::vector<std::string> split(std::string text, bool at_start = true) const;

 private:
  struct Step {
    std::optional<Regex> pattern;  // none: the space mark
    SplitBehavior behavior;
    std::string mark = "";
    Prefix prefix = Prefix::never;
  };
  std::vector<Step> steps_;
};

// What GGUF's tokenizer.ggml.pre stands for. Error: unknown, with the list of the known.
struct NamedRule {
  Normalizer normalizer;  // the file does not state it: it is what the tokenizer.json of such models does
  Pretokenizer pretokenizer;
  bool ignore_merges = false, add_bos = false;
};
NamedRule rule_by_name(const std::string& name);

}  // namespace nano
