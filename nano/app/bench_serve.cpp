#include "bench/serve.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "app/bench.h"        // kMost, watch, resolve_only
#include "base/error.h"       // Error
#include "llm/output_json.h"  // json_text

namespace nano {

namespace {

struct ServeCommand {
  EngineOptions engine;
  ServeOptions serve;
  bool in_process = false, json = false;
  std::optional<bool> save_result;
  std::string dataset_name = "random", result_file;
};

void add_load_flags(ArgParser& parser, ServeCommand& o) {
  LoadOptions& load = o.serve.load;
  parser.heading("Load");
  parser.add("in-process", o.in_process, "drive the engine in this process (there is no server yet)");
  parser.option("request-rate", "X", "requests a second, at random times; inf = all at once [inf]",
                [&](const std::string& value) {
                  load.request_rate =
                      value == "inf" ? INFINITY : parse_real(value, parser.where("request-rate"));
                });
  parser.add("burstiness", load.burstiness, "of the arrivals: 1 = Poisson, below 1 = in bursts");
  parser.add("max-concurrency", o.serve.max_concurrency, "most requests under way at once, 0 = no limit", 0,
             kMost);
  parser.add("num-prompts", load.num_prompts, "requests", 1, kMost);
  parser.add("num-warmups", o.serve.num_warmups,
             "requests before them that do not count; with none the first ones pay for page faults", 0,
             kMost);
  parser.add("dataset-name", o.dataset_name, "random token ids, from --seed", "random");
  parser.add("random-input-len", load.input_len, "tokens a prompt", 1, kMost);
  parser.add("random-output-len", load.output_len, "tokens an answer", 1, kMost);
  parser.add("random-range-ratio", load.range_ratio, "lengths vary by up to this share, both ways");
  parser.add("random-prefix-len", load.prefix_len, "tokens that all prompts begin with, besides", 0, kMost);
  parser.option("mix", "LIST", "input:output lengths taken in turn, in place of the two: 512:16,64:256",
                [&](const std::string& value) { load.mix = parse_mix(value, parser.where("mix")); });
  parser.add("ignore-eos", o.serve.ignore_eos, "answers have exactly their length");
  parser.add("temperature", o.serve.temperature, "0 = greedy");
}

void add_report_flags(ArgParser& parser, ServeCommand& o) {
  ReportOptions& report = o.serve.report;
  parser.heading("Results");
  parser.option("percentile-metrics", "LIST", "which of them [ttft,tpot,itl,e2el]",
                [&](const std::string& value) {
                  report.metrics = split_commas(value);
                  for (const std::string& metric : report.metrics)
                    check_choice(metric, "ttft|tpot|itl|e2el", parser.where("percentile-metrics"));
                });
  parser.option("metric-percentiles", "LIST", "[50,95,99,99.9]", [&](const std::string& value) {
    report.percentiles.clear();
    for (const std::string& p : split_commas(value))
      report.percentiles.push_back(parse_real(p, parser.where("metric-percentiles")));
  });
  parser.option("goodput", "KEY:MS", "what a good request keeps to: ttft:100 tpot:50 e2el:1000",
                [&](const std::string& value) {
                  const std::string where = parser.where("goodput");
                  const size_t colon = std::min(value.find(':'), value.size());
                  check_choice(value.substr(0, colon), "ttft|tpot|e2el", where);
                  report.goodput[value.substr(0, colon)] =
                      colon < value.size() ? parse_real(value.substr(colon + 1), where) : 0;
                });
  parser.flag("save-result", "as vLLM; a file that is named is written without it [on]",
              [&](bool on) { o.save_result = on; });
  parser.add("result-filename", o.result_file, "a file for the results");
  parser.add("output-json", o.result_file, "the same");
  parser.add("json", o.json, "the results as JSON on stdout");
}

// vLLM's --goodput takes several values; a flag of ArgParser takes one, and may come again.
Args one_flag_per_goodput(const Args& args) {
  Args single;
  bool inside = false;
  for (const std::string& arg : args) {
    const bool pair = arg.rfind("--", 0) != 0 && arg.find(':') != arg.npos;
    if (inside && pair && single.back() != "--goodput") single.push_back("--goodput");
    inside = arg == "--goodput" || arg.rfind("--goodput=", 0) == 0 || (inside && pair);
    single.push_back(arg);
  }
  return single;
}

void check(const ArgParser& parser, ServeCommand& o) {
  const LoadOptions& load = o.serve.load;
  if (!o.in_process)
    throw Error("there is no server yet to send requests to", "build/nano bench serve",
                "with --in-process it drives the engine itself");
  if (!(load.request_rate > 0)) parser.refuse("--request-rate must be above 0, or inf");
  if (!(load.burstiness > 0)) parser.refuse("--burstiness must be above 0");
  if (!(load.range_ratio >= 0 && load.range_ratio < 1))
    parser.refuse("--random-range-ratio must be in [0, 1)");
  if (!(o.serve.temperature >= 0 && o.serve.temperature <= 2))
    parser.refuse("--temperature must be in [0, 2]");
  for (double p : o.serve.report.percentiles)
    if (!(p > 0 && p <= 100)) parser.refuse("--metric-percentiles must be in (0, 100]");
  for (const auto& [metric, most_ms] : o.serve.report.goodput)
    if (!(most_ms > 0))
      parser.refuse("--goodput " + metric + " needs milliseconds above 0: " + metric + ":100");
  if (o.save_result == true && o.result_file.empty())
    parser.refuse("--save-result needs --result-filename FILE");
  if (o.save_result == false) o.result_file.clear();
  check_results_file("--result-filename", o.result_file, o.engine);
}

bool parse(const Args& args, ServeCommand& o) {
  ArgParser parser("bench serve",
                   std::string("Requests that come over time, and how long each waits for its tokens.\n") +
                       kPercentileRule);
  add_engine_flags(parser, o.engine);
  add_load_flags(parser, o);
  add_report_flags(parser, o);
  if (!parser.parse(one_flag_per_goodput(args))) return false;
  check(parser, o);
  o.serve.load.seed = uint64_t(o.engine.seed);
  return true;
}

int report_failures(const std::vector<ServedRequest>& requests) {
  auto failed = [](const ServedRequest& r) { return !r.error.empty(); };
  const auto first = std::find_if(requests.begin(), requests.end(), failed);
  if (first == requests.end()) return 0;
  print_stderr("error: {} of {} requests failed; number {}: {}\n",
               std::count_if(requests.begin(), requests.end(), failed), requests.size(),
               first - requests.begin() + 1, first->error);
  return 1;
}

}  // namespace

std::vector<std::pair<int64_t, int64_t>> parse_mix(const std::string& text, const std::string& where) {
  std::vector<std::pair<int64_t, int64_t>> mix;
  for (const std::string& pair : split_commas(text)) {
    const size_t colon = pair.find(':');
    if (colon == pair.npos)
      throw Error("'" + pair + "' is not INPUT:OUTPUT", where, "for example 512:16,64:256");
    const int64_t input = parse_human_int(pair.substr(0, colon), where);
    const int64_t output = parse_human_int(pair.substr(colon + 1), where);
    if (std::min(input, output) < 1 || std::max(input, output) > kMost)
      throw Error("'" + pair + "' is out of range: both from 1 to 1000000", where);
    mix.emplace_back(input, output);
  }
  return mix;
}

EngineOptions check_bench_serve(const Args& args) {
  ServeCommand o;
  if (parse(args, o)) resolve_only(o.engine);
  return o.engine;
}

int bench_serve_command(const Args& args) {
  ServeCommand o;
  if (!parse(args, o)) return 0;
  const std::unique_ptr<LLM> llm = start_llm(o.engine);
  Interrupt interrupt;
  Served served;
  {
    ProgressBar bar("serving");
    served = measure_serve(*llm, o.serve, watch(bar, interrupt));
  }
  fmt::print("{}", o.json ? json_text(served.result) + "\n" : serve_text(served.result, o.serve.report));
  if (!served.advice.empty()) print_stderr("{}\n", served.advice);
  write_results(o.result_file, served.result);
  const int exit_code = report_failures(served.requests);
  return std::max(exit_code, close_trace(*llm));
}

}  // namespace nano
