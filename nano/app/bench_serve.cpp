// `bench serve`: requests come over time, as to a server, and each is watched. Here the engine is driven in this
// process, so that what is measured is the engine; the load (serve_load) and the arithmetic (serve_metrics) do not
// care who answers.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <optional>
#include <queue>
#include <thread>

#include <fmt/format.h>

#include "app/cli.h"            // ArgParser
#include "llm/output_json.h"    // json_text
#include "bench/serve_load.h"     // make_load, prompt_ids
#include "bench/serve_metrics.h"  // ServedRequest, StepStats
#include "app/start.h"          // start_llm, write_results
#include "base/clock.h"         // steady_seconds
#include "base/error.h"         // Error

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMost = 1'000'000;  // of anything
constexpr double kLongestNap = 0.01;  // seconds, while no request is under way; then Ctrl-C is looked at

struct ServeOptions {
  EngineOptions engine;
  LoadOptions load;
  ReportOptions report;
  bool in_process = false, ignore_eos = true, json = false;
  std::optional<bool> save_result;
  int64_t num_warmups = 0;
  int64_t max_concurrency = 0;  // 0 = no limit
  double temperature = 0;
  std::string dataset_name = "random", result_file;
};

void add_load_flags(ArgParser& parser, ServeOptions& o) {
  LoadOptions& load = o.load;
  parser.heading("Load");
  parser.add("in-process", o.in_process, "drive the engine in this process (there is no server yet)");
  parser.option("request-rate", "X", "requests a second, at random times; inf = all at once [inf]",
                [&](const std::string& value) {
                  load.request_rate =
                      value == "inf" ? INFINITY : parse_real(value, parser.where("request-rate"));
                });
  parser.add("burstiness", load.burstiness, "of the arrivals: 1 = Poisson, below 1 = in bursts");
  parser.add("max-concurrency", o.max_concurrency, "most requests under way at once, 0 = no limit", 0, kMost);
  parser.add("num-prompts", load.num_prompts, "requests", 1, kMost);
  parser.add("num-warmups", o.num_warmups, "requests before them that do not count", 0, kMost);
  parser.add("dataset-name", o.dataset_name, "random token ids, from --seed", "random");
  parser.add("random-input-len", load.input_len, "tokens a prompt", 1, kMost);
  parser.add("random-output-len", load.output_len, "tokens an answer", 1, kMost);
  parser.add("random-range-ratio", load.range_ratio, "lengths vary by up to this share, both ways");
  parser.add("random-prefix-len", load.prefix_len, "tokens that all prompts begin with, besides", 0, kMost);
  parser.option("mix", "LIST", "input:output lengths taken in turn, in place of the two: 512:16,64:256",
                [&](const std::string& value) { load.mix = parse_mix(value, parser.where("mix")); });
  parser.add("ignore-eos", o.ignore_eos, "answers have exactly their length");
  parser.add("temperature", o.temperature, "0 = greedy");
}

void add_report_flags(ArgParser& parser, ServeOptions& o) {
  ReportOptions& report = o.report;
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

void check(const ArgParser& parser, ServeOptions& o) {
  const LoadOptions& load = o.load;
  if (!o.in_process)
    throw Error("there is no server yet to send requests to", "build/nano bench serve",
                "with --in-process it drives the engine itself");
  if (!(load.request_rate > 0)) parser.refuse("--request-rate must be above 0, or inf");
  if (!(load.burstiness > 0)) parser.refuse("--burstiness must be above 0");
  if (!(load.range_ratio >= 0 && load.range_ratio < 1))
    parser.refuse("--random-range-ratio must be in [0, 1)");
  if (!(o.temperature >= 0 && o.temperature <= 2)) parser.refuse("--temperature must be in [0, 2]");
  for (double p : o.report.percentiles)
    if (!(p > 0 && p <= 100)) parser.refuse("--metric-percentiles must be in (0, 100]");
  for (const auto& [metric, most_ms] : o.report.goodput)
    if (!(most_ms > 0))
      parser.refuse("--goodput " + metric + " needs milliseconds above 0: " + metric + ":100");
  if (o.save_result == true && o.result_file.empty())
    parser.refuse("--save-result needs --result-filename FILE");
  if (o.save_result == false) o.result_file.clear();
  check_results_file("--result-filename", o.result_file, o.engine);
}

// One load against the engine. `sent` is when the client would have sent: at its arrival, or when a place among
// max_concurrency became free, even if the engine was in the middle of a step then. Tokens are there when their
// step is over.
class Drive {
 public:
  Drive(LLM& llm, const ServeOptions& o, const LoadOptions& options)
      : llm_(llm), o_(o), options_(options), load_(make_load(options)), requests_(load_.size()) {
    for (int64_t i = 0; i < o.max_concurrency; ++i) free_since_.push(0);
  }

  std::vector<ServedRequest> run(Interrupt& interrupt) {
    ProgressBar bar("serving");
    while (next_ < load_.size() || llm_.has_work()) {
      interrupt.end_if_taken();
      while (next_ < load_.size() && place_is_free() && load_[next_].arrival <= now()) send();
      step_end_.reset();
      if (llm_.has_work())
        llm_.step([this](const RequestOutput& out) { receive(out); });
      else if (next_ < load_.size())
        std::this_thread::sleep_for(
            std::chrono::duration<double>(std::clamp(load_[next_].arrival - now(), 0.0, kLongestNap)));
      bar.show(int64_t(next_) - under_way_, int64_t(load_.size()));
    }
    return std::move(requests_);
  }

 private:
  double now() const { return steady_seconds() - start_; }
  bool place_is_free() const { return o_.max_concurrency == 0 || !free_since_.empty(); }

  void send() {
    const size_t i = next_++;
    SamplingParams params;
    params.temperature = float(o_.temperature);
    params.seed = int64_t((options_.seed + i) & INT64_MAX);
    params.ignore_eos = o_.ignore_eos;
    params.max_tokens = int32_t(load_[i].output_len);
    requests_[i].sent = load_[i].arrival;
    requests_[i].input_tokens = load_[i].input_len;
    try {
      llm_.add_request(std::to_string(i),
                       {"", prompt_ids(options_, i, load_[i].input_len, llm_.tokenizer().vocab_size())},
                       params);
      ++under_way_;
      if (o_.max_concurrency == 0) return;
      requests_[i].sent = std::max(load_[i].arrival, free_since_.top());
      free_since_.pop();
    } catch (const Error& error) {  // the others go on
      requests_[i].error = Error(error.problem, "", error.hint).what();
    }
  }

  void receive(const RequestOutput& out) {
    if (!step_end_) step_end_ = now();  // one time for all: they came together
    ServedRequest& request = requests_[std::stoul(out.request_id)];
    const std::vector<int32_t>& ids = out.outputs.at(0).token_ids;
    const auto fresh = int64_t(ids.size() - request.token_ids.size());
    if (fresh > 0) request.chunks.push_back({*step_end_, fresh});
    request.token_ids.insert(request.token_ids.end(), ids.end() - fresh, ids.end());
    if (!out.finished) return;
    request.error = out.error;
    if (o_.max_concurrency > 0) free_since_.push(*step_end_);
    --under_way_;
  }

  LLM& llm_;
  const ServeOptions& o_;
  const LoadOptions& options_;
  const std::vector<LoadItem> load_;
  std::vector<ServedRequest> requests_;
  const double start_ = steady_seconds();
  size_t next_ = 0;
  int64_t under_way_ = 0;
  // The free places among max_concurrency: since when. The one that is free longest is taken first.
  std::priority_queue<double, std::vector<double>, std::greater<double>> free_since_;
  std::optional<double> step_end_;
};

std::string table_row(const std::string& label, const Json& value, const char* none = "n/a") {
  const std::string number =
      value.is_number_float() ? fmt::format("{:.2f}", value.get<double>()) : json_text(value);
  return fmt::format("{:<40} {}\n", label, value.is_null() ? none : number);
}

std::string table(const Json& r, const ReportOptions& options) {
  std::string text = fmt::format("{:=^50}\n", " Serving Benchmark Result ");
  auto row = [&](const char* label, const char* key) { text += table_row(label, r.at(key)); };
  row("Successful requests:", "completed");
  row("Failed requests:", "failed");
  row("Benchmark duration (s):", "duration");
  row("Total input tokens:", "total_input_tokens");
  row("Total generated tokens:", "total_output_tokens");
  row("Request throughput (req/s):", "request_throughput");
  if (!options.goodput.empty()) row("Request goodput (req/s):", "request_goodput");
  row("Output token throughput (tok/s):", "output_throughput");
  row("Total token throughput (tok/s):", "total_token_throughput");
  row("Peak concurrent requests:", "max_concurrent_requests");
  row("Most running at once:", "max_num_running");
  row("Preemptions:", "num_preemptions");
  row("Mean tokens per step:", "mean_tokens_per_step");
  row("Longest gap between tokens (ms):", "max_gap_ms");
  auto share = [&](const char* label, const char* key) {
    text += table_row(label, r.at(key).is_null() ? Json() : Json(100 * r.at(key).get<double>()));
  };
  share("KV cache blocks in use, peak (%):", "peak_kv_usage");
  share("Slots in use of blocks held, mean (%):", "mean_kv_utilization");
  const std::map<std::string, const char*> titles = {{"ttft", "Time to First Token"},
                                                     {"tpot", "Time per Output Token (excl. 1st token)"},
                                                     {"itl", "Inter-token Latency"},
                                                     {"e2el", "End-to-end Latency"}};
  for (const std::string& metric : options.metrics) {
    std::string name = metric, key = "_" + metric + "_ms";
    std::transform(name.begin(), name.end(), name.begin(), [](char c) { return char(std::toupper(c)); });
    text += fmt::format("{:-^50}\n", titles.at(metric));
    text += table_row("Mean " + name + " (ms):", r.at("mean" + key));
    text += table_row("Median " + name + " (ms):", r.at("median" + key));
    for (double p : options.percentiles)
      if (p != 50)  // the median
        text += table_row(fmt::format("P{} {} (ms):", p, name), r.at(fmt::format("p{}{}", p, key)),
                          "n too small");
  }
  return text + std::string(50, '=') + "\n";
}

Json settings_json(const ServeOptions& o) {
  Json json = {{"model_id", o.engine.model}, {"num_prompts", o.load.num_prompts}};
  json["request_rate"] = std::isfinite(o.load.request_rate) ? Json(o.load.request_rate) : Json("inf");
  json["burstiness"] = o.load.burstiness;
  json["max_concurrency"] = o.max_concurrency ? Json(o.max_concurrency) : Json();
  return json;
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

int bench_serve_command(const Args& args) {
  ServeOptions o;
  ArgParser parser("bench serve", "Requests that come over time, and how long each waits for its tokens.");
  add_engine_flags(parser, o.engine);
  add_load_flags(parser, o);
  add_report_flags(parser, o);
  if (!parser.parse(one_flag_per_goodput(args))) return 0;
  check(parser, o);
  o.load.seed = uint64_t(o.engine.seed);

  const std::unique_ptr<LLM> llm = start_llm(o.engine);
  LoadedEngine& loaded = llm->loaded();
  Interrupt interrupt;
  LoadOptions warmup = o.load;
  warmup.num_prompts = o.num_warmups;
  warmup.request_rate = INFINITY;
  warmup.seed = ~warmup.seed;  // other prompts, or the ones that count would be in the prefix cache
  Drive(*llm, o, warmup).run(interrupt);

  StepStats steps(loaded.engine->blocks().num_blocks(), loaded.engine->blocks().block_size(),
                  loaded.resolved.scheduler.max_num_batched_tokens);
  loaded.engine->on_step = [&](const StepPlan& plan, const StepResult& result) { steps.add(plan, result); };
  const std::vector<ServedRequest> requests = Drive(*llm, o, o.load).run(interrupt);
  loaded.engine->on_step = {};
  close_trace(*llm);

  Json result = settings_json(o);
  result.update(report_requests(requests, o.report));
  result.update(steps.report());
  fmt::print("{}", o.json ? json_text(result) + "\n" : table(result, o.report));
  if (const std::string advice = steps.advice(); !advice.empty()) print_stderr("{}\n", advice);
  write_results(o.result_file, result);
  return report_failures(requests);
}

}  // namespace nano
