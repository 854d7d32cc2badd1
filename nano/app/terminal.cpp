#include "app/terminal.h"

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <iostream>
#include <utility>

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/error.h"  // NANO_CHECK

namespace nano {

namespace {

bool stderr_is_fancy() {
  const char* no_color = std::getenv("NO_COLOR");
  return isatty(STDERR_FILENO) && (no_color == nullptr || *no_color == '\0');
}

}  // namespace

bool stdin_is_terminal() { return isatty(STDIN_FILENO); }

std::string dim(const std::string& text) { return stderr_is_fancy() ? "\x1b[2m" + text + "\x1b[0m" : text; }

std::string read_stdin() {
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
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
  sigemptyset(&set_);
  sigaddset(&set_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set_, &before_);
  fd_ = signalfd(-1, &set_, SFD_NONBLOCK | SFD_CLOEXEC);
  NANO_CHECK(fd_ >= 0, "signalfd");
}

Interrupt::~Interrupt() {
  taken();  // what came too late was meant for this scope
  close(fd_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

bool Interrupt::taken() {
  signalfd_siginfo info;
  bool any = false;
  while (read(fd_, &info, sizeof info) == ssize_t(sizeof info)) any = true;
  return any;
}

void Interrupt::let_through() {
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
}

}  // namespace nano
