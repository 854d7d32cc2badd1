// The runner: a StepPlan becomes a Batch of rows, the batch goes through the model, logits come back.
// It is the only place that knows both sides: ids, positions and slots here, tensors there. It decides nothing and
// samples nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "backend/backend.h"    // Backend, Batch
#include "core/step.h"          // StepPlan
#include "model/kv_cache.h"     // KvCache
#include "model/transformer.h"  // Transformer

namespace nano {

class Runner {
 public:
  // Makes room for steps of up to max_tokens tokens and max_seqs sequences.
  Runner(Transformer& model, const KvCache& kv, Backend& backend, int32_t max_tokens, int32_t max_seqs,
         int32_t max_model_len);

  // Bytes of the batch's integers, for the memory plan.
  static int64_t batch_bytes(int32_t max_tokens, int32_t max_seqs, int32_t blocks_per_seq);

  // Computes the plan. Rows that need logits are numbered through the plan in order; sink gets them in slices:
  // rows [first_row, first_row + rows), logits [rows, V] on the host, which it may overwrite.
  using LogitsSink = std::function<void(int32_t first_row, int32_t rows, float* logits)>;
  void run(const StepPlan& plan, const LogitsSink& sink);
  // One prompt and one decoding step of no request, so that the first real one does not pay for pages that nobody has
  // touched. REQUIRES: all blocks are free (it writes K and V into the first ones).
  void warm_up();
  int32_t vocab_rows() const { return model_.config.V; }  // width of a row of logits

 private:
  static constexpr int32_t kWarmUpTokens = 64;

  void build_batch(const StepPlan& plan);
  // What backend_.step() calls, with the runner: all layers, then the LM head for each slice of the wanted rows.
  static void run_body(void* runner);
  static void run_head(void* runner);

  Transformer& model_;
  const KvCache& kv_;
  Backend& backend_;
  const int32_t most_warm_up_;
  Batch batch_;                           // pointers into backend memory
  int32_t first_row_ = 0, num_rows_ = 0;  // the slice of the wanted rows that run_head works on
  Act logits_;                            // its logits
  // The same on the host, reused from step to step.
  std::vector<int32_t> token_ids_, positions_, query_start_, seq_len_, block_table_, logit_rows_;
  std::vector<int64_t> slot_mapping_;
};

}  // namespace nano
