// The scheduler: which sequences compute which tokens in the next step, and what becomes of them after it.
// Flag: --scheduling continuous|static. Static = a batch starts together and ends together; finished members keep
// their slot (and their blocks) and still compute, as servers did before Orca.
// Sources: Yu et al. 2022, "Orca" (a batch is chosen anew in each iteration, §4.1); vLLM V1's scheduler
// (vllm/v1/core/sched/scheduler.py: schedule, update_from_output; utils.py: check_stop).
//
//   scheduler.cpp         the policy: running first, then waiting while budget, slots and blocks last; when blocks
//                         run out the last one is preempted, and recomputed later from the front of the queue
//   static_scheduler.cpp  the policy of old servers
//   listing.cpp           what both share: the queues, and how a sequence gets into a plan
//   commit.cpp            after the step: tokens are appended, sequences end
//
// Order: by arrival; with --scheduling-policy priority by (priority, arrival). Who is first in that order is admitted
// first, and who is last is preempted first. Admission asks that the whole sequence fits into the blocks free at that
// moment (as vLLM's reserve-full-isl), though only the first chunk is allocated.
//
// Invariants:
//  1. A sequence is in waiting, in running, or finished; its blocks are held only while running.
//  2. Σ tokens of a plan ≤ max_num_batched_tokens; running ≤ max_num_seqs.
//  3. The first running sequence in the order is never preempted for another, so it always advances: what it can
//     grow to fits the pool alone, because why_not refuses a sequence whose prompt + max_tokens does not.
//  4. Static: the blocks for prompt + max_tokens of every member are reserved when the batch starts, so nothing
//     is preempted; a finished member keeps slot and blocks and its last token is computed again in each step
//     (discard), from the budget that the live ones leave. Blocks come back when the last member ends.
// It computes nothing, samples nothing and owns no sequence: the engine does.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/block_manager.h"  // BlockManager
#include "core/chunk_planner.h"  // ChunkLimits
#include "core/sequence.h"       // Sequence
#include "core/step.h"           // StepPlan, StepResult

namespace nano {

struct SchedulerConfig {
  int32_t max_num_batched_tokens = 2048;
  int32_t max_num_seqs = 128;
  int32_t max_model_len = 2048;
  bool enable_chunked_prefill = true;
  int32_t long_prefill_token_threshold = 0;
  bool continuous = true;        // false = static batches
  bool priority_policy = false;  // false = fcfs
  bool kv_cache = true;          // --no-kv-cache: every new token has the whole sequence computed again
  std::vector<int32_t> eos_ids;  // each ends an answer; the first one is the tokenizer's EOS
};

// Error, naming the flag, for limits that would stall requests silently: a budget below max_num_seqs; without chunked
// prefill, below max_model_len.
void check_limits(const SchedulerConfig& config);

// Why `seq` ends now that its last token has been appended; none = it goes on. An EOS id (unless ignore_eos) or an
// entry of stop_token_ids ends it if min_tokens were there before that token, which is when the sampler stops
// masking them. max_model_len and max_tokens end it in any case. stop_token: as SeqResult's.
// REQUIRES: at least one output token.
struct Ending {
  FinishReason reason = FinishReason::none;
  int32_t stop_token = -1;
};
Ending check_stop(const Sequence& seq, const SchedulerConfig& config);

class Scheduler {
 public:
  Scheduler(const SchedulerConfig& config, BlockManager& blocks);  // Error: as check_limits

  // Why this sequence can never run ("" = it can): an empty prompt, a prompt of max_model_len or more, or more
  // blocks than the pool has for min(max_model_len, prompt + max_tokens).
  std::string why_not(const Sequence& seq) const;
  // REQUIRES: why_not(seq) is empty, the id is new; adds come in order of arrival.
  void add(Sequence& seq);
  StepPlan schedule();  // admits, preempts, allocates; an empty plan means nothing to do
  // Applies what a step computed, and decides who ends: num_computed advances, sampled tokens are appended one by one
  // until one ends the sequence, full blocks become findable. A row without a token (id -1) ends its sequence with
  // its error. Completes `result` (see SeqResult). Who was finished from outside since schedule is passed over.
  // REQUIRES: result.step == plan.step, result.seqs in the plan's order.
  void commit(const StepPlan& plan, StepResult& result);
  // From outside: abort, stop string. An unknown or finished id: no-op.
  void finish(SeqId id, FinishReason reason);

  bool has_work() const;  // a sequence is waiting or running (static: a batch is not over yet)
  // Does the scheduler still point to this sequence? Only when not may its owner destroy it: a static batch keeps
  // its finished members to the end.
  bool holds(SeqId id) const;
  size_t num_waiting() const, num_running() const;  // static: finished members count, they have a slot
  int64_t num_preemptions() const;
  void check_integrity() const;

 private:
  struct Held {
    Sequence* seq = nullptr;
    size_t listed_blocks = 0;  // blocks of its table that plans have already told of
  };
  struct Shared {  // what a waiting sequence would start with
    std::vector<BlockId> blocks;
    const Sequence* fork_parent = nullptr;  // whose blocks they are; nullptr = the prefix cache's
  };

  // The policies.
  void schedule_continuous(StepPlan& plan);
  void schedule_running(StepPlan& plan);
  void schedule_waiting(StepPlan& plan);
  int32_t tokens_for(const Sequence& seq, int32_t num_computed, const StepPlan& plan) const;
  bool grow_or_preempt(Sequence& seq, int32_t num_tokens, StepPlan& plan);
  void preempt(Sequence& victim, StepPlan& plan);
  void schedule_static(StepPlan& plan);
  void start_batch(StepPlan& plan);
  void end_batch_if_over();

  // The listing.
  bool before(const Sequence& a, const Sequence& b) const;  // in the order
  void enqueue(Sequence& seq);
  int32_t budget_left(const StepPlan& plan) const;
  int32_t max_tokens_held(const Sequence& seq) const;  // the most its table must ever cover
  bool may_share(const Sequence& seq) const;
  Shared find_shared(const Sequence& seq) const;
  void admit(const Shared& shared, StepPlan& plan);  // the front of the waiting queue
  void list(const Sequence& seq, int32_t first_pos, int32_t num_tokens, StepPlan& plan);

  void apply(Sequence& seq, const ScheduledSeq& planned, SeqResult& result);

  SchedulerConfig config_;
  BlockManager& blocks_;
  std::unordered_map<SeqId, Held> held_;
  std::deque<Sequence*> waiting_;   // in the order
  std::vector<Sequence*> running_;  // in order of admission
  int64_t next_step_ = 0, num_preemptions_ = 0;
};

}  // namespace nano
