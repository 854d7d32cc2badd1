#include "app/terminal.h"

#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <cwchar>
#include <fstream>
#include <iostream>
#include <iterator>

#include <fcntl.h>
#include <histedit.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"        // NANO_CHECK
#include "base/mapped_file.h"  // read_file

namespace nano {

namespace {

bool stderr_is_fancy() {
  const char* no_color = std::getenv("NO_COLOR");
  return isatty(STDERR_FILENO) && (no_color == nullptr || *no_color == '\0');
}

// A handler is given nothing but the signal's number, so this is the program's one global: where it is to be written.
volatile std::sig_atomic_t signal_pipe = -1;

extern "C" void on_signal(int signal) {
  const int interrupted_errno = errno;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  const auto byte = static_cast<char>(signal);
  if (write(signal_pipe, &byte, 1) != 1)
    _exit(128 + signal);  // the pipe holds far more than ever waits there
  errno = interrupted_errno;
}

// What is ignored (as in a shell's background jobs) stays ignored.
void handle_signals(void (*handler)(int)) {
  for (int signal : {SIGINT, SIGTERM})
    if (std::signal(signal, handler) == SIG_IGN) std::signal(signal, SIG_IGN);
}

}  // namespace

bool stdin_is_terminal() { return isatty(STDIN_FILENO); }

std::string dim(const std::string& text) { return stderr_is_fancy() ? "\x1b[2m" + text + "\x1b[0m" : text; }

std::string read_input(const std::string& path) {
  auto all = [](std::istream& in) {
    return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  };
  if (path == "-" || path == "/dev/stdin") return all(std::cin);
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || !S_ISFIFO(info.st_mode)) return read_file(path);
  std::ifstream pipe(path, std::ios::binary);
  return all(pipe);
}

ProgressBar::ProgressBar(std::string label) : label_(std::move(label)), enabled_(isatty(STDERR_FILENO)) {}

ProgressBar::~ProgressBar() {
  if (shown_percent_ >= 0) print_stderr("\r{:{}}\r", "", label_.size() + 36);
}

void ProgressBar::show(int64_t done, int64_t total) {
  const int percent = total > 0 ? int(double(done) / double(total) * 100) : 100;
  if (!enabled_ || percent == shown_percent_) return;
  shown_percent_ = percent;
  std::string bar;
  for (int i = 0; i < 25; ++i) bar += i * 4 < percent ? "█" : "░";
  print_stderr("\r{} {} {:3}%", label_, bar, percent);
  std::fflush(stderr);
}

Interrupt::Interrupt() {
  NANO_CHECK(pipe2(pipe_, O_NONBLOCK | O_CLOEXEC) == 0, "pipe2");
  signal_pipe = pipe_[1];
  handle_signals(on_signal);
}

Interrupt::~Interrupt() {
  handle_signals(SIG_DFL);
  for (int fd : pipe_) close(fd);
}

bool Interrupt::taken() {
  bool any = false;
  for (char signal; read(pipe_[0], &signal, 1) == 1; any = true) terminated_ |= signal == SIGTERM;
  if (any) handle_signals(on_signal);
  return any;
}

void Interrupt::end_if_taken() {
  if (!taken()) return;
  std::fflush(nullptr);
  const int signal = terminated_ ? SIGTERM : SIGINT;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

LineReader::LineReader(Interrupt& interrupt) : interrupt_(interrupt) {
  if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) return;
  std::setlocale(LC_CTYPE, "C.UTF-8");  // what a character is
  edit_ = el_init("nano", stdin, stdout, stderr);
  if (edit_ == nullptr) return;
  history_ = history_init();
  HistEvent event;
  history(history_, &event, H_SETSIZE, 1000);
  el_set(edit_, EL_CLIENTDATA, this);
  el_set(
      edit_, EL_PROMPT, +[](EditLine*) { return const_cast<char*>("> "); });
  el_set(edit_, EL_GETCFN, &LineReader::read_char);
  el_set(edit_, EL_EDITOR, "emacs");
  el_set(edit_, EL_HIST, history, history_);
}

LineReader::~LineReader() {
  if (edit_ == nullptr) return;
  el_end(edit_);
  history_end(history_);
}

int LineReader::read_byte() {
  // One at a time: what a buffer took in could not be waited for.
  pollfd fds[2] = {{STDIN_FILENO, POLLIN, 0}, {interrupt_.descriptor(), POLLIN, 0}};
  while (poll(fds, 2, -1) < 0) continue;
  unsigned char byte;
  interrupted_ = interrupt_.taken();
  return !interrupted_ && ::read(STDIN_FILENO, &byte, 1) == 1 ? byte : -1;
}

// A character of UTF-8 is up to four bytes; what is none is passed over. 0 ends el_gets.
int LineReader::read_char(EditLine* edit, wchar_t* out) {
  void* self = nullptr;
  el_get(edit, EL_CLIENTDATA, &self);
  std::mbstate_t state = {};
  for (int byte; (byte = static_cast<LineReader*>(self)->read_byte()) >= 0;) {
    const char c = char(byte);
    size_t used = std::mbrtowc(out, &c, 1, &state);
    if (used == size_t(-1)) {  // what came before was none; this byte may begin a new one
      state = {};
      used = std::mbrtowc(out, &c, 1, &state);
    }
    if (used <= 1) return 1;
    if (used == size_t(-1)) state = {};
  }
  return 0;
}

LineReader::Got LineReader::read(std::string& line) {
  line.clear();
  if (edit_ != nullptr) {
    int length = 0;
    const char* text = el_gets(edit_, &length);
    if (text == nullptr || length <= 0) return interrupted_ ? Got::interrupted : Got::end;
    line = text;
    HistEvent event;
    if (line != "\n") history(history_, &event, H_ENTER, text);
  } else {
    int byte;
    while ((byte = read_byte()) >= 0 && byte != '\n') line += char(byte);
    if (byte < 0 && interrupted_) return Got::interrupted;
    if (byte < 0 && line.empty()) return Got::end;
  }
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  return Got::line;
}

}  // namespace nano
