// Static batches, check_stop, and random workloads under every setting.
#include <random>
#include <set>
#include <vector>

#include "catch.h"
#include "core/scheduler.h"
#include "fake_model.h"

using namespace nano;
using nano_test::fake_prompt;
using nano_test::FakeEngine;
using nano_test::generate_plain;
using Tokens = std::vector<int32_t>;

namespace {

SchedulerConfig static_config(int32_t budget, int32_t max_num_seqs) {
  SchedulerConfig config;
  config.max_num_batched_tokens = budget;
  config.max_num_seqs = max_num_seqs;
  config.max_model_len = 64;
  config.continuous = false;
  return config;
}

Sequence answer(Tokens output, SamplingParams params) {
  Sequence seq;
  seq.num_prompt_tokens = 2;
  seq.tokens = {0, 0};
  seq.tokens.insert(seq.tokens.end(), output.begin(), output.end());
  seq.params = std::move(params);
  return seq;
}

}  // namespace

TEST_CASE("check_stop: EOS, stop ids, min_tokens, lengths") {
  const Tokens eos{7, 8};
  int32_t stop_token = 0;
  auto check = [&](const Tokens& output, const SamplingParams& params, int32_t max_model_len = 100) {
    SchedulerConfig config;
    config.eos_ids = eos;
    config.max_model_len = max_model_len;
    const Ending ending = check_stop(answer(output, params), config);
    stop_token = ending.stop_token;
    return ending.reason;
  };
  SamplingParams params;
  params.max_tokens = 4;
  params.stop_token_ids = {5, 7};
  CHECK(check({1}, params) == FinishReason::none);
  CHECK(check({8}, params) == FinishReason::stop);
  CHECK(stop_token == 8);  // not the first EOS
  CHECK(check({1, 5}, params) == FinishReason::stop);
  CHECK(stop_token == 5);
  CHECK(check({5, 1}, params) == FinishReason::none);  // only the last token counts
  CHECK(stop_token == -1);
  CHECK(check({7}, params) == FinishReason::stop);
  CHECK(stop_token == -1);  // the first EOS, before any stop id
  CHECK(check({1, 1, 1}, params) == FinishReason::none);
  CHECK(check({1, 1, 1, 1}, params) == FinishReason::length);
  CHECK(check({1, 1, 1, 5}, params) == FinishReason::stop);
  CHECK(check({1}, params, 3) == FinishReason::length);
  CHECK(check({1}, params, 4) == FinishReason::none);

  params.ignore_eos = true;
  CHECK(check({8}, params) == FinishReason::none);
  CHECK(check({7}, params) == FinishReason::stop);  // still one of the stop ids
  CHECK(stop_token == 7);
  params.ignore_eos = false;
  params.min_tokens = 2;
  CHECK(check({1, 8}, params) == FinishReason::none);
  CHECK(check({1, 5}, params) == FinishReason::none);
  CHECK(check({1, 1, 8}, params) == FinishReason::stop);
  CHECK(check({1, 1, 5}, params) == FinishReason::stop);
  params.min_tokens = 4;
  CHECK(check({1, 1, 1, 1}, params) == FinishReason::length);
  params.max_tokens.reset();
  CHECK(check(Tokens(50, 1), params) == FinishReason::none);
}

TEST_CASE("static: a batch starts together and ends together; finished rows still compute") {
  FakeEngine engine(static_config(64, 2), 32, 4, false);
  SeqId a = engine.add(fake_prompt(8, 1), 2), b = engine.add(fake_prompt(4, 2), 6),
        c = engine.add(fake_prompt(4, 3), 1);
  StepPlan plan = engine.step();
  CHECK(plan.admitted == std::vector<Admitted>{{a, 0}, {b, 0}});
  CHECK(plan.num_free_blocks == 32 - 3 - 3);  // prompt + max_tokens, at once
  engine.step();
  CHECK(engine.scheduler.holds(a));  // finished, but in its slot
  CHECK(engine.seqs.at(a)->finished());
  CHECK(engine.seqs.at(a)->finish_reason == FinishReason::length);
  engine.scheduler.finish(a, FinishReason::abort);  // too late: a no-op
  CHECK(engine.seqs.at(a)->finish_reason == FinishReason::length);
  for (int32_t i = 2; i < 6; ++i) {
    plan = engine.step();
    REQUIRE(plan.seqs.size() == 2);
    CHECK(plan.num_running == 2);
    CHECK(plan.num_waiting == 1);
    CHECK(plan.seqs[0].id == b);
    const ScheduledSeq& discarded = plan.seqs[1];
    CHECK(discarded.id == a);
    CHECK(discarded.discard);
    CHECK(!discarded.samples);
    CHECK(discarded.first_pos == 9);
    CHECK(discarded.tokens ==
          Tokens{engine.done.count(a) ? engine.done.at(a).output.back() : engine.seqs.at(a)->tokens.back()});
    CHECK(discarded.num_logit_rows() == 1);
  }
  CHECK(!engine.scheduler.holds(a));
  CHECK(engine.blocks.num_free() == 32);
  CHECK(engine.step().admitted == std::vector<Admitted>{{c, 0}});
  CHECK(!engine.scheduler.has_work());
  CHECK(engine.done.at(a).output.size() == 2);
  CHECK(engine.done.at(b).output == generate_plain(fake_prompt(4, 2), nano_test::length(6), 64));
}

TEST_CASE("static: an aborted member is computed on, the last to end frees the batch") {
  FakeEngine engine(static_config(4, 2), 32, 4, true);
  SeqId a = engine.add(fake_prompt(9, 1), 5), b = engine.add(fake_prompt(3, 2), 5);
  engine.step();
  engine.abort(a);  // in the middle of its prompt
  CHECK(engine.scheduler.has_work());
  StepPlan plan = engine.step();
  REQUIRE(plan.seqs.size() == 2);
  CHECK(plan.seqs[1].discard);
  CHECK(plan.seqs[1].first_pos == 8);
  engine.abort(b);
  CHECK(!engine.scheduler.has_work());
  CHECK(engine.blocks.num_free() == 32);
  CHECK(engine.done.at(a).output.empty());
}

TEST_CASE("static: a prompt that needs the whole budget is not held up by finished rows") {
  SchedulerConfig config = static_config(64, 3);
  FakeEngine engine(config, 64, 4, false);
  engine.add(fake_prompt(20, 1), 2);
  engine.add(fake_prompt(20, 3), 2);
  SeqId big = engine.add(fake_prompt(63, 2), 1);
  CHECK(engine.step().num_tokens == 64);  // 20 + 20, and 24 of the 63
  CHECK(engine.step().num_tokens == 41);  // the other 39, and a token of each answer
  CHECK(engine.run(10) == 0);
  CHECK(engine.done.at(big).output.size() == 1);
}

TEST_CASE("static: a prompt is cut as the chunk planner says, or not at all") {
  SchedulerConfig config = static_config(64, 2);
  config.long_prefill_token_threshold = 20;
  FakeEngine chunked(config, 64, 4, false);
  chunked.add(fake_prompt(50, 1), 1);
  std::vector<int32_t> chunks;
  while (chunked.scheduler.has_work()) chunks.push_back(chunked.step().num_tokens);
  CHECK(chunks == Tokens{20, 20, 10});

  config.long_prefill_token_threshold = 0;
  config.enable_chunked_prefill = false;
  FakeEngine whole(config, 64, 4, false);
  whole.add(fake_prompt(40, 1), 2);
  whole.add(fake_prompt(30, 2), 1);
  CHECK(whole.step().num_tokens == 40);  // the second prompt does not fit the 24 that are left
  CHECK(whole.step().num_tokens == 1 + 30);
  CHECK(whole.run(10) == 0);
}

TEST_CASE("scheduler: a failed row ends its request alone, with the reason") {
  SchedulerConfig config = static_config(64, 4);
  config.continuous = true;
  BlockManager blocks(32, 4, true);
  Scheduler scheduler(config, blocks);
  Sequence a = answer({}, {}), b = answer({}, {});
  a.id = 1, b.id = 2;
  scheduler.add(a);
  scheduler.add(b);
  StepPlan plan = scheduler.schedule();
  StepResult result;
  result.step = plan.step;
  result.seqs.push_back({1, 2, {{-1, {}, "all logits are NaN"}}, {}});
  result.seqs.push_back({2, 2, {{5, {}, ""}}, {}});
  scheduler.commit(plan, result);
  CHECK(result.seqs[0].error == "all logits are NaN");
  CHECK(result.seqs[0].finish_reason == FinishReason::error);
  CHECK(result.seqs[0].sampled.empty());
  CHECK(result.seqs[1].finish_reason == FinishReason::none);
  CHECK(a.finished());
  CHECK(a.finish_reason == FinishReason::error);
  CHECK(a.block_table.empty());
  CHECK(!scheduler.holds(1));
  CHECK(b.tokens == Tokens{0, 0, 5});
  CHECK(b.status == SeqStatus::running);
  scheduler.check_integrity();
}

// Requests arrive at random, some are aborted; whatever the setting, each answer is the plain loop's (on equals
// off), each request ends once, in a bounded number of steps, and every block comes home. FakeEngine checks the
// plan's invariants and both check_integrity in each step.
TEST_CASE("scheduler: random workloads under every setting give the plain loop's answers") {
  int64_t preemptions = 0, hits = 0, aborted = 0, eos = 0;
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    CAPTURE(seed);
    std::mt19937 rng(seed);
    SchedulerConfig config;
    config.max_model_len = 32;
    config.max_num_seqs = 1 + int32_t(rng() % 6);
    config.enable_chunked_prefill = rng() % 3 != 0;
    config.max_num_batched_tokens =
        config.enable_chunked_prefill ? config.max_num_seqs + int32_t(rng() % 20) : 32 + int32_t(rng() % 8);
    config.long_prefill_token_threshold = rng() % 3 ? 0 : 3;
    config.continuous = rng() % 4 != 0;
    config.priority_policy = rng() % 3 == 0;
    config.kv_cache = rng() % 5 != 0;
    const int32_t block_size = std::vector<int32_t>{1, 2, 4, 5, 32}[rng() % 5];
    const int32_t pool = (32 + block_size - 1) / block_size + int32_t(rng() % uint32_t(48 / block_size + 1));
    FakeEngine engine(config, pool, block_size, config.kv_cache && rng() % 2);

    std::map<SeqId, std::pair<Tokens, SamplingParams>> requests;
    std::set<SeqId> aborts;
    const int32_t total = 12;
    for (int32_t steps = 0; int32_t(requests.size()) < total || engine.scheduler.has_work(); ++steps) {
      REQUIRE(steps < 3000);
      while (int32_t(requests.size()) < total && (rng() % 2 || !engine.scheduler.has_work())) {
        SamplingParams params;
        params.max_tokens = 1 + int32_t(rng() % 12);
        params.ignore_eos = rng() % 2;
        params.min_tokens = rng() % 4 ? 0 : std::min(3, *params.max_tokens);
        if (rng() % 8 == 0) params.max_tokens.reset();
        if (rng() % 8 == 0) params.prompt_logprobs = 0;
        Tokens prompt = fake_prompt(1 + int32_t(rng() % 24), rng() % 3);
        SeqId sibling = rng() % 3 || requests.empty() ? -1 : requests.rbegin()->first;
        if (sibling >= 0) prompt = requests.at(sibling).first;
        requests[engine.add(prompt, params, int32_t(rng() % 3), sibling)] = {prompt, params};
      }
      if (rng() % 12 == 0 && aborts.size() < 4) {  // few, or they would end what hangs
        SeqId id = 1 + SeqId(rng() % requests.size());
        if (engine.done.count(id) == 0 && !engine.seqs.at(id)->finished()) aborts.insert(id);
        engine.abort(id);
      }
      if (!engine.scheduler.has_work()) continue;
      REQUIRE(!engine.step().empty());
    }
    REQUIRE(engine.blocks.num_free() == pool);
    REQUIRE(engine.done.size() == size_t(total));
    for (auto& [id, request] : requests) {
      const FakeEngine::Done& done = engine.done.at(id);
      Tokens expected = generate_plain(request.first, request.second, config.max_model_len);
      if (aborts.count(id)) {
        REQUIRE(done.reason == FinishReason::abort);
        REQUIRE(done.output.size() <= expected.size());
        expected.resize(done.output.size());
      } else {
        REQUIRE(done.reason != FinishReason::abort);
        eos += done.reason == FinishReason::stop;
      }
      REQUIRE(done.output == expected);
      hits += done.num_cached_tokens > 0;
    }
    if (!config.continuous) REQUIRE(engine.scheduler.num_preemptions() == 0);
    preemptions += engine.scheduler.num_preemptions();
    aborted += int64_t(aborts.size());
  }
  CHECK(preemptions > 200);  // the workload is hard enough to mean something
  CHECK(hits > 200);
  CHECK(aborted > 200);
  CHECK(eos > 200);
}

TEST_CASE("scheduler: fcfs never lets a later request overtake: first tokens come in order of arrival") {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    std::mt19937 rng(seed);
    SchedulerConfig config;
    config.max_model_len = 48;
    config.max_num_seqs = 3;
    config.max_num_batched_tokens = 7;
    FakeEngine engine(config, 24, 2, seed % 2);
    for (uint64_t i = 0; i < 10; ++i)
      engine.add(fake_prompt(1 + int32_t(rng() % 30), i), 1 + int32_t(rng() % 10));
    SeqId last_admitted = 0;
    std::set<SeqId> seen;
    for (int32_t steps = 0; engine.scheduler.has_work(); ++steps) {
      REQUIRE(steps < 1000);
      StepPlan plan = engine.step();
      for (const auto& [id, cached] : plan.admitted)
        if (seen.insert(id).second) {
          REQUIRE(id > last_admitted);
          last_admitted = id;
        }
    }
  }
}
