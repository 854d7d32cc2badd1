#include "core/scheduler.h"

#include <algorithm>

#include "base/error.h"  // Error, NANO_CHECK

namespace nano {

FinishReason check_stop(const Sequence& seq, std::span<const int32_t> eos_ids, int32_t max_model_len,
                        int32_t& stop_token) {
  NANO_CHECK(seq.num_output_tokens() > 0, "check_stop needs an output token");
  const SamplingParams& params = seq.params;
  const int32_t last = seq.tokens.back();
  auto is_last = [last](int32_t id) { return id == last; };
  stop_token = -1;
  if (seq.num_output_tokens() > params.min_tokens) {
    if (!params.ignore_eos && std::any_of(eos_ids.begin(), eos_ids.end(), is_last)) return FinishReason::stop;
    if (std::any_of(params.stop_token_ids.begin(), params.stop_token_ids.end(), is_last)) {
      stop_token = last;
      return FinishReason::stop;
    }
  }
  if (seq.num_tokens() >= max_model_len) return FinishReason::length;
  if (params.max_tokens && seq.num_output_tokens() >= *params.max_tokens) return FinishReason::length;
  return FinishReason::none;
}

Scheduler::Scheduler(const SchedulerConfig& config, BlockManager& blocks) : config_(config), blocks_(blocks) {
  const std::string budget = std::to_string(config.max_num_batched_tokens);
  if (config.max_num_seqs < 1 || config.max_model_len < 1)
    throw Error("max_num_seqs and max_model_len must be at least 1", "scheduler");
  if (config.max_num_batched_tokens < config.max_num_seqs)
    throw Error("max_num_batched_tokens (" + budget + ") is smaller than max_num_seqs (" +
                    std::to_string(config.max_num_seqs) + ")",
                "scheduler", "raise --max-num-batched-tokens or lower --max-num-seqs");
  if (!config.enable_chunked_prefill && config.max_num_batched_tokens < config.max_model_len)
    throw Error("without chunked prefill max_num_batched_tokens (" + budget +
                    ") must not be smaller than max_model_len (" + std::to_string(config.max_model_len) + ")",
                "scheduler",
                "raise --max-num-batched-tokens, lower --max-model-len or allow chunked prefill");
  if (config.long_prefill_token_threshold < 0 || config.long_prefill_token_threshold > config.max_model_len)
    throw Error("long_prefill_token_threshold (" + std::to_string(config.long_prefill_token_threshold) +
                    ") is outside 0 to max_model_len (" + std::to_string(config.max_model_len) + ")",
                "scheduler", "0 = no threshold");
}

std::string Scheduler::why_not(const Sequence& seq) const {
  const std::string prompt = std::to_string(seq.num_tokens());
  if (seq.tokens.empty()) return "the prompt is empty";
  if (seq.num_tokens() >= config_.max_model_len)
    return "the prompt has " + prompt + " tokens, but the context is at most " +
           std::to_string(config_.max_model_len) + " tokens, with at least one for the answer";
  int32_t needed = blocks_.blocks_for(max_tokens_held(seq));
  if (needed > blocks_.num_blocks())
    return "a prompt of " + prompt + " tokens with its max_tokens needs " + std::to_string(needed) +
           " KV cache blocks, but there are " + std::to_string(blocks_.num_blocks()) + " (of " +
           std::to_string(blocks_.block_size()) + " tokens)";
  return "";
}

// A sequence ends with its last token sampled, not computed: one less than it will have. A finished member of a
// static batch computes that one too.
int32_t Scheduler::max_tokens_held(const Sequence& seq) const {
  int64_t total = config_.max_model_len;
  if (seq.params.max_tokens) total = std::min(total, int64_t(seq.num_prompt_tokens) + *seq.params.max_tokens);
  return int32_t(config_.continuous ? total - 1 : total);
}

void Scheduler::add(Sequence& seq) {
  NANO_CHECK(why_not(seq).empty(), "add: " + why_not(seq));
  NANO_CHECK(seq.block_table.empty() && seq.num_computed_tokens == 0, "add: a sequence that has started");
  NANO_CHECK(held_.emplace(seq.id, Held{&seq, 0}).second, "add: the id is taken");
  seq.status = SeqStatus::waiting;
  auto place = waiting_.end();
  if (config_.priority_policy)
    place = std::upper_bound(waiting_.begin(), waiting_.end(), &seq,
                             [this](const Sequence* a, const Sequence* b) { return before(*a, *b); });
  waiting_.insert(place, &seq);
}

bool Scheduler::before(const Sequence& a, const Sequence& b) const {
  return a.priority != b.priority ? a.priority < b.priority : a.arrival < b.arrival;
}

StepPlan Scheduler::schedule() {
  StepPlan plan;
  plan.step = next_step_++;
  int32_t budget = config_.max_num_batched_tokens;
  if (!config_.continuous && running_.empty()) start_batch(plan);
  schedule_running(plan, budget);
  if (!config_.continuous)
    schedule_discarded(plan, budget);
  else if (plan.preempted.empty())
    schedule_waiting(plan, budget);
  plan.num_tokens = config_.max_num_batched_tokens - budget;
  plan.num_running = int32_t(running_.size());
  plan.num_waiting = int32_t(waiting_.size());
  plan.num_free_blocks = blocks_.num_free();
  return plan;
}

void Scheduler::schedule_running(StepPlan& plan, int32_t& budget) {
  const std::vector<Sequence*> in_order = running_;  // preemption takes members out, before and behind
  for (Sequence* seq : in_order) {
    if (budget == 0) return;
    if (seq->status != SeqStatus::running) continue;  // finished (static), or a victim of this step
    const int32_t n = plan_seq(*seq, seq->num_computed_tokens, budget);
    if (n > 0 && grow_or_preempt(*seq, seq->num_computed_tokens + n, plan, budget))
      list(*seq, n, plan, budget);
  }
}

void Scheduler::schedule_waiting(StepPlan& plan, int32_t& budget) {
  while (!waiting_.empty() && budget > 0 && running_.size() < size_t(config_.max_num_seqs)) {
    Sequence& seq = *waiting_.front();
    Admission admission = find_shared(seq);
    int32_t n = plan_seq(seq, int32_t(admission.shared.size()) * blocks_.block_size(), budget);
    if (n == 0 || !blocks_.can_grow(seq, seq.num_tokens(), admission.shared)) return;  // no overtaking
    admit(admission, plan);
    NANO_CHECK(blocks_.grow(seq, seq.num_computed_tokens + n), "can_grow promised these blocks");
    list(seq, n, plan, budget);
  }
}

// The finished members of a static batch: what an old server computes for nothing.
void Scheduler::schedule_discarded(StepPlan& plan, int32_t& budget) {
  for (Sequence* seq : running_) {
    if (!seq->finished() || budget == 0) continue;
    list(*seq, 1, plan, budget);
  }
}

void Scheduler::start_batch(StepPlan& plan) {
  while (!waiting_.empty() && running_.size() < size_t(config_.max_num_seqs)) {
    Sequence& seq = *waiting_.front();
    Admission admission = find_shared(seq);
    if (!blocks_.can_grow(seq, max_tokens_held(seq), admission.shared)) return;
    admit(admission, plan);
    NANO_CHECK(blocks_.grow(seq, max_tokens_held(seq)), "can_grow promised these blocks");
  }
}

// Tokens for `seq` from first_pos on. Without a KV cache it is the whole sequence each time.
int32_t Scheduler::plan_seq(const Sequence& seq, int32_t first_pos, int32_t budget) const {
  NANO_CHECK(seq.num_tokens() <= config_.max_model_len, "check_stop ends a sequence at max_model_len");
  ChunkLimits limits{budget, config_.enable_chunked_prefill, config_.long_prefill_token_threshold};
  return plan_chunk(seq.num_tokens() - first_pos, limits);
}

// The longer of a prefix-cache hit and what a sibling has computed. Who wants log-probabilities of the prompt must
// compute the prompt.
Scheduler::Admission Scheduler::find_shared(const Sequence& seq) const {
  Admission admission;
  if (seq.params.prompt_logprobs || !config_.kv_cache) return admission;
  admission.shared = blocks_.match_prefix(seq);
  auto sibling = held_.find(seq.fork_of);
  if (sibling == held_.end() || sibling->second.seq->status != SeqStatus::running) return admission;
  const Sequence& parent = *sibling->second.seq;
  if (parent.num_computed_tokens < seq.num_prompt_tokens) return admission;
  std::vector<BlockId> forked = blocks_.match_fork(parent, seq);
  if (forked.size() > admission.shared.size()) admission = {std::move(forked), &parent};
  return admission;
}

void Scheduler::admit(const Admission& admission, StepPlan& plan) {
  Sequence& seq = *waiting_.front();
  waiting_.pop_front();
  if (admission.fork_parent)
    blocks_.fork(*admission.fork_parent, seq);
  else if (config_.kv_cache && !seq.params.prompt_logprobs)
    blocks_.take_cached(seq, admission.shared);
  if (seq.num_cached_tokens < 0) seq.num_cached_tokens = admission.fork_parent ? 0 : seq.num_computed_tokens;
  seq.status = SeqStatus::running;
  running_.push_back(&seq);
  plan.admitted.push_back(seq.id);
}

// False: seq itself was the one to preempt.
bool Scheduler::grow_or_preempt(Sequence& seq, int32_t num_tokens, StepPlan& plan, int32_t& budget) {
  while (!blocks_.grow(seq, num_tokens)) {
    NANO_CHECK(running_.size() > 1, "a sequence that why_not let pass does not fit the pool alone");
    Sequence* victim = running_.back();
    if (config_.priority_policy)
      victim = *std::max_element(running_.begin(), running_.end(),
                                 [this](const Sequence* a, const Sequence* b) { return before(*a, *b); });
    preempt(*victim, plan, budget);
    if (victim == &seq) return false;
  }
  return true;
}

void Scheduler::preempt(Sequence& victim, StepPlan& plan, int32_t& budget) {
  auto planned = std::find_if(plan.seqs.begin(), plan.seqs.end(),
                              [&](const ScheduledSeq& s) { return s.id == victim.id; });
  if (planned != plan.seqs.end()) {  // priority: it had its turn in this step already
    budget += planned->num_tokens();
    plan.seqs.erase(planned);
  }
  running_.erase(std::find(running_.begin(), running_.end(), &victim));
  blocks_.release(victim);
  held_.at(victim.id).listed_blocks = 0;
  victim.num_computed_tokens = 0;
  victim.status = SeqStatus::waiting;
  auto place = waiting_.begin();
  if (config_.priority_policy)
    place = std::lower_bound(waiting_.begin(), waiting_.end(), &victim,
                             [this](const Sequence* a, const Sequence* b) { return before(*a, *b); });
  waiting_.insert(place, &victim);
  plan.preempted.push_back(victim.id);
  ++num_preemptions_;
}

// Writes seq into the plan: num_tokens of them from the first that is not computed; a finished one: its last.
void Scheduler::list(Sequence& seq, int32_t num_tokens, StepPlan& plan, int32_t& budget) {
  ScheduledSeq planned;
  planned.id = seq.id;
  planned.discard = seq.finished();
  planned.first_pos = planned.discard ? seq.num_tokens() - 1 : seq.num_computed_tokens;
  auto first = seq.tokens.begin() + planned.first_pos;
  planned.tokens.assign(first, first + num_tokens);
  planned.block_table = seq.block_table;
  size_t& listed_blocks = held_.at(seq.id).listed_blocks;
  planned.num_new_blocks = int32_t(seq.block_table.size() - listed_blocks);
  listed_blocks = seq.block_table.size();

  const bool reaches_end = planned.first_pos + num_tokens == seq.num_tokens();
  planned.samples = reaches_end && !planned.discard;
  planned.first_logit_row = reaches_end ? num_tokens - 1 : num_tokens;
  // Row p predicts token p + 1, so the prompt's log-probabilities are in rows 0 .. num_prompt_tokens - 2.
  const int32_t wanted = std::max(seq.num_prompt_logprobs, planned.first_pos);
  const int32_t end = std::min(planned.first_pos + num_tokens, seq.num_prompt_tokens - 1);
  if (seq.params.prompt_logprobs && !planned.discard && wanted < end)
    planned.first_logit_row = wanted - planned.first_pos;
  budget -= num_tokens;
  plan.seqs.push_back(std::move(planned));
}

void Scheduler::commit(const StepPlan& plan, const StepResult& result) {
  NANO_CHECK(result.step == plan.step && result.seqs.size() == plan.seqs.size(), "commit of another step");
  for (size_t i = 0; i < plan.seqs.size(); ++i) {
    NANO_CHECK(result.seqs[i].id == plan.seqs[i].id, "the result is not in the plan's order");
    auto held = held_.find(plan.seqs[i].id);
    if (held == held_.end() || held->second.seq->finished()) continue;  // finished from outside, or discard
    apply(*held->second.seq, plan.seqs[i], result.seqs[i]);
    if (result.seqs[i].finish_reason != FinishReason::none)
      finish(plan.seqs[i].id, result.seqs[i].finish_reason);
  }
}

void Scheduler::apply(Sequence& seq, const ScheduledSeq& planned, const SeqResult& result) {
  NANO_CHECK(seq.num_computed_tokens == planned.first_pos, "the plan is not this sequence's last one");
  seq.num_computed_tokens += result.num_computed;
  if (seq.params.prompt_logprobs)
    seq.num_prompt_logprobs =
        std::max(seq.num_prompt_logprobs, std::min(seq.num_computed_tokens, seq.num_prompt_tokens - 1));
  for (const SampledToken& token : result.sampled)
    if (token.id >= 0) seq.tokens.push_back(token.id);
  if (config_.kv_cache)
    blocks_.cache_computed(seq);
  else if (planned.samples)
    seq.num_computed_tokens = 0;
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

void Scheduler::end_batch_if_over() {
  auto is_finished = [](const Sequence* seq) { return seq->finished(); };
  if (!std::all_of(running_.begin(), running_.end(), is_finished)) return;
  for (Sequence* seq : running_) {
    blocks_.release(*seq);
    held_.erase(seq->id);
  }
  running_.clear();
}

bool Scheduler::has_work() const { return !waiting_.empty() || !running_.empty(); }
bool Scheduler::holds(SeqId id) const { return held_.count(id) != 0; }
size_t Scheduler::num_waiting() const { return waiting_.size(); }
size_t Scheduler::num_running() const { return running_.size(); }
int64_t Scheduler::num_preemptions() const { return num_preemptions_; }

void Scheduler::check_integrity() const {
  NANO_CHECK(held_.size() == waiting_.size() + running_.size(), "a sequence is in two queues or in none");
  NANO_CHECK(running_.size() <= size_t(config_.max_num_seqs), "more running than max_num_seqs");
  for (const Sequence* seq : waiting_) {
    NANO_CHECK(holds(seq->id) && seq->status == SeqStatus::waiting, "a waiting sequence's status");
    NANO_CHECK(seq->block_table.empty() && seq->num_computed_tokens == 0, "a waiting sequence holds blocks");
  }
  for (const Sequence* seq : running_) {
    bool in_slot = seq->status == SeqStatus::running || (seq->finished() && !config_.continuous);
    NANO_CHECK(holds(seq->id) && in_slot, "a running sequence's status");
    NANO_CHECK(!seq->block_table.empty(), "a running sequence without blocks");
    NANO_CHECK(seq->num_computed_tokens <= seq->num_tokens(), "more tokens computed than there are");
  }
  blocks_.check_integrity(running_);
}

}  // namespace nano
