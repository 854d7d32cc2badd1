#include "bench/latency.h"

#include <map>

#include <fmt/format.h>

#include "base/clock.h"        // steady_seconds
#include "base/error.h"        // Error
#include "bench/serve_load.h"  // prompt_ids
#include "llm/output_json.h"   // filled

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

// One iteration of `latency`: the batch from arrival to the last token.
struct Iteration {
  double begin = 0, decode_begin = 0, end = 0;  // decode_begin: after the step in which the last answer began
  int64_t prefilled = 0, decoded = 0;           // rows computed before that, tokens sampled after it
};
Iteration iterate(LLM& llm, const std::vector<Prompt>& prompts, const SamplingParams& params,
                  const Watch& watch, IdsDigest& ids) {
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
    if (watch.between_steps) watch.between_steps();
    if (before_decoding >= 0) return;
    Seen all;
    for (const auto& [id, of] : seen) all.tokens += of.tokens, all.begun += of.begun;
    if (all.begun == int64_t(prompts.size()) * params.n)
      before_decoding = all.tokens, one.prefilled = rows, one.decode_begin = steady_seconds();
  };
  llm.loaded().engine->on_step = [&](const StepPlan& plan, const StepResult&) { rows += plan.num_tokens; };
  one.begin = steady_seconds();
  const std::vector<RequestOutput> results = generate_all(llm, prompts, {params}, {{}, between_steps}, note);
  one.end = steady_seconds();
  llm.loaded().engine->on_step = {};
  add_ids(results, ids);
  if (before_decoding < 0)  // the last answer began in the last step
    one.prefilled = rows, one.decode_begin = one.end;
  else
    one.decoded = add_up(results).generated - before_decoding;
  return one;
}

// Bytes that one decoding step must read, shared by the tokens it yields: all matrices once (an embedding that is not
// the head stays in the file and is not counted: a step reads a few rows), and each sequence's K and V, on average
// half-way through its output (all of it: a sliding window reads less).
double bytes_per_token(const LLM& llm, const LatencyOptions& o) {
  const LoadedEngine& e = llm.loaded();
  const auto weights = double(e.backend->allocated(Memory::weights));
  const double context = double(o.input_len) + double(o.output_len) / 2;
  return weights / double(o.batch_size * o.n) + context * double(e.resolved.memory.kv_bytes_per_token);
}

Json latency_json(const LLM& llm, const LatencyOptions& o, const std::vector<Iteration>& iterations) {
  std::vector<double> latencies;
  double prefill = 0, decode = 0;
  int64_t prefilled = 0, decoded = 0;
  for (const Iteration& i : iterations) {
    latencies.push_back(i.end - i.begin);
    prefill += i.decode_begin - i.begin, prefilled += i.prefilled;
    decode += i.end - i.decode_begin, decoded += i.decoded;
  }
  const bool kv_cache = llm.loaded().options.kv_cache;
  Json percentiles = Json::object();
  for (int p : {10, 25, 50, 75, 90, 99})
    percentiles[std::to_string(p)] = or_null(percentile_if_enough(latencies, p));
  const double bytes = bytes_per_token(llm, o), decode_rate = double(decoded) / decode;
  const bool decodes = decoded > 0,
             reads = decodes && kv_cache;  // without one a step computes, it does not read
  return {{"avg_latency", mean(latencies)},
          {"latencies", latencies},
          {"percentiles", percentiles},
          {"prefill_tokens_per_second", double(prefilled) / prefill},
          {"decode_tokens_per_second", decodes ? Json(decode_rate) : Json()},
          {"bytes_per_token", kv_cache ? Json(bytes) : Json()},
          {"achieved_gb_per_second", reads ? Json(bytes * decode_rate / 1e9) : Json()}};
}

// The ceiling of decoding: a token reads the weights, so the threads cannot be faster than memory.
void add_bandwidth(Json& result, double read) {
  const Json& achieved = result["achieved_gb_per_second"];
  const Json share = achieved.is_null() ? Json() : Json(achieved.get<double>() / read);
  result["read_gb_per_second"] = read;
  result["bandwidth_share"] = share;
}

}  // namespace

void check(const LatencyOptions& o, const Resolved& resolved) {
  check_lengths(resolved, o.input_len, o.output_len);
  if (const int64_t most = resolved.scheduler.max_num_seqs; o.batch_size * o.n > most)
    throw Error(fmt::format("a batch of {} answers does not run at once: --max-num-seqs is {}",
                            o.batch_size * o.n, most),
                "build/nano bench latency", "raise --max-num-seqs, or use bench throughput");
}

Json measure_latency(LLM& llm, const LatencyOptions& o, Profile* profile, const Watch& watch) {
  check(o, llm.loaded().resolved);
  const double read = read_gb_per_second(llm.loaded().options);
  LoadOptions load;
  load.seed = o.seed;
  std::vector<Prompt> prompts;
  for (int64_t i = 0; i < o.batch_size; ++i)
    prompts.push_back({"", prompt_ids(load, size_t(i), o.input_len, llm.tokenizer().vocab_size())});
  std::vector<Iteration> iterations;
  IdsDigest ids;
  const int64_t total = o.num_iters_warmup + o.num_iters;
  for (int64_t i = 0; i < total; ++i) {
    if (profile && i == o.num_iters_warmup) profile->clear();
    const Iteration one = iterate(llm, prompts, exactly(o.output_len, o.n), watch, ids);
    if (i >= o.num_iters_warmup) iterations.push_back(one);
    if (watch.progress) watch.progress(i + 1, total);
  }
  const Json ops = profile ? profile_json(*profile) : Json();
  Json result = latency_json(llm, o, iterations);
  add_bandwidth(result, read);
  if (profile) result["profile"] = ops;
  result["output_ids_digest"] = ids.text();
  return result;
}

std::string latency_text(const Json& result) {
  std::string text = "Avg latency: {avg_latency} seconds\n";
  for (const auto& [p, seconds] : result["percentiles"].items())
    text += seconds.is_null() ? p + "% percentile latency: n too small\n"
                              : fmt::format("{0}% percentile latency: {{percentiles_{0}}} seconds\n", p);
  text += "Prefill: {prefill_tokens_per_second} tokens/s\n";
  if (result["decode_tokens_per_second"].is_null()) return filled(text, result);
  text += "Decode: {decode_tokens_per_second} tokens/s";
  if (result["achieved_gb_per_second"].is_null()) return filled(text + "\n", result);
  text +=
      ", {achieved_gb_per_second} GB/s read: {bandwidth_share} of the {read_gb_per_second} GB/s\n"
      "that these threads read from memory, measured before the run";
  return filled(text + (result["bandwidth_share"] > 1.0 ? " (above 1: the cache helps)\n" : "\n"), result);
}

}  // namespace nano
