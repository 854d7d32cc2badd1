// app/terminal: Ctrl-C and SIGTERM. Each case in a child process, because some of them end it.
#include <csignal>
#include <cstdio>
#include <functional>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "app/terminal.h"  // Interrupt
#include "catch.h"         // Catch2, version 2 or 3

namespace {

// Its exit code, or 128 + n when signal n ended it.
int in_child(const std::function<int()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGINT, SIG_DFL);  // not the test framework's handlers
    std::signal(SIGTERM, SIG_DFL);
    _exit(body());
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool readable(int fd) {
  pollfd one = {fd, POLLIN, 0};
  return poll(&one, 1, 0) == 1;
}

}  // namespace

TEST_CASE("Ctrl-C waits to be taken, and so does the one after it") {
  CHECK(in_child([] {
          nano::Interrupt interrupt;
          if (interrupt.taken() || readable(interrupt.descriptor())) return 1;
          for (int i = 0; i < 3; ++i) {
            std::raise(SIGINT);
            if (!readable(interrupt.descriptor()) || !interrupt.taken() || interrupt.taken()) return 2;
          }
          if (interrupt.terminated()) return 3;
          std::raise(SIGTERM);
          return interrupt.taken() && interrupt.terminated() ? 0 : 4;
        }) == 0);
}

TEST_CASE("a second signal before the first is taken ends the program") {
  for (int first : {SIGINT, SIGTERM})
    for (int second : {SIGINT, SIGTERM}) {
      CAPTURE(first, second);
      CHECK(in_child([&] {
              nano::Interrupt interrupt;
              std::raise(first);
              std::raise(second);
              return 0;
            }) == 128 + second);
    }
}

TEST_CASE("end_if_taken ends as the signal asks, and writes what is buffered first") {
  for (int signal : {SIGINT, SIGTERM}) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    CHECK(in_child([&] {
            nano::Interrupt interrupt;
            std::FILE* file = fdopen(ends[1], "w");
            std::fputs("a line\n", file);
            interrupt.end_if_taken();  // nothing has come
            std::raise(signal);
            interrupt.end_if_taken();
            return 0;
          }) == 128 + signal);
    close(ends[1]);
    char text[16];
    CHECK(read(ends[0], text, sizeof text) == 7);
    close(ends[0]);
  }
}

TEST_CASE("a signal that is ignored stays ignored, and the default comes back") {
  CHECK(in_child([] {
          std::signal(SIGINT, SIG_IGN);
          {
            nano::Interrupt interrupt;
            std::raise(SIGINT);
            if (interrupt.taken()) return 1;
          }
          std::raise(SIGINT);
          std::raise(SIGTERM);
          return 2;
        }) == 128 + SIGTERM);
}
