// What goes wrong, and how it is said.
//
// Error is for bad input (a file, a flag, a request): it says what is wrong, where, and what to do, in one
// line. It ends the program in main, or one request alone (llm, bench serve); who catches it on the way knows more
// about the input and throws it on with that.
// NANO_CHECK is for our own broken invariants: it prints the place and aborts, in every build. Nothing here logs.
#pragma once

#include <exception>
#include <string>

namespace nano {

class Error : public std::exception {
 public:
  explicit Error(std::string problem, std::string where = "", std::string hint = "");
  const char* what() const noexcept override { return line_.c_str(); }  // "where: problem (hint)"

  const std::string problem, where, hint;

 private:
  std::string line_;
};

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace nano

// NANO_CHECK(i < n, "row index") — not CHECK, because Catch2 owns that name in the tests.
#define NANO_CHECK(condition, message)                                               \
  do {                                                                               \
    if (!(condition)) ::nano::check_failed(__FILE__, __LINE__, #condition, message); \
  } while (0)
