// Does `body` end in a failed NANO_CHECK? Runs it in a child process, because a failed check aborts.
#pragma once

#include <csignal>
#include <cstdio>

#include <sys/wait.h>
#include <unistd.h>

namespace nano_test {

template <typename Body>
bool aborts(Body body) {
  std::fflush(nullptr);
  pid_t child = fork();
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);  // not the test framework's handler
    if (!std::freopen("/dev/null", "w", stderr)) _exit(2);
    body();
    _exit(0);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return false;
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

}  // namespace nano_test
