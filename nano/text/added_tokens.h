// Added tokens ("<|im_start|>", "<tool_call>") are cut out of the text before anything else looks at it: the
// leftmost first, at one place the longest.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace nano {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool single_word = false;             // only where no letter or digit touches it
  bool lstrip = false, rstrip = false;  // swallows the white space in front, behind
  bool normalized = false;              // looked for in the normalised text
  bool special = false;                 // a control token: left alone when special tokens are not parsed
};

class AddedTokens {
 public:
  void add(AddedToken token);     // empty content is never found
  bool mark_special(int32_t id);  // false: no such token here

  struct Segment {
    std::string_view text;
    int32_t id;  // -1: text that is still to be tokenised
  };
  std::vector<Segment> split(std::string_view text, bool parse_special) const;

 private:
  const AddedToken* longest_at(std::string_view text) const;

  struct Node {
    std::map<char, int32_t> next;  // index in nodes_
    int32_t token = -1;            // index in tokens_
  };
  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_{1};  // a trie; 0 is the root
};

}  // namespace nano
