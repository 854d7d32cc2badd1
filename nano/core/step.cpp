#include "core/step.h"

#include <set>
#include <sstream>
#include <unordered_map>

#include "base/error.h"  // NANO_CHECK

namespace nano {

namespace {

std::ostream& operator<<(std::ostream& out, const Admitted& admitted) { return out << admitted.id; }

template <typename T>
void print_list(std::ostream& out, const char* name, const std::vector<T>& list) {
  if (list.empty()) return;
  out << ' ' << name << " [";
  for (size_t i = 0; i < list.size(); ++i) out << (i ? " " : "") << list[i];
  out << ']';
}

}  // namespace

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::none: return "";
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::abort: return "abort";
    case FinishReason::error: return "error";
  }
  return "?";
}

std::string to_string(const StepPlan& plan) {
  std::ostringstream out;
  out << "step " << plan.step << ": " << plan.num_tokens << " tokens, " << plan.num_running << " running, "
      << plan.num_waiting << " waiting, " << plan.num_free_blocks << " blocks free";
  print_list(out, "admitted", plan.admitted);
  print_list(out, "preempted", plan.preempted);
  for (const ScheduledSeq& seq : plan.seqs) {
    out << "\n  seq " << seq.id << ": positions " << seq.first_pos << ".."
        << seq.first_pos + seq.num_tokens() - 1;
    print_list(out, "tokens", seq.tokens);
    print_list(out, "blocks", seq.block_table);
    out << " (" << seq.num_new_blocks << " new), " << seq.num_logit_rows() << " logit rows"
        << (seq.samples ? ", samples" : "") << (seq.discard ? ", discard" : "");
  }
  return out.str();
}

std::string to_string(const StepResult& result) {
  std::ostringstream out;
  out << "step " << result.step << ": schedule " << result.schedule_seconds << " s, forward "
      << result.forward_seconds << " s, sample " << result.sample_seconds << " s";
  for (const SeqResult& seq : result.seqs) {
    out << "\n  seq " << seq.id << ": computed " << seq.num_computed;
    for (const SampledToken& token : seq.sampled) out << ", token " << token.id;
    if (seq.finish_reason != FinishReason::none) out << ", finished: " << to_string(seq.finish_reason);
    if (!seq.error.empty()) out << ": " << seq.error;
  }
  return out.str();
}

void check_plan(const StepPlan& plan, int32_t budget, int32_t block_size) {
  int64_t num_tokens = 0;
  std::set<SeqId> ids;
  std::unordered_map<BlockId, int32_t> owners;
  for (const ScheduledSeq& seq : plan.seqs) {
    num_tokens += seq.num_tokens();
    NANO_CHECK(ids.insert(seq.id).second, "a sequence is twice in the plan");
    NANO_CHECK(seq.num_tokens() >= 1, "a sequence without tokens");
    NANO_CHECK(seq.first_pos >= 0 && seq.first_logit_row >= 0 && seq.num_logit_rows() >= 0,
               "a negative count");
    NANO_CHECK(!seq.samples || seq.num_logit_rows() >= 1, "a sampling sequence without a row of logits");
    int64_t slots = int64_t(seq.block_table.size()) * block_size;
    NANO_CHECK(seq.first_pos + seq.num_tokens() <= slots, "a slot outside the block table");
    NANO_CHECK(seq.num_new_blocks >= 0 && size_t(seq.num_new_blocks) <= seq.block_table.size(), "new blocks");
    for (BlockId block : seq.block_table) ++owners[block];
  }
  NANO_CHECK(num_tokens == plan.num_tokens && num_tokens <= budget, "the tokens of the plan and the budget");
  for (const ScheduledSeq& seq : plan.seqs) {
    const int32_t last = (seq.first_pos + seq.num_tokens() - 1) / block_size;
    for (int32_t i = seq.first_pos / block_size; i <= last; ++i)
      NANO_CHECK(owners[seq.block_table[size_t(i)]] == 1, "a shared block is written");
  }
}

}  // namespace nano
