// What a program owes to the person in front of it: a progress bar, Ctrl-C, dim text where there is a terminal,
// and no escape codes where there is none (or where NO_COLOR is set).
#pragma once

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace nano {

bool stdin_is_terminal();
// `text` in grey if stderr is a terminal and NO_COLOR is not set (https://no-color.org).
std::string dim(const std::string& text);
// For stderr: one that is closed or full is nobody's error (fmt::print would throw).
template <class... T>
void print_stderr(fmt::format_string<T...> format, T&&... args) {
  const std::string text = fmt::format(format, std::forward<T>(args)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
}
std::string read_stdin();  // to its end, verbatim

// "label ████░░░ 57%" on stderr, rewritten in place; nothing at all when stderr is no terminal.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();  // wipes the line
  void show(int64_t done, int64_t total);

 private:
  std::string label_;
  bool enabled_;
  int shown_percent_ = -1;
};

// Ctrl-C as something to ask for instead of something that kills. While an object lives, SIGINT is blocked in this
// thread and in those made later, and waits in a descriptor: no handler, so no global state.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool taken();                           // was Ctrl-C pressed since the last call?
  void let_through();                     // a pending Ctrl-C ends the program after all (while a model loads)
  int descriptor() const { return fd_; }  // readable when pressed, for poll()

 private:
  int fd_;
  sigset_t set_, before_;
};

}  // namespace nano
