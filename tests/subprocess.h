// Runs a program and keeps what it wrote: the command-line tests look at output and exit code.
#pragma once

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data.h"  // data_path

namespace nano_test {

struct Ran {
  int exit_code = -1;  // 128 + n when signal n ended it
  std::string out, err;
};

// $NANO_TEST_ISA: a level of instructions for all commands that compute (make test-isas).
inline void add_isa(std::vector<std::string>& args) {
  const char* isa = std::getenv("NANO_TEST_ISA");
  const bool computes =
      !args.empty() && (args[0] == "run" || args[0] == "chat" || args[0] == "bench" || args[0] == "ppl");
  if (isa && computes && std::find(args.begin(), args.end(), "--help") == args.end()) {
    const size_t words = args[0] == "bench" && args.size() > 1 ? 2 : 1;
    args.insert(args.begin() + int64_t(words), std::string("--cpu-isa=") + isa);
  }
}

// $NANO_BINARY, else build/nano.
inline std::string nano_binary() {
  const char* path = std::getenv("NANO_BINARY");
  return path ? path : "build/nano";
}

inline std::string temporary_file(const std::string& content) {
  char name[] = "/tmp/nano_test_XXXXXX";
  const int fd = mkstemp(name);
  if (fd < 0 || write(fd, content.data(), content.size()) != ssize_t(content.size())) std::abort();
  close(fd);
  return name;
}

inline std::string take_file(const std::string& path) {
  std::string text;
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return text;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, file)) text.append(buffer, n);
  std::fclose(file);
  std::remove(path.c_str());
  return text;
}

// The binary with these arguments. `interrupt_after` > 0: sends `signal` so many milliseconds after the first byte
// on stdout.
inline Ran run_nano(const std::vector<std::string>& args, const std::string& input = "",
                    int interrupt_after = 0, int signal = SIGINT) {
  const std::string in = temporary_file(input), out = temporary_file(""), err = temporary_file("");
  std::vector<std::string> command = {nano_binary()};
  command.insert(command.end(), args.begin(), args.end());
  std::vector<std::string> rest(command.begin() + 1, command.end());
  add_isa(rest);
  command.resize(1);
  command.insert(command.end(), rest.begin(), rest.end());
  std::vector<char*> argv;
  for (std::string& arg : command) argv.push_back(arg.data());
  argv.push_back(nullptr);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGINT, SIG_DFL);  // a shell starts background jobs with it ignored
    dup2(open(in.c_str(), O_RDONLY), 0);
    dup2(open(out.c_str(), O_WRONLY), 1);
    dup2(open(err.c_str(), O_WRONLY), 2);
    execv(argv[0], argv.data());
    _exit(127);
  }
  Ran ran;
  int status = 0;
  bool ended = false;
  if (interrupt_after > 0) {
    for (int i = 0; i < 3000 && !(ended = waitpid(child, &status, WNOHANG) != 0); ++i) {
      std::FILE* file = std::fopen(out.c_str(), "rb");
      const bool started = std::fgetc(file) != EOF;
      std::fclose(file);
      usleep(10'000);
      if (!started) continue;
      usleep(unsigned(interrupt_after) * 1000);
      kill(child, signal);
      break;
    }
  }
  if (!ended) waitpid(child, &status, 0);
  ran.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  ran.out = take_file(out);
  ran.err = take_file(err);
  std::remove(in.c_str());
  return ran;
}

// The small model of the repository, and two questions that every test of the command line asks.
inline std::string tiny() { return data_path("../lessons/models/tiny-Q8_0.gguf"); }
inline int64_t lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

// The small run that most tests want: no report, few tokens, reference device.
inline std::vector<std::string> run_args(std::vector<std::string> more) {
  std::vector<std::string> args = {"run",
                                   tiny(),
                                   "--device",
                                   "ref",
                                   "--no-stats",
                                   "--raw",
                                   "--temperature",
                                   "0",
                                   "--max-tokens",
                                   "5",
                                   "--kv-cache-memory-bytes",
                                   "16MB"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

}  // namespace nano_test
