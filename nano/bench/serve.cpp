#include "bench/serve.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <optional>
#include <queue>
#include <thread>

#include "base/clock.h"  // steady_seconds
#include "base/error.h"  // Error

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kLongestNap = 0.01;  // seconds, while no request is under way; then Ctrl-C is looked at

// One load against the engine. `sent` is when the client would have sent: at its arrival, or when a place among
// max_concurrency became free, even if the engine was in the middle of a step then. Tokens are there when their
// step is over.
class Drive {
 public:
  Drive(LLM& llm, const ServeOptions& o, const LoadOptions& options, const Watch& watch)
      : llm_(llm),
        o_(o),
        options_(options),
        watch_(watch),
        load_(make_load(options)),
        requests_(load_.size()) {
    for (int64_t i = 0; i < o.max_concurrency; ++i) free_since_.push(0);
  }

  std::vector<ServedRequest> run() {
    while (next_ < load_.size() || llm_.has_work()) {
      if (watch_.between_steps) watch_.between_steps();
      while (next_ < load_.size() && place_is_free() && load_[next_].arrival <= now()) send();
      step_end_.reset();
      if (llm_.has_work())
        llm_.step([this](const RequestOutput& out) { receive(out); });
      else if (next_ < load_.size())
        std::this_thread::sleep_for(
            std::chrono::duration<double>(std::clamp(load_[next_].arrival - now(), 0.0, kLongestNap)));
      if (watch_.progress) watch_.progress(int64_t(next_) - under_way_, int64_t(load_.size()));
    }
    return std::move(requests_);
  }

 private:
  double now() const { return steady_seconds() - start_; }
  bool place_is_free() const { return o_.max_concurrency == 0 || !free_since_.empty(); }

  void send() {
    const size_t i = next_++;
    SamplingParams params;
    params.temperature = float(o_.temperature);
    params.seed = int64_t((options_.seed + i) & INT64_MAX);
    params.ignore_eos = o_.ignore_eos;
    params.max_tokens = int32_t(load_[i].output_len);
    requests_[i].sent = load_[i].arrival;
    requests_[i].input_tokens = load_[i].input_len;
    try {
      llm_.add_request(std::to_string(i),
                       {"", prompt_ids(options_, i, load_[i].input_len, llm_.tokenizer().vocab_size())},
                       params);
      ++under_way_;
      if (o_.max_concurrency == 0) return;
      requests_[i].sent = std::max(load_[i].arrival, free_since_.top());
      free_since_.pop();
    } catch (const Error& error) {  // the others go on
      requests_[i].error = Error(error.problem, "", error.hint).what();
    }
  }

  void receive(const RequestOutput& out) {
    if (!step_end_) step_end_ = now();  // one time for all: they came together
    ServedRequest& request = requests_[std::stoul(out.request_id)];
    const std::vector<int32_t>& ids = out.outputs.at(0).token_ids;
    const auto fresh = int64_t(ids.size() - request.token_ids.size());
    if (fresh > 0) request.chunks.push_back({*step_end_, fresh});
    request.token_ids.insert(request.token_ids.end(), ids.end() - fresh, ids.end());
    if (!out.finished) return;
    request.error = out.error;
    if (o_.max_concurrency > 0) free_since_.push(*step_end_);
    --under_way_;
  }

  LLM& llm_;
  const ServeOptions& o_;
  const LoadOptions& options_;
  const Watch& watch_;
  const std::vector<LoadItem> load_;
  std::vector<ServedRequest> requests_;
  const double start_ = steady_seconds();
  size_t next_ = 0;
  int64_t under_way_ = 0;
  // The free places among max_concurrency: since when. The one that is free longest is taken first.
  std::priority_queue<double, std::vector<double>, std::greater<double>> free_since_;
  std::optional<double> step_end_;
};

Json settings_json(const LLM& llm, const ServeOptions& o) {
  Json json = {{"model_id", llm.loaded().options.model}, {"num_prompts", o.load.num_prompts}};
  json["request_rate"] = std::isfinite(o.load.request_rate) ? Json(o.load.request_rate) : Json("inf");
  json["burstiness"] = o.load.burstiness;
  json["max_concurrency"] = o.max_concurrency ? Json(o.max_concurrency) : Json();
  return json;
}

}  // namespace

Served measure_serve(LLM& llm, const ServeOptions& o, const Watch& watch) {
  LoadedEngine& loaded = llm.loaded();
  LoadOptions warmup = o.load;
  warmup.num_prompts = o.num_warmups;
  warmup.request_rate = INFINITY;
  warmup.seed = ~warmup.seed;        // other prompts, or the ones that count would be in the prefix cache
  loaded.engine->trace_to(nullptr);  // what warms up is not in the trace
  Drive(llm, o, warmup, watch).run();
  loaded.engine->trace_to(loaded.trace.get());

  StepStats steps(loaded.engine->blocks().num_blocks(), loaded.engine->blocks().block_size(),
                  loaded.resolved.scheduler.max_num_batched_tokens);
  loaded.engine->on_step = [&](const StepPlan& plan, const StepResult& result) { steps.add(plan, result); };
  Served served{settings_json(llm, o), Drive(llm, o, o.load, watch).run(), ""};
  loaded.engine->on_step = {};
  served.result.update(report_requests(served.requests, o.report));
  served.result.update(steps.report());
  served.advice = steps.advice();
  return served;
}

}  // namespace nano
