#include "engine/engine.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "base/clock.h"  // steady_seconds
#include "base/error.h"  // Error, NANO_CHECK
#include "base/rng.h"    // random_bits

namespace nano {

Engine::Engine(const EngineConfig& config, Runner& runner, const KvCache& kv, Backend& backend)
    : config_(config),
      runner_(runner),
      backend_(backend),
      blocks_(kv.num_blocks, kv.B, config.enable_prefix_caching),
      scheduler_(config.scheduler, blocks_),
      start_seconds_(steady_seconds()) {}

double Engine::now() const { return steady_seconds() - start_seconds_; }

void Engine::trace_to(TraceWriter* trace) {
  trace_ = trace;
  blocks_.record_events(trace ? &events_ : nullptr);
}

void Engine::add_request(const std::string& request_id, std::vector<int32_t> prompt, SamplingParams params,
                         int32_t priority) {
  NANO_CHECK(!in_step_, "add_request in the middle of a step");
  if (requests_.count(request_id)) throw Error("this request id is in use", request_id);
  validate(params, config_.vocab_size, config_.max_logprobs);
  for (int32_t id : prompt)
    if (id < 0 || id >= config_.vocab_size)
      throw Error(fmt::format("token id {} is outside the vocabulary of {}", id, config_.vocab_size),
                  request_id);

  const uint64_t seed =
      params.seed ? uint64_t(*params.seed) : random_bits({config_.seed, 0}, uint64_t(num_requests_));
  Request request;
  request.id = request_id;
  for (int32_t i = 0; i < params.n; ++i) {
    Sequence& seq = *request.seqs.emplace_back(std::make_unique<Sequence>());
    seq.id = next_id_++;
    seq.index = i;
    seq.tokens = prompt;
    seq.num_prompt_tokens = int32_t(prompt.size());
    seq.params = params;
    seq.seed = seed + uint64_t(i);
    seq.priority = priority;
    if (const std::string problem = scheduler_.why_not(seq); !problem.empty())
      throw Error(problem, request_id);
    if (i > 0) seq.fork_of = request.seqs[0]->id, seq.params.prompt_logprobs.reset();
  }
  ++num_requests_;
  start(requests_.emplace(request_id, std::move(request)).first->second, 1);
}

// Gives the scheduler the request's sequences up to the end-th.
void Engine::start(Request& request, size_t end) {
  for (; request.num_started < end; ++request.num_started) {
    Sequence& seq = *request.seqs[request.num_started];
    seq.arrival = next_arrival_++;
    if (trace_) trace_->request(seq.index == 0 ? "arrived" : "forked", request.id, seq, now());
    live_.emplace(seq.id, Live{&seq, &request, false});
    ++request.num_live;
    scheduler_.add(seq);
  }
}

void Engine::abort(const std::string& request_id) {
  NANO_CHECK(!in_step_, "abort in the middle of a step");
  auto it = requests_.find(request_id);
  if (it == requests_.end()) return;
  it->second.seqs.resize(it->second.num_started);
  for (const auto& seq : it->second.seqs) scheduler_.finish(seq->id, FinishReason::abort);
  forget_finished();
}

void Engine::finish(const std::string& request_id, int32_t index, FinishReason reason) {
  NANO_CHECK(!in_step_, "finish in the middle of a step");
  auto it = requests_.find(request_id);
  if (it == requests_.end() || size_t(index) >= it->second.num_started) return;
  Request& request = it->second;
  scheduler_.finish(request.seqs.at(size_t(index))->id, reason);
  start(request, request.seqs.size());  // who waited for its prompt computes it then
  forget_finished();
}

std::vector<SequenceOutput> Engine::step() {
  NANO_CHECK(!in_step_, "step in the middle of a step");
  struct InStep {
    bool& flag;
    explicit InStep(bool& f) : flag(f) { flag = true; }
    ~InStep() { flag = false; }
  } in_step(in_step_);
  const double start = now();
  const StepPlan plan = scheduler_.schedule();
  const double scheduled = now();
  check_progress(plan);
  if (plan.empty()) return {};
  StepResult result = run(plan);
  result.schedule_seconds = scheduled - start;
  scheduler_.commit(plan, result);
  if (trace_) trace_->step(plan, result, events_, start);
  events_.clear();
  if (on_step) on_step(plan, result);
  std::vector<SequenceOutput> outputs = outputs_of(plan, result);
  forget_finished();
#ifndef NDEBUG
  scheduler_.check_integrity();
#endif
  return outputs;
}

// Only a fault of ours can leave work undone: say so, and do not spin for ever.
void Engine::check_progress(const StepPlan& plan) {
  idle_steps_ = plan.empty() && has_work() ? idle_steps_ + 1 : 0;
  if (idle_steps_ == 1000)
    std::fprintf(stderr, "nano: 1000 steps scheduled nothing while %zu requests wait\n",
                 scheduler_.num_waiting());
  NANO_CHECK(idle_steps_ < 100000, "the scheduler has work and plans nothing");
#ifndef NDEBUG
  check_plan(plan, config_.scheduler.max_num_batched_tokens, blocks_.block_size());
#endif
}

// The model over the plan. Its logits come in slices, and each slice is sampled before the next is computed.
StepResult Engine::run(const StepPlan& plan) {
  StepResult result;
  result.step = plan.step;
  std::vector<LogitRow> rows;
  for (const ScheduledSeq& seq : plan.seqs) {
    result.seqs.emplace_back();
    result.seqs.back().id = seq.id;
    result.seqs.back().num_computed = seq.num_tokens();
    for (int32_t i = seq.first_logit_row; i < seq.num_tokens(); ++i)
      rows.push_back({result.seqs.size() - 1, live_.at(seq.id).seq, seq.first_pos + i + 1,
                      seq.samples && i == seq.num_tokens() - 1});
  }
  const double start = now();
  runner_.run(plan, [&](int32_t first, int32_t count, float* logits) {
    const double sampling_start = now();
    sample_rows(std::span(rows).subspan(size_t(first), size_t(count)), logits, result);
    result.sample_seconds += now() - sampling_start;
  });
  result.forward_seconds = now() - start - result.sample_seconds;
  return result;
}

void Engine::sample_rows(std::span<const LogitRow> rows, float* logits, StepResult& result) const {
  const auto V = int64_t(runner_.vocab_rows());
  auto logits_of = [&](size_t i) {
    return std::span<float>(logits + int64_t(i) * V, size_t(config_.vocab_size));
  };
  for (size_t i = 0; on_logits && i < rows.size(); ++i)
    if (rows[i].wanted()) on_logits(*rows[i].seq, rows[i].position - 1, logits_of(i));
  std::vector<SampledToken> tokens(rows.size());
  backend_.parallel_for(int32_t(rows.size()), [&](int32_t i) {
    const LogitRow& row = rows[size_t(i)];
    if (!row.wanted()) return;
    tokens[size_t(i)] = row.of_prompt() ? score_prompt_token(row, logits_of(size_t(i)))
                                        : sample_token(row, logits_of(size_t(i)));
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    SeqResult& of = result.seqs[rows[i].place];
    if (rows[i].wanted())
      (rows[i].of_prompt() ? of.prompt_logprobs : of.sampled).push_back(std::move(tokens[i]));
  }
}

// A prompt's token is known; how likely was it?
SampledToken Engine::score_prompt_token(const LogitRow& row, std::span<const float> logits) {
  const int32_t id = row.seq->tokens[size_t(row.position)];
  std::vector<TokenLogprob> logprobs = top_logprobs(logits, id, *row.seq->params.prompt_logprobs);
  if (logprobs.empty())
    return {-1, {}, fmt::format("the logits of prompt token {} are not finite", row.position)};
  return {id, std::move(logprobs), ""};
}

SampledToken Engine::sample_token(const LogitRow& row, std::span<float> logits) const {
  if (!config_.sampler) return sample_argmax(logits, row.seq->params);
  std::vector<int32_t> stop_ids;
  return sample(logits, row.seq->params, sampler_context(*row.seq, stop_ids));
}

SamplerContext Engine::sampler_context(const Sequence& seq, std::vector<int32_t>& stop_ids) const {
  if (seq.num_output_tokens() < seq.params.min_tokens) {  // only then the sampler masks them
    stop_ids = config_.scheduler.eos_ids;
    stop_ids.insert(stop_ids.end(), seq.params.stop_token_ids.begin(), seq.params.stop_token_ids.end());
  }
  const std::span<const int32_t> tokens(seq.tokens);
  const auto prompt = size_t(seq.num_prompt_tokens);
  return {tokens.first(prompt), tokens.subspan(prompt), stop_ids,
          RngKey{seq.seed, uint32_t(seq.num_output_tokens())}};
}

// What each request is told. Those of a static batch that only fill their slot are over, and hear nothing more.
std::vector<SequenceOutput> Engine::outputs_of(const StepPlan& plan, StepResult& result) {
  std::vector<SequenceOutput> outputs;
  for (size_t e = 0; e < plan.seqs.size(); ++e) {
    SeqResult& of = result.seqs[e];
    const auto& [seq, request, ended] = live_.at(of.id);
    if (of.sampled.empty() && of.prompt_logprobs.empty() && of.finish_reason == FinishReason::none) continue;
    SequenceOutput& out = outputs.emplace_back();
    out.request_id = request->id;
    out.index = seq->index;
    out.num_cached_tokens = std::max(seq->num_cached_tokens, 0);
    out.prompt_logprobs = std::move(of.prompt_logprobs);
    out.tokens = std::move(of.sampled);
    out.finish_reason = of.finish_reason;
    out.stop_token = of.stop_token;
    out.error = of.error;
    // n > 1: once the prompt is in the cache, the other answers start from it instead of computing it again. And if
    // it cannot be computed, they end as the first does.
    if (!out.tokens.empty()) start(*request, request->seqs.size());
    if (of.finish_reason == FinishReason::error) fail_unstarted(*request, of.error, outputs);
  }
  return outputs;
}

void Engine::fail_unstarted(Request& request, const std::string& error,
                            std::vector<SequenceOutput>& outputs) {
  for (; request.seqs.size() > request.num_started; request.seqs.pop_back()) {
    SequenceOutput& out = outputs.emplace_back();
    out.request_id = request.id;
    out.index = request.seqs.back()->index;
    out.finish_reason = FinishReason::error;
    out.error = error;
  }
}

// What has ended is known at once; a sequence that a static batch still points to lives on until that is over.
void Engine::forget_finished() {
  auto held = [this](const auto& seq) { return scheduler_.holds(seq->id); };
  for (auto it = live_.begin(); it != live_.end();) {
    auto& [seq, request, ended] = it->second;
    if (seq->finished() && !std::exchange(ended, true)) {
      if (trace_) trace_->request(to_string(seq->finish_reason), request->id, *seq, now());
      if (--request->num_live == 0 && request->num_started == request->seqs.size())
        over_.push_back(requests_.extract(request->id));
    }
    it = seq->finished() && !held(seq) ? live_.erase(it) : std::next(it);
  }
  std::erase_if(over_, [&](const auto& request) {
    const auto& seqs = request.mapped().seqs;
    return std::none_of(seqs.begin(), seqs.end(), held);
  });
}

}  // namespace nano
