#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "app/bench.h"        // check_bench_latency
#include "base/error.h"       // Error
#include "base/json.h"        // parse_ordered_json
#include "bench/compare.h"    // run_order, Measured, report
#include "llm/output_file.h"  // check_output_file
#include "llm/output_json.h"  // json_text

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

// The benchmarks that can be repeated: sizes that fit a laptop (flags of --load win), and what they are asked for.
const struct Load {
  const char *name, *small, *metric;
  EngineOptions (*check)(const Args&);
} kLoads[] = {
    {"throughput", "--num-prompts 16 --input-len 128 --output-len 32", "tokens_per_second",
     check_bench_throughput},
    {"latency", "--batch-size 4 --input-len 32 --output-len 32 --num-iters-warmup 1 --num-iters 3",
     "avg_latency", check_bench_latency},
    {"serve", "--in-process --num-prompts 16 --random-input-len 128 --random-output-len 32",
     "output_throughput", check_bench_serve},
};

struct Setting {
  std::string name;
  Args flags;
  size_t ids_group = 0;  // settings of one group must give the same output ids
};

struct Study {
  std::string load = "throughput";
  std::vector<std::string> metrics;
  int64_t runs = 5;
  std::optional<bool> same_ids;  // none: where flags are lossless
  bool json = false, ladder = false;
  std::string output_json;
  std::vector<std::string> flags;  // that vary
  std::vector<Setting> settings;
  const Load* what = nullptr;
  Args command;  // of every run, after `bench` and the load: what all runs have in common
};

struct Outcome {
  std::vector<Measured> metrics;
  std::string ids;  // what was seen of the output ids
};

// ---- What was asked for.

Args words_of(const std::string& text) {
  Args words;
  std::istringstream in(text);
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

void append(Args& args, const Args& more) { args.insert(args.end(), more.begin(), more.end()); }

// Takes our own flags out of `args`, and leaves what goes to the runs: MODEL and all other flags.
bool parse(ArgParser& parser, Args& args, Study& s) {
  parser.option("load", "\"NAME FLAGS\"",
                "latency, throughput [default] or serve, with its flags; sizes not given are small",
                [&](const std::string& value) { s.load = value; });
  parser.option("metric", "KEY", "of the load's --json; more than one with commas",
                [&](const std::string& value) {
                  append(s.metrics, split_commas(value));
                  if (std::count(s.metrics.begin(), s.metrics.end(), "") > 0)
                    throw Error("'" + value + "' has an empty part", parser.where("metric"));
                });
  parser.add("runs", s.runs, "runs of each setting", 1, 1000);
  parser.flag("same-ids", "must all runs give the same output ids? default: where the flags are lossless",
              [&](bool on) { s.same_ids = on; });
  parser.add("output-json", s.output_json, "a file for the results");
  parser.add("json", s.json, "the results as JSON on stdout");
  return parser.parse_own(args);
}

const char* const kOneVariable = ": one variable at a time, or nobody knows which one made the difference";

// FLAG, and what is behind its "=". A "no-" is refused: flag_name drops it, and on would be off.
std::pair<std::string, std::string> flag_and_rest(const ArgParser& parser, const std::string& text,
                                                  const std::string& form) {
  const std::string flag = flag_name("--" + text);
  const size_t equals = text.find('=');
  if (flag.empty() || flag[0] == '-' || equals == text.npos)
    parser.refuse("'" + text + "' is not " + form + ": a flag without its dashes, and the values");
  if (text.rfind("no-", 0) == 0 || text.rfind("no_", 0) == 0)
    parser.refuse("'" + text + "' is not " + form + ": the flag is " + flag + ", with on and off as values");
  return {flag, text.substr(equals + 1)};
}

// Runs, one after the other, would overwrite one file of results. The file of the comparison must be none of theirs;
// which of their words is MODEL, or a trace, only they know.
void check_files(const ArgParser& parser, const Args& given, const Study& s) {
  Args flags = s.flags, files;
  for (const std::string& arg : given) {
    flags.push_back(flag_name(arg));
    files.push_back(arg.substr(arg.rfind('-', 0) == 0 ? arg.find('=') + 1 : 0));
  }
  for (const char* flag : {"output-json", "result-filename", "result-dir", "save-result"})
    if (std::count(flags.begin(), flags.end(), flag) > 0)
      parser.refuse(fmt::format("--{} of every run: give --output-json FILE outside of --load", flag));
  check_results_file("--output-json", s.output_json, files);
}

// The command of every run. Sizes come first, so that what --load and the user say wins.
void set_command(const ArgParser& parser, const Args& common, Study& s) {
  const Args load = words_of(s.load);
  const auto* known = std::find_if(std::begin(kLoads), std::end(kLoads),
                                   [&](const Load& l) { return !load.empty() && load[0] == l.name; });
  if (known == std::end(kLoads))
    throw Error("'" + s.load + "' is no load", parser.where("load"),
                "latency, throughput or serve, then its flags");
  if (s.metrics.empty()) s.metrics = {known->metric};
  Args given(load.begin() + 1, load.end());
  append(given, common);
  for (const std::string& arg : given)
    if (std::count(s.flags.begin(), s.flags.end(), flag_name(arg)) > 0)
      parser.refuse(arg + " is given to all runs, and is also to vary" + kOneVariable);
  check_files(parser, given, s);
  s.what = known;
  s.command = words_of(known->small);
  append(s.command, {"--no-stats"});
  append(s.command, given);
}

// ---- The runs.

std::string content_of(std::FILE* file) {
  std::fseek(file, 0, SEEK_END);
  std::string text(size_t(std::ftell(file)), '\0');
  std::rewind(file);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  return text;
}

// Of what a run wrote to stderr; if it failed, this is why.
std::string last_line(const std::string& text) {
  std::string line = "it said nothing";
  std::istringstream lines(text);
  for (std::string next; std::getline(lines, next);)
    if (!next.empty()) line = next;
  return line.rfind("error: ", 0) == 0 ? line.substr(7) : line;
}

// A process of its own, so that nothing a run leaves behind (memory, caches, warm threads) helps the next one.
Json run_once(Args args, const std::string& where) {
  args.insert(args.begin(), "nano");
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
  const File out(std::tmpfile(), std::fclose), err(std::tmpfile(), std::fclose);
  const pid_t child = out && err ? fork() : -1;
  if (child < 0) throw Error(std::string("cannot start: ") + std::strerror(errno), where);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);  // who ends the comparison ends its run
    dup2(fileno(out.get()), STDOUT_FILENO);
    dup2(fileno(err.get()), STDERR_FILENO);
    execv("/proc/self/exe", argv.data());
    std::perror("error: cannot start");
    _exit(2);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  if (signal == SIGINT || signal == SIGTERM) throw Failed(128 + signal, "interrupted", where);
  const std::string said = last_line(content_of(err.get()));
  if (signal != 0) throw Failed(1, fmt::format("crashed, {}: {}", strsignal(signal), said), where);
  if (const int code = WEXITSTATUS(status); code != 0)
    throw Failed(code, said, where, fmt::format("exit code {}", code));
  return parse_ordered_json(content_of(out.get()), where);
}

// The numbers of a result; a member of an inner object is outer_inner.
void add_numbers(const Json& object, const std::string& prefix, std::map<std::string, double>& numbers) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) add_numbers(value, prefix + key + "_", numbers);
    if (value.is_number()) numbers[prefix + key] = value.get<double>();
  }
}

double metric_of(const Json& result, const std::string& metric, const std::string& where) {
  std::map<std::string, double> numbers;
  add_numbers(result, "", numbers);
  if (const auto found = numbers.find(metric); found != numbers.end()) return found->second;
  std::string names;
  for (const auto& [name, value] : numbers) names += (names.empty() ? "" : ", ") + name;
  throw Error("'" + metric + "' is no number in the results", where, "there are: " + names);
}

Args args_of(const Study& s, const Setting& setting) {
  Args args = s.command;
  append(args, setting.flags);
  append(args, {"--json"});
  return args;
}

// A value that is refused is refused now, and not by a run after many others.
void check_settings(const Study& s) {
  for (const Setting& setting : s.settings) try {
      const EngineOptions engine = s.what->check(args_of(s, setting));
      check_output_file("--output-json", s.output_json, engine);
    } catch (const Error& error) {
      throw Error(error.problem, setting.name + (error.where.empty() ? "" : ": ") + error.where, error.hint);
    }
}

// Stops at the first run whose output ids are not what they should be: how fast it was says nothing.
Outcome measure(const ArgParser& parser, const Study& s) {
  Outcome outcome;
  for (const std::string& metric : s.metrics)
    outcome.metrics.push_back({metric, {}, std::vector<std::vector<double>>(s.settings.size())});
  const std::vector<size_t> order = run_order(s.settings.size(), size_t(s.runs));
  auto name_of = [&](size_t run) { return fmt::format("run {} ({})", run + 1, s.settings[order[run]].name); };
  std::vector<size_t> groups;
  std::vector<std::string> digests;
  ProgressBar bar("runs");
  for (size_t run = 0; run < order.size(); ++run) {
    bar.show(int64_t(run), int64_t(order.size()));
    Args args = args_of(s, s.settings[order[run]]);
    args.insert(args.begin(), {"bench", s.what->name});
    const Json result = run_once(args, name_of(run));
    for (Measured& m : outcome.metrics) {
      const double value = metric_of(result, m.metric, parser.where("metric"));
      if (run > 0) (run <= same_runs(size_t(s.runs)) ? m.same : m.settings[order[run]]).push_back(value);
    }
    groups.push_back(s.settings[order[run]].ids_group);
    digests.push_back(result.at("output_ids_digest").get<std::string>());
    if (const auto two = different_ids(groups, digests); two && s.same_ids.value_or(true))
      throw Failed(1,
                   fmt::format("{} gave other output ids than {}: so the speeds do not compare",
                               name_of(two->second), name_of(two->first)),
                   "", "--no-same-ids: they need not be the same");
  }
  const bool equal = !different_ids(std::vector<size_t>(digests.size(), 0), digests);
  outcome.ids = equal ? "the same in all runs" : "not the same in all runs (nor need they be)";
  return outcome;
}

// ---- The report.

int run_study(const ArgParser& parser, const Study& s) {
  check_settings(s);
  const Outcome outcome = measure(parser, s);
  Json json = {{"command", fmt::format("build/nano bench {} {}", s.what->name, fmt::join(s.command, " "))},
               {"runs", s.runs},
               {"output_ids", outcome.ids}};
  std::string text = filled(
      "{command}\n{runs} of each setting, there and back, after a warm-up and A A …\n"
      "output ids: {output_ids}\n",
      json);
  std::vector<std::string> names;
  for (const Setting& setting : s.settings) names.push_back(setting.name);
  for (const Measured& m : outcome.metrics)
    text += report(m, names, s.ladder, json["metrics"].emplace_back());
  if (s.ladder)
    text +=
        "The order matters: a lever is measured on top of those above it, and has another share elsewhere.\n";
  fmt::print("{}", s.json ? json_text(json) + "\n" : text);
  write_results(s.output_json, json);
  return 0;
}

}  // namespace

int bench_compare_command(const Args& args) {
  ArgParser parser("bench compare",
                   "A benchmark with one flag varied. MODEL and what is not listed here goes to every run.");
  Study s;
  parser.option("vary", "FLAG=a,b",
                "the one flag, and two or more values (on and off for --FLAG and --no-FLAG)",
                [&](const std::string& value) {
                  const auto [flag, rest] = flag_and_rest(parser, value, "FLAG=a,b");
                  const Args values = split_commas(rest);
                  if (values.size() < 2 || std::count(values.begin(), values.end(), "") > 0)
                    parser.refuse("'" + value + "' is not FLAG=a,b: two or more values, none of them empty");
                  s.flags.push_back(flag);
                  for (const std::string& v : values)
                    s.settings.push_back({flag + "=" + v, {flag_argument(flag, v)}, s.settings.size()});
                });
  Args common = args;
  if (!parse(parser, common, s)) return 0;
  if (s.flags.empty()) parser.refuse("--vary FLAG=a,b is missing");
  if (s.flags.size() > 1)
    throw Error(fmt::format("{} are to vary{}", fmt::join(s.flags, " and "), kOneVariable),
                parser.where("vary"), "`build/nano bench ladder` adds one after the other");
  set_command(parser, common, s);
  if (s.same_ids.value_or(is_lossless(s.flags[0])))
    for (Setting& setting : s.settings) setting.ids_group = 0;
  return run_study(parser, s);
}

int bench_ladder_command(const Args& args) {
  ArgParser parser(
      "bench ladder",
      "Levers FLAG=off:on (two values of a flag), all off, then on one after the other: what each adds.\n"
      "MODEL and what is not listed here goes to every run.");
  Study s;
  s.ladder = true;
  Args others = args, common;
  if (!parse(parser, others, s)) return 0;
  std::vector<Args> levers;  // off, on
  for (const std::string& arg : others) {
    const size_t end = arg.find_first_not_of("abcdefghijklmnopqrstuvwxyz-_");
    if (arg[0] == '-' || end == std::string::npos || arg[end] != '=') {  // a flag, a value or MODEL
      common.push_back(arg);
      continue;
    }
    const auto [flag, rest] = flag_and_rest(parser, arg, "FLAG=off:on");
    const size_t colon = rest.find(':');
    if (std::count(rest.begin(), rest.end(), ':') != 1 || colon == 0 || colon + 1 == rest.size())
      parser.refuse("'" + arg + "' is not FLAG=off:on, a flag and two values; as MODEL write ./" + arg);
    if (std::count(s.flags.begin(), s.flags.end(), flag) > 0) parser.refuse(flag + " is two levers");
    s.flags.push_back(flag);
    levers.push_back({rest.substr(0, colon), rest.substr(colon + 1)});
  }
  if (levers.empty()) parser.refuse("no lever FLAG=off:on was given");
  set_command(parser, common, s);
  size_t ids_group = 0;
  for (size_t on = 0; on <= levers.size(); ++on) {  // so many levers are on
    if (on > 0 && !s.same_ids.value_or(is_lossless(s.flags[on - 1]))) ++ids_group;
    Setting rung = {on == 0 ? "all off" : "+ " + s.flags[on - 1] + "=" + levers[on - 1][1], {}, ids_group};
    for (size_t i = 0; i < levers.size(); ++i)
      rung.flags.push_back(flag_argument(s.flags[i], levers[i][i < on]));
    s.settings.push_back(rung);
  }
  return run_study(parser, s);
}

}  // namespace nano
