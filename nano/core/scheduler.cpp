// Continuous batching: in every step the batch is put together anew, so a sequence joins as soon as there is room and
// leaves as soon as it ends. There are no phases: each sequence has tokens that are not computed yet, one if it
// decodes and many if it is new, and gets some of them.
//
// Example: a budget of 8 tokens, blocks of 4. A decodes, B is in the middle of a prompt, C waits.
//
//              tokens  computed  to do   gets  why
//   running A      10         9      1      1
//           B      30        12     18      7  the budget leaves 8 − 1
//   waiting C       5         0      5      -  nothing is left; in a later step
//
// A now holds 10 tokens in 3 blocks, B 19 in 5. Had B's growth found no free block, the last running one (B itself)
// would have lost its blocks and gone back to the front of the queue, before C.
#include "core/scheduler.h"

#include <algorithm>

#include "base/error.h"  // NANO_CHECK

namespace nano {

StepPlan Scheduler::schedule() {
  StepPlan plan;
  plan.step = next_step_++;
  if (config_.continuous)
    schedule_continuous(plan);
  else
    schedule_static(plan);
  plan.num_running = int32_t(running_.size());
  plan.num_waiting = int32_t(waiting_.size());
  plan.num_free_blocks = blocks_.num_free();
  return plan;
}

// Who runs goes before who waits: a decoding sequence then gets a token in every step, whatever prompts come in. And
// nobody is admitted in a step that had to preempt: there are no blocks to spare.
void Scheduler::schedule_continuous(StepPlan& plan) {
  schedule_running(plan);
  if (plan.preempted.empty()) schedule_waiting(plan);
}

void Scheduler::schedule_running(StepPlan& plan) {
  const std::vector<Sequence*> in_order = running_;  // a copy, because preemption takes members out of it
  for (Sequence* seq : in_order) {
    if (seq->status != SeqStatus::running) continue;  // preempted for one before it
    const int32_t n = tokens_for(*seq, seq->num_computed_tokens, plan);
    if (n > 0 && grow_or_preempt(*seq, seq->num_computed_tokens + n, plan))
      list(*seq, seq->num_computed_tokens, n, plan);
  }
}

// No overtaking: where the first in the queue does not fit, those behind it wait too. Small requests could otherwise
// keep a large one out for ever.
void Scheduler::schedule_waiting(StepPlan& plan) {
  while (!waiting_.empty() && running_.size() < size_t(config_.max_num_seqs)) {
    Sequence& seq = *waiting_.front();
    const Shared shared = find_shared(seq);
    const int32_t n = tokens_for(seq, int32_t(shared.blocks.size()) * blocks_.block_size(), plan);
    if (n == 0 || !blocks_.can_grow(seq, seq.num_tokens(), shared.blocks)) return;
    admit(shared, plan);
    NANO_CHECK(blocks_.grow(seq, seq.num_computed_tokens + n), "can_grow promised these blocks");
    list(seq, seq.num_computed_tokens, n, plan);
  }
}

int32_t Scheduler::tokens_for(const Sequence& seq, int32_t num_computed, const StepPlan& plan) const {
  const ChunkLimits limits{budget_left(plan), config_.enable_chunked_prefill,
                           config_.long_prefill_token_threshold};
  return plan_chunk(seq.num_tokens() - num_computed, limits);
}

// False: seq itself was the one to go.
bool Scheduler::grow_or_preempt(Sequence& seq, int32_t num_tokens, StepPlan& plan) {
  while (!blocks_.grow(seq, num_tokens)) {
    NANO_CHECK(running_.size() > 1, "a sequence that why_not let pass does not fit the pool alone");
    Sequence* last =
        *std::max_element(running_.begin(), running_.end(),
                          [this](const Sequence* a, const Sequence* b) { return before(*a, *b); });
    preempt(*last, plan);
    if (last == &seq) return false;
  }
  return true;
}

// All of its blocks go, and all of its tokens will be computed again, those of the answer too. Computing is cheaper
// than it sounds: they go through as one prompt, and what the prefix cache still has need not be computed.
void Scheduler::preempt(Sequence& victim, StepPlan& plan) {
  auto planned = std::find_if(plan.seqs.begin(), plan.seqs.end(),
                              [&](const ScheduledSeq& s) { return s.id == victim.id; });
  if (planned != plan.seqs.end()) {  // by priority the last need not be the last to have its turn
    plan.num_tokens -= planned->num_tokens();
    plan.seqs.erase(planned);
  }
  running_.erase(std::find(running_.begin(), running_.end(), &victim));
  blocks_.release(victim);
  held_.at(victim.id).listed_blocks = 0;
  victim.num_computed_tokens = 0;
  enqueue(victim);
  plan.preempted.push_back(victim.id);
  ++num_preemptions_;
}

}  // namespace nano
