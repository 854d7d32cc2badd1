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
#include "core/sampler.h"        // SamplerContext
#include "core/scheduler.h"      // Scheduler, SchedulerConfig
#include "core/step.h"           // StepPlan, StepResult, SampledToken
#include "engine/runner.h"       // Runner
#include "engine/trace.h"        // TraceWriter

namespace nano {

struct EngineConfig {
  SchedulerConfig scheduler;
  bool enable_prefix_caching = true;
  bool sampler = true;        // --no-sampler: argmax
  int32_t max_logprobs = 20;  // most a request may ask for; -1 = no cap
  uint64_t seed = 0;          // of requests that bring none
  int32_t vocab_size = 0;     // ids with a text; logits of padding rows beyond it are not looked at
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
  // Unknown or finished: no-op. An id is free again once all its answers have ended, also where a static batch still
  // holds their slots.
  void abort(const std::string& request_id);
  // A stop string was found. Unknown, finished, or an answer that has not started: no-op.
  void finish(const std::string& request_id, int32_t index, FinishReason reason);
  bool has_work() const { return scheduler_.has_work(); }

  // Schedules, computes, samples, commits. What it returns is empty when no sequence got a token: in the middle of
  // a long prompt, or when nothing is left to do (has_work() tells).
  std::vector<SequenceOutput> step();

  void trace_to(TraceWriter* trace);  // nullptr = off
  // Neither of these two may step, nor add, abort or finish requests.
  // Tests look at each row of logits before it is sampled: sequence, position of the row, the row.
  std::function<void(const Sequence&, int32_t, std::span<const float>)> on_logits;
  // Benchmarks look at each step once it is done.
  std::function<void(const StepPlan&, const StepResult&)> on_step;
  // What the sampler is told of a sequence. It refers to the sequence and to `stop_ids`, which this fills.
  SamplerContext sampler_context(const Sequence& seq, std::vector<int32_t>& stop_ids) const;
  const std::string& request_id(SeqId id) const { return live_.at(id).request->id; }  // of a live sequence
  const Scheduler& scheduler() const { return scheduler_; }
  const BlockManager& blocks() const { return blocks_; }
  size_t num_live_requests() const { return requests_.size(); }
  size_t num_live_sequences() const { return live_.size(); }

 private:
  struct Request {
    std::string id;
    std::vector<std::unique_ptr<Sequence>> seqs;  // answer i of n
    size_t num_started = 0;                       // of them; those after the first wait for its prompt
    size_t num_live = 0;                          // of those started, and not finished
  };
  struct Live {
    Sequence* seq;
    Request* request;
    bool ended;  // the request and the trace know of it
  };
  // One row of logits: whose it is, and the position of the token that it predicts.
  struct LogitRow {
    size_t place;  // of its sequence in the plan
    const Sequence* seq;
    int32_t position;  // of the token
    bool samples;      // it is to become that token
    bool of_prompt() const { return position < seq->num_prompt_tokens; }
    bool wanted() const { return samples || of_prompt(); }  // else it only fills a static batch
  };

  void check_progress(const StepPlan& plan);
  StepResult run(const StepPlan& plan);
  void sample_rows(std::span<const LogitRow> rows, float* logits, StepResult& result) const;
  static SampledToken score_prompt_token(const LogitRow& row, std::span<const float> logits);
  SampledToken sample_token(const LogitRow& row, std::span<float> logits) const;
  std::vector<SequenceOutput> outputs_of(const StepPlan& plan, StepResult& result);
  void start(Request& request, size_t end);
  static void fail_unstarted(Request& request, const std::string& error,
                             std::vector<SequenceOutput>& outputs);
  void forget_finished();
  double now() const;

  const EngineConfig config_;
  Runner& runner_;
  Backend& backend_;
  BlockManager blocks_;
  Scheduler scheduler_;
  std::map<std::string, Request> requests_;
  std::vector<std::map<std::string, Request>::node_type> over_;  // but a static batch holds sequences of them
  std::unordered_map<SeqId, Live>
      live_;  // the sequences that the scheduler was given, and may still point to
  SeqId next_id_ = 0;
  int64_t num_requests_ = 0, next_arrival_ = 0;
  int64_t idle_steps_ = 0;
  bool in_step_ = false;
  TraceWriter* trace_ = nullptr;
  std::vector<BlockEvent> events_;
  double start_seconds_;
};

}  // namespace nano
