#include "base/error.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace nano {

Error::Error(std::string problem_, std::string where_, std::string hint_)
    : problem(std::move(problem_)), where(std::move(where_)), hint(std::move(hint_)) {
  if (!where.empty()) line_ = where + ": ";
  line_ += problem;
  if (!hint.empty()) line_ += " (" + hint + ")";
  for (char& c : line_)  // foreign names may hold line breaks; an error stays one line
    if (c == '\n' || c == '\r') c = ' ';
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "nano: internal error at %s:%d: %s: %s\n", file, line, condition, message.c_str());
  std::abort();
}

}  // namespace nano
