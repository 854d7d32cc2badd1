// The arithmetic of `bench serve`: on the times of requests, and on the engine's steps. Pure: it reads no clock.
// Names, definitions and JSON keys are those of `vllm bench serve`, and a few of our own.
//
//   sent        first chunk    chunk         last chunk
//    |----- TTFT ----|--- ITL ---|----- ITL -----|       TPOT = (E2EL − TTFT) / (tokens − 1)
//    |------------------- E2EL ------------------|
//
// TTFT is no ITL. What was not measured is left out, never counted as 0: an answer of one token has no TPOT.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/step.h"  // StepPlan, StepResult

namespace nano {

struct Chunk {  // tokens that came together
  double time = 0;
  int64_t tokens = 0;
};

struct ServedRequest {  // all times in seconds since the load began
  double sent = 0;
  int64_t input_tokens = 0;
  std::vector<Chunk> chunks;
  std::vector<int32_t> token_ids;
  std::string error;  // set: it counts as failed, and nowhere else
};

struct RequestTimes {  // seconds
  std::optional<double> ttft, tpot, e2el;
  std::vector<double> itl;  // gaps between chunks
  int64_t tokens = 0;
};
RequestTimes times_of(const ServedRequest& request);

struct ReportOptions {
  std::vector<std::string> metrics = {"ttft", "tpot", "itl", "e2el"};
  std::vector<double> percentiles = {50, 95, 99, 99.9};
  std::map<std::string, double> goodput;  // the most milliseconds of ttft, tpot, e2el that are good
};

// Most requests that were under way at once, from sent to the last chunk.
int64_t max_concurrent(const std::vector<ServedRequest>& requests);

// All of the above. What can't be said is null. A reply without a token is "empty": neither completed nor failed, and
// in no other figure.
nlohmann::ordered_json report_requests(const std::vector<ServedRequest>& requests,
                                       const ReportOptions& options);
// All that it and StepStats::report() say, as vLLM's table.
std::string serve_text(const nlohmann::ordered_json& result, const ReportOptions& options);

// What the steps say beside the requests' times.
class StepStats {
 public:
  StepStats(int32_t num_blocks, int32_t block_size, int32_t max_num_batched_tokens)
      : num_blocks_(num_blocks),
        block_size_(block_size),
        budget_(max_num_batched_tokens),
        counted_in_step_(size_t(num_blocks)) {}

  void add(const StepPlan& plan, const StepResult& result);
  // peak_kv_usage: share of all blocks. mean_kv_utilization: of the slots in the blocks that sequences hold, the
  // share with a token that is still needed, over all steps (a finished row of a static batch needs none).
  nlohmann::ordered_json report() const;
  // "" = none. It asks for a larger --max-num-batched-tokens if all of this was measured: the budget cut prompts into
  // four pieces or more (three of four pieces were cut by a full step), and the shortest step of the run, which is
  // what a step costs at least whatever it computes, took a fifth or more of the time of those full steps.
  std::string advice() const;

 private:
  void count_slots(const StepPlan& plan);

  int32_t num_blocks_, block_size_, budget_;
  std::vector<int64_t> counted_in_step_;  // by block; steps begin with 1
  int64_t steps_ = 0, tokens_ = 0, preemptions_ = 0, max_running_ = 0;
  int64_t min_free_blocks_ = INT64_MAX, held_slots_ = 0, reserved_slots_ = 0;
  int64_t pieces_ = 0, piece_tokens_ = 0;   // of prompts
  int64_t cut_pieces_ = 0, cut_steps_ = 0;  // by the budget
  double cut_seconds_ = 0, shortest_seconds_ = 1e300;
};

}  // namespace nano
