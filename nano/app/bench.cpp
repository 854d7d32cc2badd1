#include <algorithm>
#include <cstdio>
#include <map>

#include <fmt/format.h>

#include "app/cli.h"          // ArgParser
#include "llm/output_json.h"  // json_text
#include "bench/roofline.h"     // the ceilings, count_macs, profile_json
#include "bench/serve_load.h"   // make_load, prompt_ids
#include "app/start.h"        // start_llm, write_results
#include "bench/stats.h"        // mean, percentile, IdsDigest
#include "base/clock.h"       // steady_seconds
#include "base/error.h"       // Error

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

struct BenchOptions {
  EngineOptions engine;
  int64_t input_len = 32, output_len = 128, batch_size = 8, n = 1, num_iters_warmup = 10, num_iters = 30;
  int64_t num_prompts = 1000;
  double random_range_ratio = 0;
  std::string output_json;
  bool json = false, profile = false;
};

constexpr int64_t kMost = 1'000'000;  // of anything

// What both benchmarks take.
void add_common_flags(ArgParser& parser, BenchOptions& o) {
  add_engine_flags(parser, o.engine);
  parser.heading("Benchmark");
  parser.add("input-len", o.input_len, "tokens a prompt", 1, kMost);
  parser.add("output-len", o.output_len, "tokens an answer", 1, kMost);
  parser.add("n", o.n, "answers a prompt", 1, kMost);
  parser.add("output-json", o.output_json, "a file for the results");
  parser.add("json", o.json, "the results as JSON on stdout");
  parser.add("profile", o.profile, "with the time of each op, and the bytes that it must read");
}

Observe observer(const BenchOptions& o, Profile& profile) {
  if (!o.profile) return {};
  return [&profile](std::unique_ptr<Backend> backend) { return profiled(std::move(backend), profile); };
}

LoadOptions load_options(const BenchOptions& o, int64_t prompts) {
  LoadOptions load;
  load.num_prompts = prompts;
  load.input_len = o.input_len, load.output_len = o.output_len;
  load.range_ratio = o.random_range_ratio;
  load.seed = uint64_t(o.engine.seed);
  return load;
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

void finish(const BenchOptions& o, const Json& result, const std::string& text) {
  fmt::print("{}", o.json ? json_text(result) + "\n" : filled(text, result));
  if (o.profile && !o.json) fmt::print("{}", profile_text(result["profile"]));
  write_results(o.output_json, result);
}

void digest(const std::vector<RequestOutput>& results, IdsDigest& ids) {
  for (const RequestOutput& result : results)
    for (const CompletionOutput& answer : result.outputs) ids.add(answer.token_ids);
}

// One iteration of `latency`: the batch from arrival to the last token.
struct Iteration {
  double begin = 0, decode_begin = 0, end = 0;  // decode_begin: after the step in which the last answer began
  int64_t prefilled = 0, decoded = 0;           // rows computed before that, tokens sampled after it
};
Iteration iterate(LLM& llm, const std::vector<Prompt>& prompts, const SamplingParams& params,
                  Interrupt& interrupt, IdsDigest& ids) {
  struct Seen {
    int64_t tokens = 0, begun = 0;  // of all answers; answers with a token
  };
  std::map<std::string, Seen> seen;
  Iteration one;
  int64_t rows = 0, before_decoding = -1;
  auto note = [&](const RequestOutput& out) {
    Seen& of = seen[out.request_id] = {};
    for (const CompletionOutput& answer : out.outputs) {
      of.tokens += int64_t(answer.token_ids.size());
      of.begun += answer.token_ids.empty() ? 0 : 1;
    }
  };
  auto between_steps = [&] {
    interrupt.end_if_taken();
    if (before_decoding >= 0) return false;
    Seen all;
    for (const auto& [id, of] : seen) all.tokens += of.tokens, all.begun += of.begun;
    if (all.begun == int64_t(prompts.size()) * params.n)
      before_decoding = all.tokens, one.prefilled = rows, one.decode_begin = steady_seconds();
    return false;
  };
  llm.loaded().engine->on_step = [&](const StepPlan& plan, const StepResult&) { rows += plan.num_tokens; };
  one.begin = steady_seconds();
  const std::vector<RequestOutput> results = llm.generate(prompts, {params}, note, between_steps);
  one.end = steady_seconds();
  llm.loaded().engine->on_step = {};
  fail_on_error(results);
  digest(results, ids);
  if (before_decoding < 0)  // the last answer began in the last step
    one.prefilled = rows, one.decode_begin = one.end;
  else
    one.decoded = add_up(results).generated - before_decoding;
  return one;
}

// Random prompts are not cut to fit: the figures would be of another load than the one asked for.
void check_lengths(const LLM& llm, int64_t input, int64_t output) {
  const int64_t most = llm.loaded().resolved.scheduler.max_model_len;
  if (input + output <= most) return;
  throw Error(fmt::format("prompts of {} and answers of {} tokens are more than --max-model-len, {}", input,
                          output, most),
              "build/nano bench", "shorten --input-len or --output-len");
}

// Bytes that one decoding step must read, shared by the tokens it yields: all matrices once (an embedding that is not
// the head stays in the file and is not counted: a step reads a few rows), and each sequence's K and V, on average
// half-way through its output (all of it: a sliding window reads less).
double bytes_per_token(const LLM& llm, const BenchOptions& o) {
  const LoadedEngine& e = llm.loaded();
  const auto weights = double(e.backend->allocated(Memory::weights));
  const double context = double(o.input_len) + double(o.output_len) / 2;
  return weights / double(o.batch_size * o.n) + context * double(e.resolved.memory.kv_bytes_per_token);
}

Json latency_json(const LLM& llm, const BenchOptions& o, const std::vector<Iteration>& iterations) {
  std::vector<double> latencies;
  double prefill = 0, decode = 0;
  int64_t prefilled = 0, decoded = 0;
  for (const Iteration& i : iterations) {
    latencies.push_back(i.end - i.begin);
    prefill += i.decode_begin - i.begin, prefilled += i.prefilled;
    decode += i.end - i.decode_begin, decoded += i.decoded;
  }
  Json percentiles = Json::object();
  for (int p : {10, 25, 50, 75, 90, 99}) percentiles[std::to_string(p)] = percentile(latencies, p);
  const double bytes = bytes_per_token(llm, o), decode_rate = double(decoded) / decode;
  const bool decodes = decoded > 0,
             reads = decodes && o.engine.kv_cache;  // without one a step computes, it does not read
  return {{"avg_latency", mean(latencies)},
          {"latencies", latencies},
          {"percentiles", percentiles},
          {"prefill_tokens_per_second", double(prefilled) / prefill},
          {"decode_tokens_per_second", decodes ? Json(decode_rate) : Json()},
          {"bytes_per_token", o.engine.kv_cache ? Json(bytes) : Json()},
          {"achieved_gb_per_second", reads ? Json(bytes * decode_rate / 1e9) : Json()}};
}

std::string latency_text(const Json& result) {
  std::string text = "Avg latency: {avg_latency} seconds\n";
  for (const auto& [p, seconds] : result["percentiles"].items())
    text += fmt::format("{0}% percentile latency: {{percentiles_{0}}} seconds\n", p);
  text += "Prefill: {prefill_tokens_per_second:.1f} tokens/s\n";
  if (result["decode_tokens_per_second"].is_null()) return text;
  text += "Decode: {decode_tokens_per_second:.1f} tokens/s";
  if (result["achieved_gb_per_second"].is_null()) return text + "\n";
  text +=
      ", {achieved_gb_per_second:.2f} GB/s read: {bandwidth_share:.2f} of the {read_gb_per_second:.2f} GB/s\n"
      "that these threads read from memory, measured before the run";
  return text + (result["bandwidth_share"] > 1.0 ? " (above 1: the cache helps)\n" : "\n");
}

// The ceiling of decoding: a token reads the weights, so the threads cannot be faster than memory.
void add_bandwidth(Json& result, double read) {
  const Json& achieved = result["achieved_gb_per_second"];
  const Json share = achieved.is_null() ? Json() : Json(achieved.get<double>() / read);
  result["read_gb_per_second"] = read;
  result["bandwidth_share"] = share;
}

// The ceiling of large batches: the multiply-adds of the matrices (attention's own are not counted) for the rows that
// all steps computed, preempted and recomputed ones too.
void add_arithmetic(Json& result, int64_t rows, const Totals& t, const Macs& macs, double peak) {
  const double gmacs = (double(rows) * double(macs.layers) + double(t.generated) * double(macs.head)) / 1e9;
  const double rate = gmacs / (t.end - t.begin);
  result["gmac_per_second"] = rate;
  result["kernel"] = macs.int8 ? "int8" : "float32";
  result["kernel_gmac_per_second"] = peak;
  result["kernel_share"] = rate / peak;
}

}  // namespace

int bench_latency_command(const Args& args) {
  BenchOptions o;
  o.engine.enable_prefix_caching = false;  // as vLLM does: the same prompts come in every iteration
  ArgParser parser("bench latency", "Time of one batch of random prompts from arrival to the last token.");
  add_common_flags(parser, o);
  parser.add("batch-size", o.batch_size, "prompts a batch", 1, kMost);
  parser.add("num-iters-warmup", o.num_iters_warmup, "iterations that do not count", 0, kMost);
  parser.add("num-iters", o.num_iters, "iterations that count", 1, kMost);
  if (!parser.parse(args)) return 0;
  check_results_file("--output-json", o.output_json, o.engine);

  Profile profile;
  const std::unique_ptr<LLM> llm = start_llm(o.engine, {}, observer(o, profile));
  const double read = read_gb_per_second(o.engine);
  check_lengths(*llm, o.input_len, o.output_len);
  if (const int64_t most = llm->loaded().resolved.scheduler.max_num_seqs; o.batch_size * o.n > most)
    throw Error(fmt::format("a batch of {} answers does not run at once: --max-num-seqs is {}",
                            o.batch_size * o.n, most),
                "build/nano bench latency", "raise --max-num-seqs, or use bench throughput");
  Interrupt interrupt;
  const LoadOptions load = load_options(o, o.batch_size);
  std::vector<Prompt> prompts;
  for (int64_t i = 0; i < o.batch_size; ++i)
    prompts.push_back({"", prompt_ids(load, size_t(i), o.input_len, llm->tokenizer().vocab_size())});
  std::vector<Iteration> iterations;
  IdsDigest ids;
  {
    ProgressBar bar("latency");
    const int64_t total = o.num_iters_warmup + o.num_iters;
    for (int64_t i = 0; i < total; ++i) {
      if (i == o.num_iters_warmup) profile.clear();
      const Iteration one = iterate(*llm, prompts, exactly(o.output_len, o.n), interrupt, ids);
      if (i >= o.num_iters_warmup) iterations.push_back(one);
      bar.show(i + 1, total);
    }
  }
  const Json ops = profile_json(profile);
  close_trace(*llm);
  Json result = latency_json(*llm, o, iterations);
  add_bandwidth(result, read);
  if (o.profile) result["profile"] = ops;
  result["output_ids_digest"] = ids.text();
  finish(o, result, latency_text(result));
  return 0;
}

int bench_throughput_command(const Args& args) {
  BenchOptions o;
  o.input_len = 1024;
  ArgParser parser("bench throughput",
                   "All random prompts at once: how many tokens a second the engine gets through.");
  add_common_flags(parser, o);
  parser.add("num-prompts", o.num_prompts, "prompts", 1, kMost);
  parser.add("random-range-ratio", o.random_range_ratio, "lengths vary by up to this share, both ways");
  if (!parser.parse(args)) return 0;
  if (!(o.random_range_ratio >= 0 && o.random_range_ratio < 1))
    parser.refuse("--random-range-ratio must be in [0, 1)");
  check_results_file("--output-json", o.output_json, o.engine);

  Profile profile;
  const std::unique_ptr<LLM> llm = start_llm(o.engine, {}, observer(o, profile));
  const Macs macs = count_macs(llm->loaded());
  const double peak = kernel_gmac_per_second(o.engine, macs.int8);
  Interrupt interrupt;
  const LoadOptions options = load_options(o, o.num_prompts);
  const std::vector<LoadItem> load = make_load(options);
  for (const LoadItem& item : load) check_lengths(*llm, item.input_len, item.output_len);
  std::vector<Prompt> prompts;
  std::vector<SamplingParams> params;
  for (size_t i = 0; i < load.size(); ++i) {
    prompts.push_back({"", prompt_ids(options, i, load[i].input_len, llm->tokenizer().vocab_size())});
    params.push_back(exactly(load[i].output_len, o.n));
  }
  int64_t rows = 0;
  llm->loaded().engine->on_step = [&](const StepPlan& plan, const StepResult&) { rows += plan.num_tokens; };
  std::vector<RequestOutput> results;
  profile.clear();
  {
    ProgressBar bar("throughput");
    int64_t done = 0;
    results = llm->generate(
        prompts, params, [&](const RequestOutput& out) { bar.show(done += out.finished, o.num_prompts); },
        [&] { return interrupt.end_if_taken(), false; });
  }
  const Json ops = profile_json(profile);
  close_trace(*llm);
  fail_on_error(results);
  const Totals t = add_up(results);
  const double elapsed = t.end - t.begin;
  IdsDigest ids;
  digest(results, ids);
  Json result = {{"elapsed_time", elapsed},
                 {"num_requests", o.num_prompts},
                 {"total_num_tokens", t.prompt + t.generated},
                 {"total_num_prompt_tokens", t.prompt},
                 {"total_num_output_tokens", t.generated},
                 {"requests_per_second", double(o.num_prompts) / elapsed},
                 {"tokens_per_second", double(t.prompt + t.generated) / elapsed},
                 {"output_tokens_per_second", double(t.generated) / elapsed},
                 {"output_ids_digest", ids.text()}};
  add_arithmetic(result, rows, t, macs, peak);
  if (o.profile) result["profile"] = ops;
  finish(o, result,
         "Throughput: {requests_per_second:.2f} requests/s, {tokens_per_second:.2f} total tokens/s, "
         "{output_tokens_per_second:.2f} output tokens/s\n"
         "Total num prompt tokens:  {total_num_prompt_tokens}\n"
         "Total num output tokens:  {total_num_output_tokens}\n"
         "Arithmetic: {gmac_per_second:.1f} GMAC/s in the matrices: {kernel_share:.2f} of the "
         "{kernel_gmac_per_second:.1f} GMAC/s\n"
         "that the {kernel} kernel does on a matrix in the L2 cache, measured before the run\n");
  return 0;
}

}  // namespace nano
