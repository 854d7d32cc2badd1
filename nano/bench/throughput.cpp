#include "bench/throughput.h"

#include "llm/output_json.h"  // filled

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

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

void check(const ThroughputOptions& o, const Resolved& resolved) {
  for (const LoadItem& item : make_load(o.load)) check_lengths(resolved, item.input_len, item.output_len);
}

Json measure_throughput(LLM& llm, const ThroughputOptions& o, Profile* profile, const Watch& watch) {
  check(o, llm.loaded().resolved);
  const Macs macs = count_macs(llm.loaded());
  const double peak = kernel_gmac_per_second(llm.loaded().options, macs.int8);
  const std::vector<LoadItem> load = make_load(o.load);
  std::vector<Prompt> prompts;
  std::vector<SamplingParams> params;
  for (size_t i = 0; i < load.size(); ++i) {
    prompts.push_back({"", prompt_ids(o.load, i, load[i].input_len, llm.tokenizer().vocab_size())});
    params.push_back(exactly(load[i].output_len, o.n));
  }
  int64_t rows = 0, done = 0;
  llm.loaded().engine->on_step = [&](const StepPlan& plan, const StepResult&) { rows += plan.num_tokens; };
  if (profile) profile->clear();
  const std::vector<RequestOutput> results =
      generate_all(llm, prompts, params, watch, [&](const RequestOutput& out) {
        if (watch.progress) watch.progress(done += out.finished, o.load.num_prompts);
      });
  llm.loaded().engine->on_step = {};
  const Json ops = profile ? profile_json(*profile) : Json();
  const Totals t = add_up(results);
  const double elapsed = t.end - t.begin;
  IdsDigest ids;
  add_ids(results, ids);
  Json result = {{"elapsed_time", elapsed},
                 {"num_requests", o.load.num_prompts},
                 {"total_num_tokens", t.prompt + t.generated},
                 {"total_num_prompt_tokens", t.prompt},
                 {"total_num_output_tokens", t.generated},
                 {"requests_per_second", double(o.load.num_prompts) / elapsed},
                 {"tokens_per_second", double(t.prompt + t.generated) / elapsed},
                 {"output_tokens_per_second", double(t.generated) / elapsed},
                 {"output_ids_digest", ids.text()}};
  add_arithmetic(result, rows, t, macs, peak);
  if (profile) result["profile"] = ops;
  return result;
}

std::string throughput_text(const Json& result) {
  return filled(
      "Throughput: {requests_per_second} requests/s, {tokens_per_second} total tokens/s, "
      "{output_tokens_per_second} output tokens/s\n"
      "Total num prompt tokens:  {total_num_prompt_tokens}\n"
      "Total num output tokens:  {total_num_output_tokens}\n"
      "Arithmetic: {gmac_per_second} GMAC/s in the matrices: {kernel_share} of the "
      "{kernel_gmac_per_second} GMAC/s\n"
      "that the {kernel} kernel does on a matrix in the L2 cache, measured before the run\n",
      result);
}

}  // namespace nano
