// After the step: the sampled tokens become a part of their sequences, and it is decided here, and only here, which
// sequences end. (Stop strings need text, so they come from above, through finish.)
//
// Example: a prompt of 5 tokens, max_tokens 3, the last chunk of which was just computed: num_computed becomes 5, the
// sampled token makes 6, and in the next step there is 1 to compute. After the third token it has 8, of which 7 are
// computed: it ends with "length", and the K and V of its last token are never needed.
#include <algorithm>

#include "base/error.h"      // NANO_CHECK
#include "core/scheduler.h"  // Scheduler

namespace nano {

Ending check_stop(const Sequence& seq, const SchedulerConfig& config) {
  NANO_CHECK(seq.num_output_tokens() > 0, "check_stop needs an output token");
  const SamplingParams& params = seq.params;
  const int32_t last = seq.tokens.back();
  auto has_last = [last](const std::vector<int32_t>& ids) {
    return std::count(ids.begin(), ids.end(), last) > 0;
  };
  if (seq.num_output_tokens() > params.min_tokens) {
    const bool first_eos = !config.eos_ids.empty() && last == config.eos_ids[0];
    if (!params.ignore_eos && first_eos) return {FinishReason::stop, -1};
    if ((!params.ignore_eos && has_last(config.eos_ids)) || has_last(params.stop_token_ids))
      return {FinishReason::stop, last};
  }
  const bool at_limit = params.max_tokens && seq.num_output_tokens() >= *params.max_tokens;
  if (at_limit || seq.num_tokens() >= config.max_model_len) return {FinishReason::length};
  return {};
}

void Scheduler::commit(const StepPlan& plan, StepResult& result) {
  NANO_CHECK(result.step == plan.step && result.seqs.size() == plan.seqs.size(), "commit of another step");
  for (size_t i = 0; i < plan.seqs.size(); ++i) {
    SeqResult& of = result.seqs[i];
    NANO_CHECK(of.id == plan.seqs[i].id, "the result is not in the plan's order");
    auto held = held_.find(of.id);
    if (held == held_.end() || held->second.seq->finished()) continue;
    apply(*held->second.seq, plan.seqs[i], of);
    if (of.finish_reason != FinishReason::none) finish(of.id, of.finish_reason);
  }
}

void Scheduler::apply(Sequence& seq, const ScheduledSeq& planned, SeqResult& result) {
  NANO_CHECK(seq.num_computed_tokens == planned.first_pos, "the plan is not this sequence's last one");
  for (const auto* rows : {&result.prompt_logprobs, &result.sampled})
    for (const SampledToken& row : *rows)
      if (row.id < 0 && result.error.empty()) result.error = row.error;
  if (!result.error.empty()) {  // its K and V may hold NaN, so nobody shall find them
    result.finish_reason = FinishReason::error;
    result.sampled.clear();
    result.prompt_logprobs.clear();
    return;
  }
  seq.num_computed_tokens += result.num_computed;
  if (seq.params.prompt_logprobs)  // row p was about token p + 1
    seq.num_prompt_logprobs =
        std::max(seq.num_prompt_logprobs, std::min(seq.num_computed_tokens, seq.num_prompt_tokens - 1));
  for (size_t i = 0; i < result.sampled.size() && result.finish_reason == FinishReason::none; ++i) {
    seq.tokens.push_back(result.sampled[i].id);
    const Ending ending = check_stop(seq, config_);
    result.finish_reason = ending.reason;
    result.stop_token = ending.stop_token;
    if (ending.reason != FinishReason::none) result.sampled.resize(i + 1);
  }
  if (config_.kv_cache)
    blocks_.cache_computed(seq);
  else if (planned.samples)
    seq.num_computed_tokens = 0;  // as if nothing had been kept: the next token has it all computed again
}

void Scheduler::finish(SeqId id, FinishReason reason) {
  auto held = held_.find(id);
  if (held == held_.end() || held->second.seq->finished()) return;
  Sequence& seq = *held->second.seq;
  const bool was_running = seq.status == SeqStatus::running;
  seq.status = SeqStatus::finished;
  seq.finish_reason = reason;
  if (was_running && !config_.continuous) return end_batch_if_over();
  if (was_running)
    running_.erase(std::find(running_.begin(), running_.end(), &seq));
  else
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &seq));
  blocks_.release(seq);
  held_.erase(held);
}

}  // namespace nano
