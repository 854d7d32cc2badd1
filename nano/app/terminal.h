// What a program owes to the person in front of it: a progress bar, Ctrl-C, lines that can be edited, dim text where
// there is a terminal, and no escape codes where there is none (or where NO_COLOR is set).
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include <fmt/format.h>

struct editline;  // histedit.h
struct history;

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
// All of a text that the user names, byte for byte: a file, a pipe, or stdin ("-"). Error: it cannot be read.
std::string read_input(const std::string& path);

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

// Ctrl-C (SIGINT) and SIGTERM as something to ask for instead of something that kills. While an object lives, the
// first of them waits in a descriptor; from then on until it is taken the next one ends the program at once, so that
// nobody is held up by a long step. At most one object at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool taken();  // did one come since the last call?
  // One of those taken was SIGTERM: not only the answer is to end.
  bool terminated() const { return terminated_; }
  void end_if_taken();  // if one came, writes what files still buffer and ends as it asks
  int descriptor() const { return pipe_[0]; }  // readable when one came, for poll()

 private:
  int pipe_[2];
  bool terminated_ = false;
};

// Lines of stdin, so that Ctrl-C at the prompt can be told from input: with editing and history (libedit) where stdin
// and stdout are a terminal, else as they come.
class LineReader {
 public:
  explicit LineReader(Interrupt& interrupt);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  enum class Got { line, end, interrupted };
  Got read(std::string& line);  // without its line break; libedit shows the prompt, "> "
  bool edits() const { return edit_ != nullptr; }

 private:
  int read_byte();  // -1: the end, or interrupted_
  static int read_char(editline* edit, wchar_t* out);

  Interrupt& interrupt_;
  editline* edit_ = nullptr;
  ::history* history_ = nullptr;
  bool interrupted_ = false;
};

}  // namespace nano
