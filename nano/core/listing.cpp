// What both scheduling policies share: the two queues, what a sequence finds in the cache when it is admitted, and
// how it gets into a plan. Two features live here, each in one place, so that the policies need not know of them:
// without a KV cache, and for log-probabilities of the prompt, nothing may be taken from others (may_share); and the
// rows whose logits are wanted are those that predict such a prompt token, or the next one (list).
//
// Example: blocks of 4. A prompt of 11 tokens is admitted, and the cache has its first two blocks:
//
//   admit   table [5 2], 8 tokens count as computed
//   grow    one free block for the rest: table [5 2 7]
//   list    first_pos 8, three tokens, num_new_blocks 3 (nobody has been told of 5 and 2 either),
//           samples: they reach the end of the sequence; first_logit_row 2, for only the last row predicts a new token
//
// In the step after that the sampled token is listed: first_pos 11, one token, no new block, first_logit_row 0.
#include <algorithm>
#include <string>

#include "base/error.h"      // Error, NANO_CHECK
#include "core/scheduler.h"  // Scheduler

namespace nano {

void check_limits(const SchedulerConfig& config) {
  const std::string budget = "max_num_batched_tokens (" + std::to_string(config.max_num_batched_tokens) + ")";
  const std::string longest = "max_model_len (" + std::to_string(config.max_model_len) + ")";
  if (config.max_num_seqs < 1 || config.max_model_len < 1)
    throw Error("max_num_seqs and max_model_len must be at least 1", "scheduler");
  if (!config.enable_chunked_prefill && config.max_num_batched_tokens < config.max_model_len)
    throw Error(budget + " is smaller than " + longest +
                    ", and without chunked prefill a longer prompt would wait for ever",
                "--max-num-batched-tokens",
                "raise it, lower --max-model-len, or use --enable-chunked-prefill");
  if (config.max_num_batched_tokens < config.max_num_seqs)
    throw Error(budget + " is smaller than max_num_seqs (" + std::to_string(config.max_num_seqs) +
                    "), and every running sequence needs one token a step",
                "--max-num-batched-tokens", "raise it, or lower --max-num-seqs");
  if (config.long_prefill_token_threshold < 0 || config.long_prefill_token_threshold > config.max_model_len)
    throw Error(std::to_string(config.long_prefill_token_threshold) + " is outside 0 to " + longest,
                "--long-prefill-token-threshold", "0 = no threshold");
}

Scheduler::Scheduler(const SchedulerConfig& config, BlockManager& blocks) : config_(config), blocks_(blocks) {
  check_limits(config);
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

bool Scheduler::before(const Sequence& a, const Sequence& b) const {
  if (config_.priority_policy && a.priority != b.priority) return a.priority < b.priority;
  return a.arrival < b.arrival;
}

void Scheduler::add(Sequence& seq) {
  NANO_CHECK(why_not(seq).empty(), "add: " + why_not(seq));
  NANO_CHECK(seq.block_table.empty() && seq.num_computed_tokens == 0, "add: a sequence that has started");
  NANO_CHECK(held_.emplace(seq.id, Held{&seq, 0}).second, "add: the id is taken");
  enqueue(seq);
}

void Scheduler::enqueue(Sequence& seq) {
  seq.status = SeqStatus::waiting;
  auto place = std::upper_bound(waiting_.begin(), waiting_.end(), &seq,
                                [this](const Sequence* a, const Sequence* b) { return before(*a, *b); });
  waiting_.insert(place, &seq);
}

int32_t Scheduler::budget_left(const StepPlan& plan) const {
  return config_.max_num_batched_tokens - plan.num_tokens;
}

// Without a KV cache there is nothing to take. Who wants log-probabilities of the prompt needs the logits of all of
// its rows, so all of them have to be computed.
bool Scheduler::may_share(const Sequence& seq) const {
  return config_.kv_cache && !seq.params.prompt_logprobs;
}

// The longer of what the prefix cache has, and what a sibling (n > 1) has computed of the prompt they share.
Scheduler::Shared Scheduler::find_shared(const Sequence& seq) const {
  Shared shared;
  if (!may_share(seq)) return shared;
  shared.blocks = blocks_.match_prefix(seq);
  auto sibling = held_.find(seq.fork_of);
  if (sibling == held_.end() || sibling->second.seq->status != SeqStatus::running) return shared;
  const Sequence& parent = *sibling->second.seq;
  if (parent.num_computed_tokens < seq.num_prompt_tokens) return shared;
  std::vector<BlockId> forked = blocks_.match_fork(parent, seq);
  if (forked.size() > shared.blocks.size()) shared = {std::move(forked), &parent};
  return shared;
}

void Scheduler::admit(const Shared& shared, StepPlan& plan) {
  Sequence& seq = *waiting_.front();
  waiting_.pop_front();
  if (shared.fork_parent)
    blocks_.fork(*shared.fork_parent, seq);
  else if (may_share(seq))
    blocks_.take_cached(seq, shared.blocks);
  if (seq.num_cached_tokens < 0) seq.num_cached_tokens = shared.fork_parent ? 0 : seq.num_computed_tokens;
  seq.status = SeqStatus::running;
  running_.push_back(&seq);
  plan.admitted.push_back({seq.id, seq.num_computed_tokens});
}

// Row p of the logits predicts token p + 1. So the last row of a sequence gives its next token, and the rows before
// it are wanted only where they predict tokens of a prompt whose log-probabilities were asked for: rows 0 to
// num_prompt_tokens − 2, less those done before a preemption.
void Scheduler::list(const Sequence& seq, int32_t first_pos, int32_t num_tokens, StepPlan& plan) {
  ScheduledSeq planned;
  planned.id = seq.id;
  planned.first_pos = first_pos;
  const int32_t end_pos = first_pos + num_tokens;
  planned.tokens.assign(seq.tokens.begin() + first_pos, seq.tokens.begin() + end_pos);
  planned.block_table = seq.block_table;
  size_t& listed_blocks = held_.at(seq.id).listed_blocks;
  planned.num_new_blocks = int32_t(seq.block_table.size() - listed_blocks);
  listed_blocks = seq.block_table.size();

  planned.samples = end_pos == seq.num_tokens();
  planned.first_logit_row = planned.samples ? num_tokens - 1 : num_tokens;
  const int32_t first_wanted = std::max(seq.num_prompt_logprobs, first_pos);
  if (seq.params.prompt_logprobs && first_wanted < std::min(end_pos, seq.num_prompt_tokens - 1))
    planned.first_logit_row = first_wanted - first_pos;
  plan.num_tokens += num_tokens;
  plan.seqs.push_back(std::move(planned));
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
