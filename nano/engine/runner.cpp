#include "engine/runner.h"

#include <algorithm>

namespace nano {

namespace {

int32_t blocks_for(int32_t tokens, int32_t B) { return int32_t((int64_t(tokens) + B - 1) / B); }

}  // namespace

int64_t Runner::batch_bytes(int32_t max_tokens, int32_t max_seqs, int32_t blocks_per_seq) {
  // token_ids, positions, logit_rows and slot_mapping a token; query_start, seq_len and a block table a sequence.
  return int64_t(max_tokens) * (3 * 4 + 8) + int64_t(max_seqs + 1) * 8 +
         int64_t(max_seqs) * blocks_per_seq * 4;
}

Runner::Runner(Transformer& model, const KvCache& kv, Backend& backend, int32_t max_tokens, int32_t max_seqs,
               int32_t max_model_len)
    : model_(model), kv_(kv), backend_(backend) {
  backend_.reserve(Transformer::limits(model.config, max_tokens, max_model_len));
  model_.reserve(max_tokens);
  auto ints = [&](int64_t n) { return static_cast<int32_t*>(backend_.allocate(n * 4, Memory::scratch)); };
  batch_.max_blocks = blocks_for(max_model_len, kv.B);
  batch_.token_ids = ints(max_tokens);
  batch_.positions = ints(max_tokens);
  batch_.logit_rows = ints(max_tokens);
  batch_.slot_mapping = static_cast<int64_t*>(backend_.allocate(int64_t(max_tokens) * 8, Memory::scratch));
  batch_.query_start = ints(max_seqs + 1);
  batch_.seq_len = ints(max_seqs + 1);
  batch_.block_table = ints(int64_t(max_seqs) * batch_.max_blocks);
}

// Sequences lie one after the other; row r of the batch is token_ids[r] at positions[r], whose K and V go to
// slot_mapping[r] = block · B + offset.
void Runner::build_batch(const StepPlan& plan) {
  token_ids_.clear(), positions_.clear(), slot_mapping_.clear(), seq_len_.clear(), logit_rows_.clear();
  query_start_.assign(1, 0);
  block_table_.assign(plan.seqs.size() * size_t(batch_.max_blocks), 0);
  const int32_t B = kv_.B;
  for (size_t s = 0; s < plan.seqs.size(); ++s) {
    const ScheduledSeq& seq = plan.seqs[s];
    const auto first_row = int32_t(token_ids_.size());
    for (int32_t i = 0; i < seq.num_tokens(); ++i) {
      const int32_t position = seq.first_pos + i;
      token_ids_.push_back(seq.tokens[size_t(i)]);
      positions_.push_back(position);
      slot_mapping_.push_back(int64_t(seq.block_table[size_t(position / B)]) * B + position % B);
      if (i >= seq.first_logit_row) logit_rows_.push_back(first_row + i);
    }
    query_start_.push_back(int32_t(token_ids_.size()));
    seq_len_.push_back(seq.first_pos + seq.num_tokens());
    std::copy(seq.block_table.begin(), seq.block_table.end(),
              block_table_.begin() + int64_t(s) * batch_.max_blocks);
  }
  batch_.T = int32_t(token_ids_.size());
  batch_.S = int32_t(plan.seqs.size());
  batch_.R = int32_t(logit_rows_.size());
  auto upload = [&](void* to, const auto& from) {
    backend_.upload(to, from.data(), int64_t(from.size() * sizeof(from[0])));
  };
  upload(batch_.token_ids, token_ids_);
  upload(batch_.positions, positions_);
  upload(batch_.slot_mapping, slot_mapping_);
  upload(batch_.query_start, query_start_);
  upload(batch_.seq_len, seq_len_);
  upload(batch_.block_table, block_table_);
  upload(batch_.logit_rows, logit_rows_);
}

void Runner::run_body(void* runner) {
  auto& self = *static_cast<Runner*>(runner);
  self.model_.forward(self.batch_, self.kv_);
}

void Runner::run_head(void* runner) {
  auto& self = *static_cast<Runner*>(runner);
  self.logits_ = self.model_.logits(self.batch_.logit_rows + self.first_row_, self.num_rows_);
}

void Runner::run(const StepPlan& plan, const LogitsSink& sink) {
  build_batch(plan);
  backend_.step(batch_.T, {run_body, this});
  // The LM head in slices: 64 rows of a 150k vocabulary are 38 MB of logits, a whole chunk's would be gigabytes.
  for (first_row_ = 0; first_row_ < batch_.R; first_row_ += kMaxLogitRows) {
    num_rows_ = std::min(kMaxLogitRows, batch_.R - first_row_);
    backend_.step(num_rows_, {run_head, this});
    sink(first_row_, num_rows_, backend_.to_host(logits_, int64_t(num_rows_) * model_.config.V));
  }
}

}  // namespace nano
