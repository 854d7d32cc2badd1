// What is done to a text before it is cut into pieces: canonical composition (NFC), fixed replacements, a prefix.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/regex.h"  // Regex

namespace nano {

class Normalizer {
 public:
  void add_nfc();
  void add_replace(Regex pattern, std::string content);
  void add_prepend(std::string prefix);  // in front of every text that is not empty

  std::string normalize(std::string text) const;  // valid UTF-8 in and out

 private:
  struct Step {
    enum class Kind { nfc, replace, prepend } kind;
    std::unique_ptr<Regex> pattern = nullptr;  // replace
    std::string content = "";                  // replace, prepend
  };
  std::vector<Step> steps_;
};

}  // namespace nano
