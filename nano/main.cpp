// build/nano COMMAND …: the table of commands, and the one place where an Error becomes a line and an exit code.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include <fcntl.h>
#include <fmt/format.h>

#include "app/cli.h"           // Args, Failed, run_command …
#include "app/terminal.h"      // print_stderr
#include "base/error.h"        // Error
#include "base/mapped_file.h"  // report_truncated_files

namespace nano {
namespace {

const char* const kVersion = "0.1";

struct Command {
  const char* name;
  const char* help;
  int (*function)(const Args& args);
};

const Command kCommands[] = {
    {"run", "complete a prompt, or a file of prompts in one batch", run_command},
    {"chat", "talk to a model", chat_command},
    {"info", "what a model is made of, and the memory it takes", info_command},
    {"tokenize", "text to token ids, or a conversation to its prompt", tokenize_command},
    {"ppl", "perplexity of a text", ppl_command},
    {"bench latency", "how long a batch of prompts takes", bench_latency_command},
    {"bench throughput", "how many tokens a second", bench_throughput_command},
    {"bench gemm", "a linear alone: formats and rows, GB/s and GMAC/s", bench_gemm_command},
    {"bench serve", "latency and throughput under a load of requests", bench_serve_command},
    {"bench compare", "a benchmark with one flag varied: what it is worth", bench_compare_command},
    {"bench ladder", "flags added one by one: the share of each", bench_ladder_command},
    {"trace summary", "what the scheduler did, from a --trace file", trace_summary_command},
};

// Those that begin with `prefix`.
void print_commands(const std::string& prefix) {
  for (const Command& command : kCommands)
    if (std::string(command.name).rfind(prefix, 0) == 0)
      fmt::print("  {:<17} {}\n", command.name, command.help);
}

void print_help() {
  fmt::print(
      "nano: a small LLM inference engine to read and to teach from\n\n"
      "usage: build/nano COMMAND MODEL …\n"
      "MODEL is a .gguf file, a Hugging Face directory, or a name: tiny, smollm2\n\n");
  print_commands("");
  fmt::print(
      "\n`build/nano COMMAND --help` lists the flags, their defaults and what each teaches.\n"
      "  build/nano run tiny \"In the beginning\" --raw\n"
      "  build/nano chat smollm2\n");
}

bool asks_for_help(const std::string& arg) { return arg == "--help" || arg == "-h" || arg == "help"; }

int dispatch(Args args) {
  if (args.size() > 1 && asks_for_help(args[0])) {  // help bench serve
    args.erase(args.begin());
    args.push_back("--help");
  }
  if (args.empty() || asks_for_help(args[0])) {
    print_help();
    return args.empty() ? 2 : 0;
  }
  if (args[0] == "--version") {
    fmt::print("nano {}, compiler {}\n", kVersion, __VERSION__);
    return 0;
  }
  const std::string two_words = args.size() > 1 ? args[0] + " " + args[1] : "";
  Args names, group;  // "bench" is a group
  for (const Command& command : kCommands) {
    if (args[0] == command.name) return command.function(Args(args.begin() + 1, args.end()));
    if (two_words == command.name) return command.function(Args(args.begin() + 2, args.end()));
    names.push_back(command.name);
    if (names.back().rfind(args[0] + " ", 0) == 0) group.push_back(command.name);
  }
  if (!group.empty() && args.size() > 1 && asks_for_help(args[1])) {
    print_commands(args[0] + " ");
    return 0;
  }
  const std::string& given = group.empty() || args.size() == 1 ? args[0] : two_words;
  const Args& choices = group.empty() ? names : group;
  Args known = choices;
  known.insert(known.end(), {"--help", "--version"});
  const std::string near = closest(given, known);
  throw Error(
      "'" + given + "' is not a command", "nano",
      near.empty() ? fmt::format("one of {}", fmt::join(choices, ", ")) : "did you mean " + near + "?");
}

// A closed stdin, stdout or stderr must not become the number of a file we open: a trace would get the messages.
// Opened for reading, so that writing to it fails as it should.
void occupy_closed_descriptors() {
  for (int fd = 0; fd <= 2; ++fd)
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) < 0) return;
}

// Buffered output can be lost as late as here.
void check_stdout() {
  if (std::fflush(stdout) != 0) throw Error(std::string("cannot write: ") + std::strerror(errno), "stdout");
  if (std::ferror(stdout) != 0) throw Error("cannot write: a part of the output is lost", "stdout");
}

}  // namespace
}  // namespace nano

// 0 done; 1 a request failed; 2 bad usage, or nothing could start; 128 + n signal n interrupted it.
int main(int argc, char** argv) {
  try {
    nano::occupy_closed_descriptors();
    nano::report_truncated_files();
    const int exit_code = nano::dispatch(nano::Args(argv + 1, argv + argc));
    nano::check_stdout();
    return exit_code;
  } catch (const std::exception& e) {
    std::string line = e.what();
    if (dynamic_cast<const std::bad_alloc*>(&e)) line = "out of memory";
    nano::print_stderr("error: {}\n", line);
    const auto* failed = dynamic_cast<const nano::Failed*>(&e);
    return failed ? failed->exit_code : 2;
  }
}
