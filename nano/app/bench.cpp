#include "app/bench.h"

#include <cstdio>

#include <fmt/format.h>

#include "bench/latency.h"     // measure_latency
#include "bench/throughput.h"  // measure_throughput
#include "llm/output_json.h"   // json_text

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

// What both benchmarks take.
struct Common {
  EngineOptions engine;
  std::string output_json;
  bool json = false, profile = false;
};

void add_common_flags(ArgParser& parser, Common& c, int64_t& input_len, int64_t& output_len, int64_t& n) {
  add_engine_flags(parser, c.engine);
  parser.heading("Benchmark");
  parser.add("input-len", input_len, "tokens a prompt", 1, kMost);
  parser.add("output-len", output_len, "tokens an answer", 1, kMost);
  parser.add("n", n, "answers a prompt", 1, kMost);
  parser.add("output-json", c.output_json, "a file for the results");
  parser.add("json", c.json, "the results as JSON on stdout");
  parser.add("profile", c.profile, "with the time of each op, and the bytes that it must read");
}

// Loads, calls measure(llm, profile or nullptr, watch), and prints what it gives.
template <class Measure, class Text>
int run(const Common& c, const char* label, const Measure& measure, const Text& text) {
  Profile profile;
  Observe observe;
  if (c.profile)
    observe = [&](std::unique_ptr<Backend> backend) { return profiled(std::move(backend), profile); };
  const std::unique_ptr<LLM> llm = start_llm(c.engine, {}, observe);
  Interrupt interrupt;
  Json result;
  {
    ProgressBar bar(label);
    result = measure(*llm, c.profile ? &profile : nullptr, watch(bar, interrupt));
  }
  fmt::print("{}", c.json ? json_text(result) + "\n" : text(result));
  if (c.profile && !c.json) fmt::print("{}", profile_text(result["profile"]));
  write_results(c.output_json, result);
  return close_trace(*llm);
}

// False: --help.
bool parse(const Args& args, Common& c, LatencyOptions& o) {
  c.engine.enable_prefix_caching = false;  // as vLLM does: the same prompts come in every iteration
  ArgParser parser(
      "bench latency",
      std::string("Time of one batch of random prompts from arrival to the last token.\n") + kPercentileRule);
  add_common_flags(parser, c, o.input_len, o.output_len, o.n);
  parser.add("batch-size", o.batch_size, "prompts a batch", 1, kMost);
  parser.add("num-iters-warmup", o.num_iters_warmup, "iterations that do not count", 0, kMost);
  parser.add("num-iters", o.num_iters, "iterations that count", 1, kMost);
  if (!parser.parse(args)) return false;
  check_results_file("--output-json", c.output_json, c.engine);
  o.seed = uint64_t(c.engine.seed);
  return true;
}

bool parse(const Args& args, Common& c, ThroughputOptions& o) {
  ArgParser parser("bench throughput",
                   "All random prompts at once: how many tokens a second the engine gets through.");
  add_common_flags(parser, c, o.load.input_len, o.load.output_len, o.n);
  parser.add("num-prompts", o.load.num_prompts, "prompts", 1, kMost);
  parser.add("random-range-ratio", o.load.range_ratio, "lengths vary by up to this share, both ways");
  if (!parser.parse(args)) return false;
  if (!(o.load.range_ratio >= 0 && o.load.range_ratio < 1))
    parser.refuse("--random-range-ratio must be in [0, 1)");
  check_results_file("--output-json", c.output_json, c.engine);
  o.load.seed = uint64_t(c.engine.seed);
  return true;
}

template <class Options>
EngineOptions check_command(const Args& args) {
  Common c;
  Options o;
  if (parse(args, c, o)) check(o, resolve_only(c.engine));
  return c.engine;
}

}  // namespace

Watch watch(ProgressBar& bar, Interrupt& interrupt) {
  return {[&bar](int64_t done, int64_t total) { bar.show(done, total); },
          [&interrupt] { interrupt.end_if_taken(); }};
}

Resolved resolve_only(const EngineOptions& options) {
  const std::unique_ptr<Weights> weights = open_model(options);
  return resolve(options, weights->config, packed_bytes(*weights), *make_backend(options));
}

EngineOptions check_bench_latency(const Args& args) { return check_command<LatencyOptions>(args); }
EngineOptions check_bench_throughput(const Args& args) { return check_command<ThroughputOptions>(args); }

int bench_latency_command(const Args& args) {
  Common c;
  LatencyOptions o;
  if (!parse(args, c, o)) return 0;
  return run(
      c, "latency",
      [&](LLM& llm, Profile* profile, const Watch& watch) { return measure_latency(llm, o, profile, watch); },
      latency_text);
}

int bench_throughput_command(const Args& args) {
  Common c;
  ThroughputOptions o;
  if (!parse(args, c, o)) return 0;
  return run(
      c, "throughput",
      [&](LLM& llm, Profile* profile, const Watch& watch) {
        return measure_throughput(llm, o, profile, watch);
      },
      throughput_text);
}

}  // namespace nano
