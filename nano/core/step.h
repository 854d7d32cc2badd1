// A step is a value: StepPlan in, StepResult out. Both are printable and are what the trace records.
//
// Invariants of a plan (checked by check_plan in debug builds):
//  1. The tokens of all sequences together are at most the budget.
//  2. Every listed sequence has at least one token.
//  3. Every slot written (positions first_pos .. first_pos + tokens - 1) lies in a block of the sequence's table.
//  4. A block with two owners is full and is never written.
// No logic beyond that check: the scheduler writes plans, the engine results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/sequence.h"  // SeqId, BlockId, FinishReason

namespace nano {

struct ScheduledSeq {
  SeqId id = 0;
  int32_t first_pos = 0;             // position of tokens[0]
  std::vector<int32_t> tokens;       // a chunk of the prompt, or the last token (+ drafts, later)
  std::vector<BlockId> block_table;  // covers first_pos + tokens.size()
  int32_t num_new_blocks = 0;        // the last entries of block_table, added since the sequence's last step
  int32_t first_logit_row = 0;       // rows [first_logit_row, tokens.size()) need logits; = size: none do
  bool samples = false;              // the last row yields a token (the chunk reaches the end)
  bool discard = false;              // static batching: a finished member that still computes, for nothing

  int32_t num_tokens() const { return int32_t(tokens.size()); }
  int32_t num_logit_rows() const { return num_tokens() - first_logit_row; }
};

struct Admitted {
  SeqId id = 0;
  int32_t num_cached = 0;  // tokens whose K and V it found in blocks of others
  bool operator==(const Admitted&) const = default;
};

struct StepPlan {
  int64_t step = 0;
  std::vector<ScheduledSeq> seqs;
  std::vector<SeqId> preempted;    // lost their blocks in this step, will be recomputed
  std::vector<Admitted> admitted;  // came from the waiting queue in this step
  int32_t num_tokens = 0;
  int32_t num_running = 0, num_waiting = 0;
  int32_t num_free_blocks = 0;  // after planning
  bool empty() const { return seqs.empty(); }
};

// One candidate of a log-probability list.
struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
  int32_t rank = 0;  // 1 = the most likely
};

// What one row of logits gave.
struct SampledToken {
  int32_t id = -1;                     // -1: error says why
  std::vector<TokenLogprob> logprobs;  // the sampled token first, then the top k; empty if not asked
  std::string error;                   // NaN, everything masked …
};

struct SeqResult {
  SeqId id = 0;
  int32_t num_computed = 0;           // tokens computed in this step
  std::vector<SampledToken> sampled;  // 0 or 1 (more with speculation)
  std::vector<SampledToken>
      prompt_logprobs;  // of the prompt's tokens that rows of this step predict, in order
  // What Scheduler::commit makes of it: how the sequence ends, if it does. `sampled` is cut to what it keeps.
  FinishReason finish_reason = FinishReason::none;
  int32_t stop_token = -1;  // with stop: the id that ended it, but -1 for the model's first EOS id (as vLLM)
  std::string error = {};   // with error: why; nothing was kept then
};

struct StepResult {
  int64_t step = 0;
  std::vector<SeqResult> seqs;  // in the plan's order
  double schedule_seconds = 0, forward_seconds = 0, sample_seconds = 0;
};

std::string to_string(const StepPlan& plan);  // one line a sequence, for gdb and logs
std::string to_string(const StepResult& result);
const char* to_string(FinishReason reason);  // "stop", "length", "abort", "error"; "" for none
void check_plan(const StepPlan& plan, int32_t budget, int32_t block_size);

}  // namespace nano
