#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>

#include <fmt/format.h>

#include "app/cli.h"          // ArgParser
#include "app/commands.h"     // bench_command
#include "app/output_json.h"  // json_text
#include "app/start.h"        // start_llm
#include "app/stats.h"        // mean, percentile
#include "base/error.h"       // Error
#include "base/rng.h"         // random_bits
#include "model/kv_cache.h"   // KvCache

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

struct BenchOptions {
  EngineOptions engine;
  int64_t input_len = 32, output_len = 128, batch_size = 8, n = 1, num_iters_warmup = 10, num_iters = 30;
  int64_t num_prompts = 1000;
  double random_range_ratio = 0;
  std::string output_json;
  bool json = false;
};

std::vector<int32_t> random_ids(int64_t count, int32_t vocab, uint64_t seed, uint32_t which) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(int32_t(random_bits({seed, which}, uint64_t(i)) % uint64_t(vocab)));
  return ids;
}

int32_t checked(int64_t value, int64_t low, const ArgParser& parser, const char* flag) {
  if (value < low || value > 1'000'000)
    parser.refuse(fmt::format("--{} must be from {} to 1000000", flag, low));
  return int32_t(value);
}

SamplingParams exactly(int64_t tokens, int64_t n) {
  SamplingParams params;
  params.ignore_eos = true;
  params.max_tokens = int32_t(tokens);
  params.n = int32_t(n);
  return params;
}

void fail_on_error(const std::vector<RequestOutput>& results) {
  for (const RequestOutput& result : results)
    if (!result.error.empty()) throw Error(result.error, "bench");
}

void finish(const BenchOptions& o, const Json& result) {
  if (o.json) fmt::print("{}\n", json_text(result));
  if (o.output_json.empty()) return;
  std::ofstream out(o.output_json);
  out << json_text(result, 4) << "\n";
  if (!out.flush()) throw Error("cannot be written", o.output_json);
}

// One iteration of `latency`: the batch from arrival to the last token.
struct Iteration {
  double seconds = 0, prefill_seconds = 0, decode_seconds = 0;
};

Iteration iterate(LLM& llm, const std::vector<Prompt>& prompts, const SamplingParams& params,
                  Interrupt& interrupt) {
  const std::vector<RequestOutput> results = llm.generate(prompts, {params}, {}, [&] {
    interrupt.let_through();
    return false;
  });
  fail_on_error(results);
  double begin = std::numeric_limits<double>::infinity(), first = 0, end = 0;
  for (const RequestOutput& result : results) {
    begin = std::min(begin, result.metrics.arrival);
    first = std::max(first, result.metrics.first_token);
    end = std::max(end, result.metrics.finished);
  }
  return {end - begin, first - begin, end - first};
}

// Bytes that one decoding step must read, shared by the tokens it yields: all matrices once (an embedding that
// is not the head stays in the file and is not counted: a step reads a few rows), and each sequence's K and V, on average half-way through its output.
double bytes_per_token(const LLM& llm, const BenchOptions& o) {
  const LoadedEngine& e = llm.loaded();
  const auto weights = double(e.backend->allocated(Memory::weights));
  const double context = double(o.input_len) + double(o.output_len) / 2;
  return weights / double(o.batch_size * o.n) + context * double(e.resolved.memory.kv_bytes_per_token);
}

Json latency_json(const LLM& llm, const BenchOptions& o, const std::vector<Iteration>& iterations) {
  std::vector<double> latencies;
  double prefill = 0, decode = 0;
  for (const Iteration& i : iterations)
    latencies.push_back(i.seconds), prefill += i.prefill_seconds, decode += i.decode_seconds;
  Json percentiles = Json::object();
  for (int p : {10, 25, 50, 75, 90, 99}) percentiles[std::to_string(p)] = percentile(latencies, p);
  Json result = {{"avg_latency", mean(latencies)}, {"latencies", latencies}, {"percentiles", percentiles}};
  const double runs = double(iterations.size());
  const double prefill_rate = runs * double(o.batch_size * o.input_len) / prefill;
  const double decode_rate = runs * double(o.batch_size * o.n * (o.output_len - 1)) / decode;
  result["prefill_tokens_per_second"] = prefill_rate;
  const double bytes = bytes_per_token(llm, o);
  result["decode_tokens_per_second"] = o.output_len > 1 ? Json(decode_rate) : Json();
  result["bytes_per_token"] = bytes;
  result["achieved_gb_per_second"] = o.output_len > 1 ? Json(bytes * decode_rate / 1e9) : Json();
  return result;
}

int latency(const Args& args) {
  BenchOptions o;
  o.engine.enable_prefix_caching = false;  // as vLLM does: the same prompts come in every iteration
  ArgParser parser("bench latency", "Time of one batch of random prompts from arrival to the last token.");
  add_engine_flags(parser, o.engine);
  parser.heading("Benchmark");
  parser.add("input-len", o.input_len, "tokens a prompt");
  parser.add("output-len", o.output_len, "tokens an answer");
  parser.add("batch-size", o.batch_size, "prompts a batch");
  parser.add("n", o.n, "answers a prompt");
  parser.add("num-iters-warmup", o.num_iters_warmup, "iterations that do not count");
  parser.add("num-iters", o.num_iters, "iterations that count");
  parser.add("output-json", o.output_json, "a file for the results");
  parser.add("json", o.json, "the results as JSON on stdout");
  if (!parser.parse(args)) return 0;
  take_model(parser, o.engine);
  no_more_positionals(parser);
  for (auto [value, flag] :
       {std::pair(o.input_len, "input-len"), std::pair(o.output_len, "output-len"),
        std::pair(o.batch_size, "batch-size"), std::pair(o.n, "n"), std::pair(o.num_iters, "num-iters")})
    checked(value, 1, parser, flag);
  checked(o.num_iters_warmup, 0, parser, "num-iters-warmup");

  Interrupt interrupt;
  const std::unique_ptr<LLM> llm = start_llm(o.engine, interrupt);
  std::vector<Prompt> prompts;
  for (int64_t i = 0; i < o.batch_size; ++i)
    prompts.push_back(
        {"", random_ids(o.input_len, llm->tokenizer().vocab_size(), uint64_t(o.engine.seed), uint32_t(i))});
  std::vector<Iteration> iterations;
  {
    ProgressBar bar("latency");
    const int64_t total = o.num_iters_warmup + o.num_iters;
    for (int64_t i = 0; i < total; ++i) {
      const Iteration one = iterate(*llm, prompts, exactly(o.output_len, o.n), interrupt);
      if (i >= o.num_iters_warmup) iterations.push_back(one);
      bar.show(i + 1, total);
    }
  }
  close_trace(*llm);
  const Json result = latency_json(*llm, o, iterations);
  if (!o.json) {
    fmt::print("Avg latency: {} seconds\n", result["avg_latency"].get<double>());
    for (const auto& [p, seconds] : result["percentiles"].items())
      fmt::print("{}% percentile latency: {} seconds\n", p, seconds.get<double>());
    fmt::print("Prefill: {:.1f} tokens/s\n", result["prefill_tokens_per_second"].get<double>());
    if (o.output_len > 1)
      fmt::print("Decode: {:.1f} tokens/s, {:.2f} GB/s read\n",
                 result["decode_tokens_per_second"].get<double>(),
                 result["achieved_gb_per_second"].get<double>());
  }
  finish(o, result);
  return 0;
}

// A length within ratio of `middle`, at least 1.
int64_t random_length(int64_t middle, double ratio, uint64_t seed, uint64_t draw) {
  const double u = random_uniform({seed ^ 0x1e46, 0}, draw);
  return std::max<int64_t>(1, int64_t(double(middle) * (1 - ratio + 2 * ratio * u) + 0.5));
}

int throughput(const Args& args) {
  BenchOptions o;
  o.input_len = 1024;
  ArgParser parser("bench throughput",
                   "All random prompts at once: how many tokens a second the engine gets through.");
  add_engine_flags(parser, o.engine);
  parser.heading("Benchmark");
  parser.add("input-len", o.input_len, "tokens a prompt");
  parser.add("output-len", o.output_len, "tokens an answer");
  parser.add("n", o.n, "answers a prompt");
  parser.add("num-prompts", o.num_prompts, "prompts");
  parser.add("random-range-ratio", o.random_range_ratio, "lengths vary by up to this share, both ways");
  parser.add("output-json", o.output_json, "a file for the results");
  parser.add("json", o.json, "the results as JSON on stdout");
  if (!parser.parse(args)) return 0;
  take_model(parser, o.engine);
  no_more_positionals(parser);
  for (auto [value, flag] : {std::pair(o.input_len, "input-len"), std::pair(o.output_len, "output-len"),
                             std::pair(o.n, "n"), std::pair(o.num_prompts, "num-prompts")})
    checked(value, 1, parser, flag);
  if (!(o.random_range_ratio >= 0 && o.random_range_ratio < 1))
    parser.refuse("--random-range-ratio must be in [0, 1)");

  Interrupt interrupt;
  const std::unique_ptr<LLM> llm = start_llm(o.engine, interrupt);
  const auto seed = uint64_t(o.engine.seed);
  std::vector<Prompt> prompts;
  std::vector<SamplingParams> params;
  for (int64_t i = 0; i < o.num_prompts; ++i) {
    const int64_t in = random_length(o.input_len, o.random_range_ratio, seed, uint64_t(2 * i));
    const int64_t out = random_length(o.output_len, o.random_range_ratio, seed, uint64_t(2 * i + 1));
    prompts.push_back({"", random_ids(in, llm->tokenizer().vocab_size(), seed, uint32_t(i))});
    params.push_back(exactly(out, o.n));
  }
  std::vector<RequestOutput> results;
  {
    ProgressBar bar("throughput");
    int64_t done = 0;
    results = llm->generate(
        prompts, params, [&](const RequestOutput& out) { bar.show(done += out.finished, o.num_prompts); },
        [&] { return interrupt.let_through(), false; });
  }
  close_trace(*llm);
  fail_on_error(results);
  double begin = std::numeric_limits<double>::infinity(), end = 0;
  int64_t input = 0, output = 0;
  for (const RequestOutput& result : results) {
    begin = std::min(begin, result.metrics.arrival), end = std::max(end, result.metrics.finished);
    input += int64_t(result.prompt_token_ids.size());
    for (const CompletionOutput& answer : result.outputs) output += int64_t(answer.token_ids.size());
  }
  const double elapsed = end - begin;
  const Json result = {{"elapsed_time", elapsed},
                       {"num_requests", o.num_prompts},
                       {"total_num_tokens", input + output},
                       {"requests_per_second", double(o.num_prompts) / elapsed},
                       {"tokens_per_second", double(input + output) / elapsed},
                       {"output_tokens_per_second", double(output) / elapsed}};
  if (!o.json) {
    fmt::print("Throughput: {:.2f} requests/s, {:.2f} total tokens/s, {:.2f} output tokens/s\n",
               double(o.num_prompts) / elapsed, double(input + output) / elapsed, double(output) / elapsed);
    fmt::print("Total num prompt tokens:  {}\nTotal num output tokens:  {}\n", input, output);
  }
  finish(o, result);
  return 0;
}

}  // namespace

int bench_command(const Args& args) {
  const Args rest(args.begin() + (args.empty() ? 0 : 1), args.end());
  if (!args.empty() && args[0] == "latency") return latency(rest);
  if (!args.empty() && args[0] == "throughput") return throughput(rest);
  const char* usage = "bench latency MODEL, or bench throughput MODEL; each has --help";
  if (args.empty() || (args[0] != "--help" && args[0] != "-h"))
    throw Error(args.empty() ? "which benchmark?" : "'" + args[0] + "' is not a benchmark", "nano bench",
                usage);
  fmt::print("usage: build/nano {}\n", usage);
  return 0;
}

}  // namespace nano
