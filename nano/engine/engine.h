// The engine: requests in, tokens out, one step at a time. It joins the pure logic of core/ (who computes what)
// with the runner (numbers) and knows no text: strings are the caller's business.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/block_manager.h"  // BlockManager, BlockEvent
#include "core/scheduler.h"      // Scheduler, SchedulerConfig
#include "core/step.h"           // StepPlan, StepResult, SampledToken
#include "engine/trace.h"          // TraceWriter
#include "engine/runner.h"       // Runner

namespace nano {

struct EngineConfig {
  SchedulerConfig scheduler;
  bool enable_prefix_caching = true;
  bool sampler = true;        // --no-sampler: argmax
  int32_t max_logprobs = 20;  // most a request may ask for; -1 = no cap
  uint64_t seed = 0;          // of requests that bring none
  int32_t vocab_size = 0;     // ids with a text; logits of padding rows beyond it are not looked at
  std::vector<int32_t> eos_ids;
};

// What one sequence of a request got in one step.
struct SequenceOutput {
  std::string request_id;
  int32_t index = 0;                          // i of n
  std::vector<SampledToken> tokens;           // new ones
  std::vector<SampledToken> prompt_logprobs;  // new ones: of prompt tokens 1, 2, … in order
  FinishReason finish_reason = FinishReason::none;
  int32_t stop_token = -1;
  int32_t num_cached_tokens = 0;
  std::string error;  // with FinishReason::error
};

class Engine {
 public:
  Engine(const EngineConfig& config, Runner& runner, const KvCache& kv, Backend& backend);

  // Error: an empty or too long prompt, an id outside the vocabulary, a parameter out of range, an id in use.
  void add_request(const std::string& request_id, std::vector<int32_t> prompt, SamplingParams params,
                   int32_t priority = 0);
  void abort(const std::string& request_id);  // unknown or finished: no-op
  void finish(const std::string& request_id, int32_t index, FinishReason reason);  // a stop string was found
  bool has_work() const { return scheduler_.has_work(); }

  // Schedules, computes, samples, commits. What it returns is empty when no sequence got a token: in the middle of
  // a long prompt, or when nothing is left to do (has_work() tells).
  std::vector<SequenceOutput> step();

  void trace_to(TraceWriter* trace);  // nullptr = off
  // Tests look at each row of logits before it is sampled: sequence, position of the row, the row.
  std::function<void(const Sequence&, int32_t, std::span<const float>)> on_logits;
  // Benchmarks look at each step once it is done.
  std::function<void(const StepPlan&, const StepResult&)> on_step;
  const std::string& request_id(SeqId id) const { return request_of_.at(id); }  // of a live sequence
  const Scheduler& scheduler() const { return scheduler_; }
  const BlockManager& blocks() const { return blocks_; }
  void check_integrity() const;

 private:
  struct Request {
    std::vector<SeqId> seqs;
    std::vector<std::unique_ptr<Sequence>> forks;  // children 1 … n-1: they wait for child 0's prompt
  };
  // One row of logits: of which entry of the plan, and which row of it.
  struct LogitRow {
    size_t entry;
    int32_t row;
  };

  StepResult compute(const StepPlan& plan, std::vector<std::vector<SampledToken>>& prompt_rows);
  SampledToken sample_row(const ScheduledSeq& scheduled, int32_t row, std::span<float> logits) const;
  std::vector<SequenceOutput> collect(const StepPlan& plan, StepResult& result,
                                      std::vector<std::vector<SampledToken>>& prompt_rows);
  void schedule(std::unique_ptr<Sequence> seq);
  void add_forks(const Sequence& parent);
  void forget_finished();
  double now() const;

  const EngineConfig config_;
  Runner& runner_;
  Backend& backend_;
  BlockManager blocks_;
  Scheduler scheduler_;
  std::unordered_map<SeqId, std::unique_ptr<Sequence>> sequences_;
  std::map<std::string, Request> requests_;
  std::unordered_map<SeqId, std::string> request_of_;
  SeqId next_id_ = 0;
  int64_t num_requests_ = 0, next_arrival_ = 0;
  int64_t idle_steps_ = 0;
  TraceWriter* trace_ = nullptr;
  std::vector<BlockEvent> events_;
  double start_seconds_;
};

}  // namespace nano
