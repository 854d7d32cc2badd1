#include "engine/engine.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "base/clock.h"    // steady_seconds
#include "base/error.h"    // Error, NANO_CHECK
#include "base/rng.h"      // random_bits
#include "core/sampler.h"  // sample, sample_argmax, top_logprobs

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
  if (requests_.count(request_id)) throw Error("this request id is in use", request_id);
  validate(params, config_.vocab_size, config_.max_logprobs);
  for (int32_t id : prompt)
    if (id < 0 || id >= config_.vocab_size)
      throw Error(fmt::format("token id {} is outside the vocabulary of {}", id, config_.vocab_size),
                  request_id);

  const uint64_t seed =
      params.seed ? uint64_t(*params.seed) : random_bits({config_.seed, 0}, uint64_t(num_requests_));
  Request request;
  for (int32_t i = 0; i < params.n; ++i) {
    auto seq = std::make_unique<Sequence>();
    seq->id = next_id_++;
    seq->index = i;
    seq->tokens = prompt;
    seq->num_prompt_tokens = int32_t(prompt.size());
    seq->params = params;
    seq->seed = seed + uint64_t(i);
    seq->priority = priority;
    if (const std::string problem = scheduler_.why_not(*seq); !problem.empty())
      throw Error(problem, request_id);
    if (i > 0) seq->fork_of = request.seqs[0], seq->params.prompt_logprobs.reset();
    request.seqs.push_back(seq->id);
    request.forks.push_back(std::move(seq));
  }
  ++num_requests_;
  for (SeqId id : request.seqs) request_of_[id] = request_id;
  std::unique_ptr<Sequence> first = std::move(request.forks.front());
  request.forks.erase(request.forks.begin());
  requests_.emplace(request_id, std::move(request));
  schedule(std::move(first));
}

void Engine::schedule(std::unique_ptr<Sequence> seq) {
  seq->arrival = next_arrival_++;
  const SeqId id = seq->id;
  if (trace_) trace_->request(seq->index == 0 ? "arrived" : "forked", request_of_.at(id), *seq, now());
  scheduler_.add(*sequences_.emplace(id, std::move(seq)).first->second);
}

void Engine::abort(const std::string& request_id) {
  auto it = requests_.find(request_id);
  if (it == requests_.end()) return;
  it->second.forks.clear();
  for (SeqId id : it->second.seqs) scheduler_.finish(id, FinishReason::abort);
  forget_finished();
}

void Engine::finish(const std::string& request_id, int32_t index, FinishReason reason) {
  auto it = requests_.find(request_id);
  if (it == requests_.end()) return;
  scheduler_.finish(it->second.seqs.at(size_t(index)), reason);
  forget_finished();
}

std::vector<SequenceOutput> Engine::step() {
  const double start = now();
  StepPlan plan = scheduler_.schedule();
  const double scheduled = now();
  if (plan.empty()) {
    // Only a fault of ours can leave work undone: say so, and do not spin for ever.
    if (has_work() && ++idle_steps_ == 1000)
      std::fprintf(stderr, "nano: 1000 steps scheduled nothing while %zu requests wait\n",
                   scheduler_.num_waiting());
    NANO_CHECK(idle_steps_ < 100000, "the scheduler has work and plans nothing");
    return {};
  }
  idle_steps_ = 0;
#ifndef NDEBUG
  check_plan(plan, config_.scheduler.max_num_batched_tokens, blocks_.block_size());
#endif

  std::vector<std::vector<SampledToken>> prompt_rows(plan.seqs.size());
  StepResult result = compute(plan, prompt_rows);
  result.schedule_seconds = scheduled - start;
  scheduler_.commit(plan, result);
  std::vector<SequenceOutput> outputs = collect(plan, result, prompt_rows);
  if (trace_) trace_->step(plan, result, events_, start);
  if (on_step) on_step(plan, result);
  events_.clear();
  forget_finished();
#ifndef NDEBUG
  check_integrity();
#endif
  return outputs;
}

// Runs the model over the plan; each row of logits becomes a token (or a prompt token's log-probability).
StepResult Engine::compute(const StepPlan& plan, std::vector<std::vector<SampledToken>>& prompt_rows) {
  std::vector<LogitRow> rows;
  StepResult result;
  result.step = plan.step;
  for (size_t e = 0; e < plan.seqs.size(); ++e) {
    const ScheduledSeq& seq = plan.seqs[e];
    for (int32_t row = seq.first_logit_row; row < seq.num_tokens(); ++row) rows.push_back({e, row});
    result.seqs.push_back({seq.id, seq.num_tokens(), {}, FinishReason::none, ""});
  }

  std::vector<SampledToken> tokens(rows.size());
  const double start = now();
  double sampling = 0;
  runner_.run(plan, [&](int32_t first, int32_t count, float* logits) {
    const double sampling_start = now();
    const auto V = int64_t(runner_.vocab_rows());
    auto logits_of = [&](int32_t i) { return std::span<float>(logits + i * V, size_t(config_.vocab_size)); };
    for (int32_t i = 0; on_logits && i < count; ++i) {
      const auto& [entry, row] = rows[size_t(first + i)];
      if (plan.seqs[entry].discard) continue;
      on_logits(*sequences_.at(plan.seqs[entry].id), plan.seqs[entry].first_pos + row, logits_of(i));
    }
    backend_.parallel_for(count, [&](int32_t i) {
      const LogitRow& at = rows[size_t(first + i)];
      tokens[size_t(first + i)] = sample_row(plan.seqs[at.entry], at.row, logits_of(i));
    });
    sampling += now() - sampling_start;
  });
  result.forward_seconds = now() - start - sampling;
  result.sample_seconds = sampling;

  for (size_t i = 0; i < rows.size(); ++i) {
    const ScheduledSeq& seq = plan.seqs[rows[i].entry];
    if (seq.discard) continue;
    const bool sampled = seq.samples && rows[i].row == seq.num_tokens() - 1;
    SeqResult& of = result.seqs[rows[i].entry];
    if (tokens[i].id < 0)
      of.finish_reason = FinishReason::error, of.error = tokens[i].error;
    else
      (sampled ? of.sampled : prompt_rows[rows[i].entry]).push_back(std::move(tokens[i]));
  }
  return result;
}

SampledToken Engine::sample_row(const ScheduledSeq& scheduled, int32_t row, std::span<float> logits) const {
  if (scheduled.discard) return {};
  const Sequence& seq = *sequences_.at(scheduled.id);
  const int32_t next = scheduled.first_pos + row + 1;  // the position this row predicts
  if (next < seq.num_prompt_tokens) {
    const int32_t id = seq.tokens[size_t(next)];
    std::vector<TokenLogprob> logprobs = top_logprobs(logits, id, seq.params.prompt_logprobs.value_or(0));
    if (logprobs.empty()) return {-1, {}, fmt::format("the logits of prompt token {} are not finite", next)};
    return {id, std::move(logprobs), ""};
  }
  if (!config_.sampler) return sample_argmax(logits, seq.params);
  std::vector<int32_t> stop_ids;
  if (seq.num_output_tokens() < seq.params.min_tokens) {  // only then the sampler masks them
    stop_ids = config_.eos_ids;
    stop_ids.insert(stop_ids.end(), seq.params.stop_token_ids.begin(), seq.params.stop_token_ids.end());
  }
  const std::span<const int32_t> tokens(seq.tokens);
  return sample(logits, seq.params,
                {tokens.first(size_t(seq.num_prompt_tokens)), tokens.subspan(size_t(seq.num_prompt_tokens)),
                 stop_ids, RngKey{seq.seed, uint32_t(seq.num_output_tokens())}});
}

// After commit: who is done, and what each request is told.
std::vector<SequenceOutput> Engine::collect(const StepPlan& plan, StepResult& result,
                                            std::vector<std::vector<SampledToken>>& prompt_rows) {
  std::vector<SequenceOutput> outputs;
  for (size_t e = 0; e < plan.seqs.size(); ++e) {
    SeqResult& of = result.seqs[e];
    if (plan.seqs[e].discard) continue;
    const Sequence& seq = *sequences_.at(of.id);
    SequenceOutput out;
    out.request_id = request_of_.at(of.id);
    out.index = seq.index;
    out.num_cached_tokens = std::max(seq.num_cached_tokens, 0);
    out.prompt_logprobs = std::move(prompt_rows[e]);
    out.tokens = of.sampled;
    out.error = of.error;
    if (!of.sampled.empty())
      of.finish_reason = check_stop(seq, config_.eos_ids, config_.scheduler.max_model_len, out.stop_token);
    if (plan.seqs[e].samples) add_forks(seq);
    out.finish_reason = of.finish_reason;
    if (of.finish_reason != FinishReason::none) scheduler_.finish(of.id, of.finish_reason);
    if (!out.tokens.empty() || !out.prompt_logprobs.empty() || out.finish_reason != FinishReason::none)
      outputs.push_back(std::move(out));
  }
  return outputs;
}

// n > 1: once the prompt is in the cache, the other answers start from it instead of computing it again.
void Engine::add_forks(const Sequence& parent) {
  std::vector<std::unique_ptr<Sequence>> forks = std::move(requests_.at(request_of_.at(parent.id)).forks);
  for (std::unique_ptr<Sequence>& fork : forks) schedule(std::move(fork));
}

void Engine::forget_finished() {
  for (auto it = sequences_.begin(); it != sequences_.end();) {
    const Sequence& seq = *it->second;
    if (!seq.finished() || scheduler_.holds(seq.id)) {
      ++it;
      continue;
    }
    const std::string request_id = request_of_.at(seq.id);
    if (trace_) trace_->request(to_string(seq.finish_reason), request_id, seq, now());
    request_of_.erase(seq.id);
    it = sequences_.erase(it);
    Request& request = requests_.at(request_id);
    const bool over =
        request.forks.empty() && std::none_of(request.seqs.begin(), request.seqs.end(),
                                              [&](SeqId id) { return sequences_.count(id) > 0; });
    if (over) requests_.erase(request_id);
  }
}

void Engine::check_integrity() const {
  scheduler_.check_integrity();
  std::vector<const Sequence*> live;
  for (const auto& [id, seq] : sequences_)
    if (!seq->block_table.empty()) live.push_back(seq.get());
  blocks_.check_integrity(live);
}

}  // namespace nano
