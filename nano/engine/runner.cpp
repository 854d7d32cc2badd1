#include "engine/runner.h"

#include <algorithm>

#include "base/format.h"  // ceil_div

namespace nano {

// The integers of a step, in memory that next(bytes) gives: once for who counts and once for who allocates.
template <class Next>
static Batch lay_out(int32_t max_tokens, int32_t max_seqs, int32_t blocks_per_seq, Next next) {
  auto ints = [&](int64_t n) { return static_cast<int32_t*>(next(n * 4)); };
  Batch batch;
  batch.max_blocks = blocks_per_seq;
  batch.token_ids = ints(max_tokens);
  batch.positions = ints(max_tokens);
  batch.logit_rows = ints(max_tokens);
  batch.slot_mapping = static_cast<int64_t*>(next(int64_t(max_tokens) * 8));
  batch.query_start = ints(max_seqs + 1);
  batch.seq_len = ints(max_seqs + 1);
  batch.block_table = ints(int64_t(max_seqs) * blocks_per_seq);
  return batch;
}

int64_t Runner::batch_bytes(int32_t max_tokens, int32_t max_seqs, int32_t blocks_per_seq) {
  int64_t total = 0;
  lay_out(max_tokens, max_seqs, blocks_per_seq, [&](int64_t bytes) -> void* {
    total += bytes;
    return nullptr;
  });
  return total;
}

Runner::Runner(Transformer& model, const KvCache& kv, Backend& backend, int32_t max_tokens, int32_t max_seqs,
               int32_t max_model_len)
    : model_(model), kv_(kv), backend_(backend), most_warm_up_(std::min(max_tokens, max_model_len)) {
  backend_.reserve(Transformer::limits(model.config, max_tokens, max_model_len));
  model_.reserve(max_tokens);
  batch_ = lay_out(max_tokens, max_seqs, int32_t(ceil_div(max_model_len, kv.B)),
                   [&](int64_t bytes) { return backend_.allocate(bytes, Memory::scratch); });
}

void Runner::warm_up() {
  const int64_t most = int64_t(kv_.num_blocks) * kv_.B;
  ScheduledSeq seq;
  seq.tokens.assign(size_t(std::min<int64_t>({kWarmUpTokens, most_warm_up_, most})), 0);
  for (int32_t block = 0; block < ceil_div(seq.num_tokens(), kv_.B); ++block)
    seq.block_table.push_back(block);
  seq.first_logit_row = seq.num_tokens() - 1;
  StepPlan plan;
  plan.seqs = {seq};
  run(plan, [](int32_t, int32_t, float*) {});
  plan.seqs[0].first_pos = plan.seqs[0].first_logit_row;
  plan.seqs[0].tokens.resize(1);
  plan.seqs[0].first_logit_row = 0;
  run(plan, [](int32_t, int32_t, float*) {});
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
