// The scheduler: which sequences compute which tokens in the next step.
// Flag: --scheduling continuous|static. Static = a batch starts together and ends together; finished rows keep
// their slot (and their blocks) and still compute, as servers did before Orca.
// Sources: Yu et al. 2022, "Orca"; vLLM V1's step: running first in order of admission, then waiting while
// budget, slots and blocks last, no overtaking; when blocks run out the last running one is preempted, its blocks
// are freed and it is recomputed later, from the front of the waiting queue.
//
// With --scheduling-policy priority the waiting queue is ordered by (priority, arrival), and the worst running one
// by the same order is preempted. Admission asks that the whole sequence fits into the blocks free at that moment
// (as vLLM's reserve-full-isl), though only the first chunk is allocated.
//
// Invariants:
//  1. A sequence is in waiting, in running, or finished; its blocks are held only while running.
//  2. Σ tokens of a plan ≤ max_num_batched_tokens; running ≤ max_num_seqs.
//  3. The oldest (priority: the best) running sequence is never preempted for another, so it always advances: what
//     it can grow to fits the pool alone, because why_not refuses a sequence whose prompt + max_tokens does not.
//  4. Static: the blocks for prompt + max_tokens of every member are reserved when the batch starts, so nothing
//     is preempted; a finished member keeps slot and blocks and its last token is computed again in each step
//     (discard), from the budget that the live ones leave. Blocks come back when the last member ends.
// It computes nothing, samples nothing and owns no sequence: the engine does.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
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
  bool kv_cache = true;  // --no-kv-cache: num_computed goes back to 0 with each new token (the blocks stay)
};

// Why `seq` ends now that its last token has been appended; none = it goes on. An EOS id (unless ignore_eos) or an
// entry of stop_token_ids ends it if min_tokens were there before that token, which is when the sampler stops
// masking them; stop_token = that entry, else -1. max_model_len and max_tokens end it in any case.
// REQUIRES: at least one output token.
FinishReason check_stop(const Sequence& seq, std::span<const int32_t> eos_ids, int32_t max_model_len,
                        int32_t& stop_token);

class Scheduler {
 public:
  // Error: limits that would stall requests silently (a budget below max_num_seqs; without chunked prefill, below
  // max_model_len).
  Scheduler(const SchedulerConfig& config, BlockManager& blocks);

  // Why this sequence can never run ("" = it can): an empty prompt, a prompt of max_model_len or more, or more
  // blocks than the pool has for min(max_model_len, prompt + max_tokens).
  std::string why_not(const Sequence& seq) const;
  // REQUIRES: why_not(seq) is empty, the id is new; fcfs: adds come in order of arrival.
  void add(Sequence& seq);
  StepPlan schedule();  // admits, preempts, allocates; an empty plan means nothing to do
  // Applies what a step computed: advances num_computed, appends sampled tokens, registers full blocks, finishes
  // the sequences that `result` marks (finish_reason). Skips discard rows and what was finished from outside since
  // schedule. REQUIRES: result.step == plan.step, result.seqs in the plan's order.
  void commit(const StepPlan& plan, const StepResult& result);
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
  struct Admission {  // what a waiting sequence would start with
    std::vector<BlockId> shared;
    const Sequence* fork_parent = nullptr;  // whose blocks they are; nullptr = the prefix cache's
  };

  void schedule_running(StepPlan& plan, int32_t& budget);
  void schedule_waiting(StepPlan& plan, int32_t& budget);
  void schedule_discarded(StepPlan& plan, int32_t& budget);
  void start_batch(StepPlan& plan);

  int32_t plan_seq(const Sequence& seq, int32_t first_pos, int32_t budget) const;
  Admission find_shared(const Sequence& seq) const;
  void admit(const Admission& admission, StepPlan& plan);  // the front of the waiting queue
  bool grow_or_preempt(Sequence& seq, int32_t num_tokens, StepPlan& plan, int32_t& budget);
  void preempt(Sequence& victim, StepPlan& plan, int32_t& budget);
  void list(Sequence& seq, int32_t num_tokens, StepPlan& plan, int32_t& budget);
  void apply(Sequence& seq, const ScheduledSeq& planned, const SeqResult& result);
  void end_batch_if_over();
  bool before(const Sequence& a, const Sequence& b) const;  // priority order
  int32_t max_tokens_held(const Sequence& seq) const;       // the most its table must ever cover

  SchedulerConfig config_;
  BlockManager& blocks_;
  std::unordered_map<SeqId, Held> held_;
  std::deque<Sequence*> waiting_;
  std::vector<Sequence*> running_;  // in order of admission
  int64_t next_step_ = 0, num_preemptions_ = 0;
};

}  // namespace nano
