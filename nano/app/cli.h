// Command lines: one parser for all commands, so that human integers, --no- twins, defaults in --help and the
// wording of errors are the same everywhere. CLI11 does the parsing; only cli.cpp knows it.
// Not here: what the flags mean (llm/options.h has the engine's table; each command has its own).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"   // Error
#include "base/format.h"  // parse_human_int, parse_id_list, split_commas, closest …
#include "llm/options.h"  // EngineOptions

namespace CLI {
class App;
}

namespace nano {

using Args = std::vector<std::string>;  // what stands after the command's name

class ArgParser {
 public:
  // "run": errors and --help call it "build/nano run".
  ArgParser(std::string command, std::string description);
  ~ArgParser();

  void heading(std::string group) { group_ = std::move(group); }  // of the options that follow
  // --name VALUE, and for what llama.cpp has a letter, -n VALUE too. `set` is called for each time it is given, in
  // order; it throws Error to refuse.
  using Setter = std::function<void(const std::string&)>;
  void option(const std::string& name, const std::string& value_name, const std::string& help, Setter set);
  // --name and its twin --no-name.
  void flag(const std::string& name, const std::string& help, std::function<void(bool)> set);

  // The same with a field to fill. Its present value is the default and is shown. The last one given wins.
  void add(const std::string& name, std::string& field, const std::string& help,
           const std::string& choices = "");
  void add(const std::string& name, int64_t& field, const std::string& help, int64_t low = INT64_MIN,
           int64_t high = INT64_MAX);
  void add(const std::string& name, std::optional<int64_t>& field, const std::string& help);
  void add(const std::string& name, double& field, const std::string& help);
  void add(const std::string& name, bool& field, const std::string& help);
  // Those given fill the fields in the order of their declaration; a field that a flag has filled is passed over.
  void positional(const std::string& name, std::string& field, const std::string& help);
  void positional(const std::string& name, std::optional<std::string>& field, const std::string& help);

  // False: --help was asked for and printed. Error: anything that was not declared, with where to look; a positional
  // (not an optional one) that is missing or empty.
  bool parse(const Args& args);
  // The same, but what was not declared stays in `args` (the rest is taken out): it is for somebody else.
  bool parse_own(Args& args);
  std::string where(const std::string& flag) const { return command_ + " --" + flag; }
  [[noreturn]] void refuse(const std::string& problem) const;  // Error with the hint to look at --help

 private:
  struct Positional {
    std::string name, *field;
    std::optional<std::string>* optional_field;
  };
  void add_positional(Positional positional, const std::string& help);
  void fill_positionals();
  [[noreturn]] void refuse_extra(const std::string& extra) const;

  std::string command_, group_ = "Options";
  std::unique_ptr<CLI::App> cli_;
  std::vector<Positional> positionals_;
  std::vector<std::string> given_;  // of them
};

// MODEL or --model, and every engine flag of llm/options.h. Declare them first: MODEL is the first positional.
void add_engine_flags(ArgParser& parser, EngineOptions& options);

// An Error after the start: the program ends with this exit code in place of 2.
struct Failed : Error {
  Failed(int code, const std::string& problem, const std::string& where = "", const std::string& hint = "")
      : Error(problem, where, hint), exit_code(code) {}
  const int exit_code;
};

// The commands of build/nano, one source file each (app/run.cpp …; bench.cpp and bench_compare.cpp have two). They
// get what stands after the command's name, and return the exit code; bad usage and what cannot start is an Error.
int run_command(const Args& args);
int chat_command(const Args& args);
int info_command(const Args& args);
int tokenize_command(const Args& args);
int ppl_command(const Args& args);
int bench_latency_command(const Args& args);
int bench_throughput_command(const Args& args);
int bench_gemm_command(const Args& args);
int bench_serve_command(const Args& args);
int bench_compare_command(const Args& args);
int bench_ladder_command(const Args& args);
int trace_summary_command(const Args& args);

}  // namespace nano
