#include "bench/measure.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"  // Error

namespace nano {

void check_lengths(const Resolved& resolved, int64_t input, int64_t output) {
  const int64_t most = resolved.scheduler.max_model_len;
  if (input + output <= most) return;
  throw Error(fmt::format("prompts of {} and answers of {} tokens are more than --max-model-len, {}", input,
                          output, most),
              "build/nano bench", "shorten --input-len or --output-len");
}

SamplingParams exactly(int64_t tokens, int64_t n) {
  SamplingParams params;
  params.ignore_eos = true;
  params.max_tokens = int32_t(tokens);
  params.n = int32_t(n);
  return params;
}

std::vector<RequestOutput> generate_all(LLM& llm, const std::vector<Prompt>& prompts,
                                        const std::vector<SamplingParams>& params, const Watch& watch,
                                        const LLM::OnUpdate& on_update) {
  const auto between_steps = [&] { return watch.between_steps ? (watch.between_steps(), false) : false; };
  std::vector<RequestOutput> results = llm.generate(prompts, params, on_update, between_steps);
  for (const RequestOutput& result : results)
    if (!result.error.empty()) throw Error(result.error, "bench");
  return results;
}

void add_ids(const std::vector<RequestOutput>& results, IdsDigest& digest) {
  for (const RequestOutput& result : results)
    for (const CompletionOutput& answer : result.outputs) digest.add(answer.token_ids);
}

Totals add_up(const std::vector<RequestOutput>& results) {
  Totals t;
  for (const RequestOutput& result : results) {
    const RequestMetrics& m = result.metrics;
    if (m.finished == 0) continue;  // it never ran
    t.prompt += int64_t(result.prompt_token_ids.size());
    t.cached += result.num_cached_tokens;
    for (const CompletionOutput& answer : result.outputs) t.generated += int64_t(answer.token_ids.size());
    t.begin = std::min(t.begin, m.arrival);
    if (m.first_token > 0) t.first_token = std::min(t.first_token, m.first_token);
    t.end = std::max(t.end, m.finished);
  }
  return t;
}

}  // namespace nano
