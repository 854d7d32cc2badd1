// A model without tensors, and an engine loop around it: the scheduler's tests run real schedules in microseconds.
//
// The "K and V" of a position is a number made of its token and of the numbers of all positions before it, read
// back from the cache through the block table. So a wrong block, a stale slot or a position that was never computed
// changes every later token; and the plain loop (generate_plain) says what the tokens must be.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "catch.h"
#include "core/block_manager.h"
#include "core/scheduler.h"
#include "core/step.h"

namespace nano_test {

constexpr int32_t fake_vocab = 13;
constexpr int32_t fake_eos = 0;

inline uint64_t fake_mix(uint64_t h, uint64_t value) {
  h = (h ^ value) * 0x9e3779b97f4a7c15u;
  return h ^ (h >> 29);
}

// The value of position p, where value_of(q) reads that of an earlier one.
template <typename ValueOf>
uint64_t fake_value(int32_t token, int32_t p, ValueOf value_of) {
  uint64_t h = fake_mix(uint64_t(p) + 1, uint64_t(token));
  for (int32_t q = 0; q < p; ++q) h = fake_mix(h, value_of(q));
  return h;
}

// An answer of just so many tokens.
inline nano::SamplingParams length(int32_t max_tokens) {
  nano::SamplingParams params;
  params.max_tokens = max_tokens;
  params.ignore_eos = true;
  return params;
}

// Greedy answer of a lone request, by recomputing everything for each token.
inline std::vector<int32_t> generate_plain(std::vector<int32_t> tokens, const nano::SamplingParams& params,
                                           int32_t max_model_len) {
  std::vector<int32_t> output;
  std::vector<uint64_t> values;
  while (true) {
    for (int32_t p = int32_t(values.size()); p < int32_t(tokens.size()); ++p)
      values.push_back(fake_value(tokens[size_t(p)], p, [&](int32_t q) { return values[size_t(q)]; }));
    int32_t next = int32_t(values.back() % fake_vocab);
    tokens.push_back(next);
    output.push_back(next);
    if (next == fake_eos && !params.ignore_eos && int32_t(output.size()) > params.min_tokens) return output;
    if (int32_t(tokens.size()) >= max_model_len) return output;
    if (params.max_tokens && int32_t(output.size()) >= *params.max_tokens) return output;
  }
}

struct FakeEngine {
  struct Done {
    std::vector<int32_t> output;
    nano::FinishReason reason;
    int32_t num_cached_tokens;
  };

  FakeEngine(const nano::SchedulerConfig& config_, int32_t num_blocks, int32_t block_size, bool caching,
             nano::HashFunction hash = nano::hash_block)
      : config(with_eos(config_)),
        blocks(num_blocks, block_size, caching, hash),
        scheduler(config, blocks),
        kv(size_t(num_blocks * block_size), 0xdead) {}

  static nano::SchedulerConfig with_eos(nano::SchedulerConfig config) {
    config.eos_ids = {fake_eos};
    return config;
  }

  nano::SeqId add(std::vector<int32_t> prompt, nano::SamplingParams params, int32_t priority = 0,
                  nano::SeqId fork_of = -1) {
    auto seq = std::make_unique<nano::Sequence>();
    seq->id = next_id;
    seq->num_prompt_tokens = int32_t(prompt.size());
    seq->tokens = std::move(prompt);
    seq->params = std::move(params);
    seq->priority = priority;
    seq->arrival = next_id;
    seq->fork_of = fork_of;
    REQUIRE(scheduler.why_not(*seq) == "");
    scheduler.add(*seq);
    seqs[next_id] = std::move(seq);
    return next_id++;
  }

  nano::SeqId add(std::vector<int32_t> prompt, int32_t max_tokens) {
    return add(std::move(prompt), length(max_tokens));
  }

  void abort(nano::SeqId id) {
    scheduler.finish(id, nano::FinishReason::abort);
    collect();
  }

  nano::StepPlan step() {
    nano::StepPlan plan = scheduler.schedule();
    nano::check_plan(plan, config.max_num_batched_tokens, blocks.block_size());
    scheduler.check_integrity();
    REQUIRE(plan.num_running <= config.max_num_seqs);
    result = compute(plan);
    if (before_commit) before_commit(plan);
    scheduler.commit(plan, result);
    collect();
    scheduler.check_integrity();
    return plan;
  }

  // Steps until nothing is left; fails when that takes more than `limit`.
  int32_t run(int32_t limit = 10000) {
    int32_t steps = 0;
    for (; scheduler.has_work(); ++steps) {
      REQUIRE(steps < limit);
      REQUIRE(!step().empty());
    }
    REQUIRE(blocks.num_free() == blocks.num_blocks());
    REQUIRE(scheduler.num_running() + scheduler.num_waiting() == 0);
    return steps;
  }

  nano::StepResult compute(const nano::StepPlan& plan) {
    nano::StepResult r;
    r.step = plan.step;
    for (const nano::ScheduledSeq& s : plan.seqs) {
      auto slot = [&](int32_t p) -> uint64_t& {
        const int32_t B = blocks.block_size();
        return kv[size_t(s.block_table[size_t(p / B)] * B + p % B)];
      };
      for (int32_t i = 0; i < s.num_tokens(); ++i)
        slot(s.first_pos + i) = fake_value(s.tokens[size_t(i)], s.first_pos + i, slot);
      num_computed += s.num_tokens();
      r.seqs.push_back({s.id, s.num_tokens(), {}, {}});
      uint64_t last = slot(s.first_pos + s.num_tokens() - 1);
      if (s.samples) r.seqs.back().sampled.push_back({int32_t(last % fake_vocab), {}, ""});
    }
    return r;
  }

  void collect() {
    for (auto it = seqs.begin(); it != seqs.end();) {
      const nano::Sequence& seq = *it->second;
      if (!seq.finished() || scheduler.holds(seq.id)) {
        ++it;
        continue;
      }
      std::vector<int32_t> output(seq.tokens.begin() + seq.num_prompt_tokens, seq.tokens.end());
      REQUIRE(done.count(seq.id) == 0);  // everything ends once
      done[seq.id] = {output, seq.finish_reason, seq.num_cached_tokens};
      it = seqs.erase(it);
    }
  }

  const nano::SchedulerConfig config;
  nano::BlockManager blocks;
  nano::Scheduler scheduler;
  std::vector<uint64_t> kv;
  std::map<nano::SeqId, std::unique_ptr<nano::Sequence>> seqs;
  std::map<nano::SeqId, Done> done;
  nano::StepResult result;  // of the last step
  nano::SeqId next_id = 1;
  int64_t num_computed = 0;  // tokens, over all steps
  std::function<void(const nano::StepPlan&)> before_commit;
};

// n tokens of a small alphabet, different for each seed.
inline std::vector<int32_t> fake_prompt(int32_t n, uint64_t seed) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < n; ++i)
    tokens.push_back(int32_t(fake_mix(seed * 1000 + 7, uint64_t(i)) % fake_vocab));
  return tokens;
}

}  // namespace nano_test
