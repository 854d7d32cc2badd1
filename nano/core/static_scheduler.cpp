// Static batching, as servers did it before Orca: a batch starts together and ends together. A member that is done
// keeps its slot until the longest answer is done, and its row is computed on, for nothing: that is the shape of the
// batch. Blocks for the longest answer that each member may give are reserved at the start.
//
// Example: three members with answers of 2, 3 and 9 tokens hold three slots for 9 steps: 27 rows are decoded for 14
// tokens, and whoever waits does so for all 9 steps. Continuous batching gives the first slot away after 2.
#include <algorithm>

#include "base/error.h"      // NANO_CHECK
#include "core/scheduler.h"  // Scheduler

namespace nano {

void Scheduler::schedule_static(StepPlan& plan) {
  if (running_.empty()) start_batch(plan);
  for (const Sequence* seq : running_) {
    if (seq->finished()) continue;
    const int32_t n = tokens_for(*seq, seq->num_computed_tokens, plan);
    if (n > 0) list(*seq, seq->num_computed_tokens, n, plan);
  }
  for (const Sequence* seq : running_) {
    if (!seq->finished() || budget_left(plan) == 0) continue;
    list(*seq, seq->num_tokens() - 1, 1, plan);
    plan.seqs.back().samples = false;
    plan.seqs.back().discard = true;
  }
}

void Scheduler::start_batch(StepPlan& plan) {
  while (!waiting_.empty() && running_.size() < size_t(config_.max_num_seqs)) {
    Sequence& seq = *waiting_.front();
    const Shared shared = find_shared(seq);
    if (!blocks_.can_grow(seq, max_tokens_held(seq), shared.blocks)) return;
    admit(shared, plan);
    NANO_CHECK(blocks_.grow(seq, max_tokens_held(seq)), "can_grow promised these blocks");
  }
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

}  // namespace nano
