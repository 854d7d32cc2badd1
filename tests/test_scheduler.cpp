// Scenarios. Random workloads are in test_scheduler_random.cpp.
#include <vector>

#include "aborts.h"
#include "base/error.h"
#include "catch.h"
#include "core/scheduler.h"
#include "fake_model.h"

using namespace nano;
using nano_test::fake_prompt;
using nano_test::FakeEngine;
using nano_test::generate_plain;
using nano_test::length;
using Ids = std::vector<SeqId>;
using Tokens = std::vector<int32_t>;

namespace {

SchedulerConfig limits(int32_t budget, int32_t max_num_seqs, int32_t max_model_len = 64) {
  SchedulerConfig config;
  config.max_num_batched_tokens = budget;
  config.max_num_seqs = max_num_seqs;
  config.max_model_len = max_model_len;
  return config;
}

Ids ids_of(const StepPlan& plan) {
  Ids ids;
  for (const ScheduledSeq& seq : plan.seqs) ids.push_back(seq.id);
  return ids;
}

Ids admitted_ids(const StepPlan& plan) {
  Ids ids;
  for (const Admitted& admitted : plan.admitted) ids.push_back(admitted.id);
  return ids;
}

Sequence prompt_only(int32_t num_tokens, std::optional<int32_t> max_tokens) {
  Sequence seq;
  seq.tokens = fake_prompt(num_tokens, 1);
  seq.num_prompt_tokens = num_tokens;
  seq.params.max_tokens = max_tokens;
  return seq;
}

}  // namespace

TEST_CASE("scheduler: chunks of the prompt, then one token a step") {
  FakeEngine engine(limits(4, 2), 16, 4, false);
  SeqId id = engine.add(fake_prompt(10, 1), 3);
  StepPlan plan = engine.step();
  REQUIRE(plan.seqs.size() == 1);
  CHECK(plan.admitted == std::vector<Admitted>{{id, 0}});
  CHECK(plan.num_tokens == 4);
  CHECK(plan.seqs[0].first_pos == 0);
  CHECK(!plan.seqs[0].samples);
  CHECK(plan.seqs[0].num_logit_rows() == 0);
  CHECK(plan.seqs[0].num_new_blocks == 1);
  engine.step();
  plan = engine.step();
  CHECK(plan.seqs[0].first_pos == 8);
  CHECK(plan.seqs[0].num_tokens() == 2);
  CHECK(plan.seqs[0].samples);
  CHECK(plan.seqs[0].num_logit_rows() == 1);
  plan = engine.step();
  CHECK(plan.seqs[0].first_pos == 10);
  CHECK(plan.seqs[0].num_tokens() == 1);
  CHECK(plan.seqs[0].num_new_blocks == 0);
  CHECK(engine.run() == 1);
  CHECK(engine.done.at(id).output == generate_plain(fake_prompt(10, 1), length(3), 64));
  CHECK(engine.done.at(id).reason == FinishReason::length);
  CHECK(engine.done.at(id).num_cached_tokens == 0);
  CHECK(engine.scheduler.schedule().empty());
}

TEST_CASE(
    "K1 the number of prefill steps is ceil(29 / chunk), the pool use never above the prompt's, ids equal") {
  const Tokens prompt = fake_prompt(29, 5), expected = generate_plain(prompt, length(1), 64);
  for (int32_t chunk : {1, 3, 4, 5, 28, 29, 64}) {
    for (bool caching : {false, true}) {
      CAPTURE(chunk, caching);
      FakeEngine engine(limits(chunk, 1), 16, 4, caching);
      SeqId id = engine.add(prompt, 1);
      int32_t steps = 0, used = 0;
      for (; engine.scheduler.has_work(); ++steps) used = std::max(used, 16 - engine.step().num_free_blocks);
      CHECK(steps == (29 + chunk - 1) / chunk);
      CHECK(used == 8);
      CHECK(engine.done.at(id).output == expected);
    }
  }
}

TEST_CASE("S1 a sequence that cannot fit the whole pool is refused, and the next one answers") {
  FakeEngine engine(limits(64, 4), 6, 4, true);
  CHECK(engine.scheduler.why_not(prompt_only(30, 1)).find("needs 8 KV cache blocks, but there are 6") !=
        std::string::npos);
  CHECK(engine.scheduler.why_not(prompt_only(20, 5)).empty());  // its 25th token is sampled, never computed
  CHECK(!engine.scheduler.why_not(prompt_only(20, 6)).empty());
  CHECK(!engine.scheduler.why_not(prompt_only(20, std::nullopt)).empty());
  CHECK(!engine.scheduler.why_not(prompt_only(20, 2147483647)).empty());
  SeqId id = engine.add(fake_prompt(4, 2), 3);
  SeqId full = engine.add(fake_prompt(20, 3), 5);
  engine.run();
  CHECK(engine.done.at(id).output.size() == 3);
  CHECK(engine.done.at(full).output.size() == 5);
}

TEST_CASE("scheduler: prompts that are empty or leave no room for an answer are refused with the numbers") {
  FakeEngine engine(limits(64, 4), 16, 4, true);
  CHECK(engine.scheduler.why_not(prompt_only(0, 1)) == "the prompt is empty");
  CHECK(engine.scheduler.why_not(prompt_only(63, 1)).empty());
  std::string reason = engine.scheduler.why_not(prompt_only(64, 1));
  CHECK(reason.find("64 tokens") != std::string::npos);
  reason = engine.scheduler.why_not(prompt_only(99, 1));
  CHECK(reason.find("prompt has 99 tokens") != std::string::npos);
  CHECK(reason.find("at most 64 tokens") != std::string::npos);
  Sequence bad = prompt_only(99, 1);
  CHECK(nano_test::aborts([&] { engine.scheduler.add(bad); }));
}

TEST_CASE("S2 limits that would stall are an error at start") {
  BlockManager blocks(16, 4, false);
  SchedulerConfig config = limits(16, 4);
  CHECK_THROWS_AS(Scheduler(limits(3, 4), blocks), Error);
  CHECK_THROWS_AS(Scheduler(limits(3, 0), blocks), Error);
  config.enable_chunked_prefill = false;
  CHECK_THROWS_AS(Scheduler(config, blocks), Error);
  config.max_num_batched_tokens = 64;
  CHECK(Scheduler(config, blocks).why_not(prompt_only(63, 1)).empty());
  config.long_prefill_token_threshold = 65;
  CHECK_THROWS_AS(Scheduler(config, blocks), Error);
}

TEST_CASE("S3 a decoding request gains a token in every step while another's 40-chunk prompt is prefilled") {
  FakeEngine engine(limits(4, 4, 256), 64, 4, false);
  SeqId a = engine.add(fake_prompt(3, 1), 100);
  engine.step();
  SeqId b = engine.add(fake_prompt(120, 2), 2);
  int32_t steps = 0;
  while (engine.seqs.at(b)->num_output_tokens() == 0) {
    int32_t before = engine.seqs.at(a)->num_output_tokens();
    StepPlan plan = engine.step();
    ++steps;
    REQUIRE(plan.num_tokens <= 4);
    REQUIRE(engine.seqs.at(a)->num_output_tokens() == before + 1);
  }
  CHECK(steps == 40);  // 3 of the 4 tokens; alone it takes 30
  engine.run();
}

TEST_CASE("scheduler: with chunked prefill off a prompt that does not fit waits, and is not overtaken") {
  SchedulerConfig config = limits(64, 4);
  config.enable_chunked_prefill = false;
  FakeEngine engine(config, 64, 4, false);
  SeqId a = engine.add(fake_prompt(40, 1), 4), b = engine.add(fake_prompt(30, 2), 4),
        c = engine.add(fake_prompt(2, 3), 4);
  StepPlan plan = engine.step();
  CHECK(ids_of(plan) == Ids{a});
  CHECK(plan.num_waiting == 2);
  CHECK(ids_of(engine.step()) == Ids{a, b, c});
  engine.run();
}

TEST_CASE("scheduler: with chunked prefill off a running one that does not fit is only skipped") {
  SchedulerConfig config = limits(64, 4);
  config.enable_chunked_prefill = false;
  config.kv_cache = false;  // so that running ones have more than one token to compute
  FakeEngine engine(config, 64, 4, false);
  SeqId a = engine.add(fake_prompt(40, 1), 4), b = engine.add(fake_prompt(22, 2), 4);
  engine.step();
  SeqId c = engine.add(fake_prompt(1, 3), 4);
  CHECK(ids_of(engine.step()) == Ids{a, b});  // 41 + 23 tokens
  CHECK(ids_of(engine.step()) == Ids{a, c});  // b needs 24, 22 are left
  engine.run();
  CHECK(engine.done.at(b).output == generate_plain(fake_prompt(22, 2), length(4), 64));
}

TEST_CASE("scheduler: decodes first, running prompts next, waiting ones get what they leave") {
  FakeEngine engine(limits(16, 4), 64, 4, false);
  SeqId a = engine.add(fake_prompt(3, 1), 9), b = engine.add(fake_prompt(30, 2), 2);
  CHECK(engine.step().seqs[1].num_tokens() == 13);
  SeqId c = engine.add(fake_prompt(20, 3), 2);
  StepPlan plan = engine.step();  // 1 of a, 15 of b, nothing is left
  CHECK(ids_of(plan) == Ids{a, b});
  CHECK(plan.seqs[1].num_tokens() == 15);
  plan = engine.step();  // 1 of a, the last 2 of b, 13 of c
  REQUIRE(ids_of(plan) == Ids{a, b, c});
  CHECK(plan.seqs[1].num_tokens() == 2);
  CHECK(plan.seqs[2].num_tokens() == 13);
  engine.run();
}

TEST_CASE("scheduler: the long-prefill threshold leaves room for others") {
  SchedulerConfig config = limits(16, 4);
  config.long_prefill_token_threshold = 6;
  FakeEngine engine(config, 64, 4, false);
  engine.add(fake_prompt(30, 1), 2);
  engine.add(fake_prompt(5, 2), 2);
  StepPlan plan = engine.step();
  REQUIRE(plan.seqs.size() == 2);
  CHECK(plan.seqs[0].num_tokens() == 6);
  CHECK(plan.seqs[1].num_tokens() == 5);
  engine.run();
}

TEST_CASE("scheduler: the last running one is preempted, goes to the front, and finds its blocks again") {
  FakeEngine engine(limits(32, 2), 6, 4, true);
  SeqId a = engine.add(fake_prompt(8, 1), 12), b = engine.add(fake_prompt(8, 2), 12),
        c = engine.add(fake_prompt(4, 3), 2);  // waits for a slot
  CHECK(ids_of(engine.step()) == Ids{a, b});
  StepPlan plan;
  for (int32_t steps = 0; plan.preempted.empty(); ++steps) {
    REQUIRE(steps < 20);
    plan = engine.step();
  }
  CHECK(plan.preempted == Ids{b});
  CHECK(ids_of(plan) == Ids{a});
  CHECK(plan.admitted.empty());  // though c would fit
  CHECK(engine.seqs.at(b)->num_computed_tokens == 0);
  CHECK(engine.seqs.at(b)->num_output_tokens() > 0);
  for (int32_t steps = 0; plan.admitted.empty(); ++steps) {
    REQUIRE(steps < 20);
    plan = engine.step();
  }
  CHECK(plan.admitted.front().id == b);  // not c
  const ScheduledSeq* again = nullptr;
  for (const ScheduledSeq& seq : plan.seqs)
    if (seq.id == b) again = &seq;
  REQUIRE(again != nullptr);
  CHECK(again->first_pos > 0);  // recomputed with a prefix hit
  engine.run();
  CHECK(engine.done.at(b).num_cached_tokens == 0);  // counted at the first admission
  CHECK(engine.scheduler.num_preemptions() == 1);
  CHECK(engine.done.at(a).output == generate_plain(fake_prompt(8, 1), length(12), 64));
  CHECK(engine.done.at(b).output == generate_plain(fake_prompt(8, 2), length(12), 64));
  CHECK(engine.done.at(c).output == generate_plain(fake_prompt(4, 3), length(2), 64));
}

TEST_CASE("scheduler: priority orders the queue and names the victim, even one that had its turn") {
  SchedulerConfig config = limits(32, 2);
  config.priority_policy = true;
  FakeEngine engine(config, 6, 4, false);
  SeqId worst = engine.add(fake_prompt(8, 1), length(12), 9);
  engine.step();
  SeqId late = engine.add(fake_prompt(8, 2), length(12), 5),
        urgent = engine.add(fake_prompt(8, 3), length(12), 1);
  StepPlan plan = engine.step();
  CHECK(ids_of(plan) == Ids{worst, urgent});  // two slots; late waits
  for (int32_t steps = 0; plan.preempted.empty(); ++steps) {
    REQUIRE(steps < 20);
    plan = engine.step();
  }
  CHECK(plan.preempted == Ids{worst});
  CHECK(ids_of(plan) == Ids{urgent});
  CHECK(plan.num_tokens == 1);
  CHECK(ids_of(engine.step()) == Ids{urgent, late});
  engine.run();
  for (auto [id, seed] : {std::pair{worst, 1}, {late, 2}, {urgent, 3}})
    CHECK(engine.done.at(id).output == generate_plain(fake_prompt(8, uint64_t(seed)), length(12), 64));
}

TEST_CASE("scheduler: in one step an earlier victim is not enough, and the one that asked goes too") {
  SchedulerConfig config = limits(32, 4);
  config.priority_policy = true;
  config.long_prefill_token_threshold = 8;
  FakeEngine engine(config, 9, 4, false);
  const SeqId worst = engine.add(fake_prompt(1, 1), length(12), 9);
  engine.step();
  const SeqId big = engine.add(fake_prompt(24, 2), length(3), 5),
              urgent = engine.add(fake_prompt(12, 3), length(3), 1);
  CHECK(ids_of(engine.step()) == Ids{worst, urgent, big});  // 1 + 2 + 2 blocks
  CHECK(ids_of(engine.step()) == Ids{worst, urgent, big});  // 1 + 3 + 4
  // urgent takes the last free block; big needs two more, worst has one to give.
  const StepPlan plan = engine.step();
  CHECK(plan.preempted == Ids{worst, big});
  CHECK(ids_of(plan) == Ids{urgent});
  CHECK(plan.num_tokens == 1);  // the budget has back what worst was planned
  CHECK(plan.num_free_blocks == 5);
  CHECK(plan.num_waiting == 2);
  CHECK(engine.scheduler.num_preemptions() == 2);
  while (engine.done.count(urgent) == 0)
    CHECK(engine.step().admitted.empty());  // six blocks are not free before
  CHECK(admitted_ids(engine.step()) == Ids{big, worst});
  engine.run();
  CHECK(engine.done.at(worst).output == generate_plain(fake_prompt(1, 1), length(12), 64));
  CHECK(engine.done.at(big).output == generate_plain(fake_prompt(24, 2), length(3), 64));
  CHECK(engine.done.at(urgent).output == generate_plain(fake_prompt(12, 3), length(3), 64));
}

TEST_CASE("scheduler: equal priorities go by arrival") {
  SchedulerConfig config = limits(32, 1);
  config.priority_policy = true;
  FakeEngine engine(config, 16, 4, false);
  SeqId a = engine.add(fake_prompt(4, 1), length(1), 3), b = engine.add(fake_prompt(4, 2), length(1), 3),
        c = engine.add(fake_prompt(4, 3), length(1), -2);
  CHECK(ids_of(engine.step()) == Ids{c});
  CHECK(ids_of(engine.step()) == Ids{a});
  CHECK(ids_of(engine.step()) == Ids{b});
}

TEST_CASE(
    "S5 eight requests of four times the pool, two slots, aborts: all end in a bounded number of steps") {
  for (bool priority : {false, true}) {
    SchedulerConfig config = limits(16, 2);
    config.priority_policy = priority;
    FakeEngine engine(config, 8, 4, true);  // 32 slots; 8 requests of 16
    for (uint64_t i = 0; i < 8; ++i) engine.add(fake_prompt(8, i), length(9), int32_t(i * 5 % 3));
    for (int32_t steps = 0; engine.scheduler.has_work(); ++steps) {
      REQUIRE(steps < 200);
      REQUIRE(!engine.step().empty());
      if (steps == 3) engine.abort(1);
      if (steps == 9) engine.abort(4);
    }
    CHECK(engine.done.size() == 8);
    CHECK(engine.blocks.num_free() == 8);
  }
}

TEST_CASE("scheduler: a fork starts from its sibling's computed prompt and gives the same answer") {
  for (bool caching : {false, true}) {
    CAPTURE(caching);
    FakeEngine engine(limits(64, 4), 32, 4, caching);
    const Tokens prompt = fake_prompt(10, 1);
    SeqId first = engine.add(prompt, length(5), 0, -1);
    engine.step();
    SeqId second = engine.add(prompt, length(5), 0, first), orphan = engine.add(prompt, length(5), 0, 999);
    StepPlan plan = engine.step();
    REQUIRE(plan.seqs.size() == 3);
    CHECK(plan.seqs[1].first_pos == 8);
    CHECK(plan.seqs[2].first_pos == (caching ? 8 : 0));
    CHECK(plan.seqs[1].block_table[1] == plan.seqs[0].block_table[1]);
    CHECK(plan.seqs[1].block_table[2] != plan.seqs[0].block_table[2]);
    engine.run();
    for (SeqId id : {first, second, orphan})
      CHECK(engine.done.at(id).output == generate_plain(prompt, length(5), 64));
  }
}

TEST_CASE("scheduler: the example of listing.cpp, what a plan says of a sequence that found cached blocks") {
  FakeEngine engine(limits(16, 2), 16, 4, true);
  engine.add(fake_prompt(9, 1), 1);
  engine.run();
  const SeqId id = engine.add(fake_prompt(11, 1), 2);
  const StepPlan first = engine.step(), second = engine.step();
  REQUIRE(first.seqs.size() == 1);
  CHECK(first.admitted == std::vector<Admitted>{{id, 8}});
  CHECK(first.seqs[0].first_pos == 8);
  CHECK(first.seqs[0].num_tokens() == 3);
  CHECK(first.seqs[0].block_table.size() == 3);
  CHECK(first.seqs[0].num_new_blocks == 3);
  CHECK(first.seqs[0].samples);
  CHECK(first.seqs[0].first_logit_row == 2);
  REQUIRE(second.seqs.size() == 1);
  CHECK(second.seqs[0].first_pos == 11);
  CHECK(second.seqs[0].num_tokens() == 1);
  CHECK(second.seqs[0].num_new_blocks == 0);
  CHECK(second.seqs[0].first_logit_row == 0);
}

TEST_CASE("B6 prompt log-probabilities: the cache is not read, every prompt row is asked for once") {
  SamplingParams params = length(12);
  params.prompt_logprobs = 2;
  FakeEngine engine(limits(4, 4), 6, 4, true);
  engine.add(fake_prompt(8, 7), length(12), 0, -1);  // fills the cache, and preempts the other later
  engine.step();
  engine.step();
  SeqId id = engine.add(fake_prompt(8, 7), params);
  Tokens rows;
  for (int32_t steps = 0; engine.scheduler.has_work(); ++steps) {
    REQUIRE(steps < 100);
    engine.before_commit = [&](const StepPlan& plan) {
      for (const ScheduledSeq& seq : plan.seqs)
        for (int32_t i = seq.first_logit_row; seq.id == id && i < seq.num_tokens(); ++i)
          if (seq.first_pos + i < 7) rows.push_back(seq.first_pos + i);
    };
    engine.step();
  }
  CHECK(engine.scheduler.num_preemptions() > 0);
  CHECK(rows == Tokens{0, 1, 2, 3, 4, 5, 6});
  CHECK(engine.done.at(id).num_cached_tokens == 0);
  CHECK(engine.done.at(id).output == generate_plain(fake_prompt(8, 7), params, 64));
}

TEST_CASE("scheduler: without a KV cache every step starts at position 0") {
  SchedulerConfig config = limits(64, 4);
  config.kv_cache = false;
  FakeEngine engine(config, 32, 4, false);
  SeqId a = engine.add(fake_prompt(30, 1), 5), b = engine.add(fake_prompt(40, 2), 5);
  StepPlan plan = engine.step();
  CHECK(plan.seqs[0].num_tokens() == 30);
  plan = engine.step();
  CHECK(plan.seqs[0].first_pos == 0);
  CHECK(plan.seqs[0].num_tokens() == 31);
  CHECK(plan.seqs[0].num_logit_rows() == 1);
  engine.run();
  CHECK(engine.done.at(a).output == generate_plain(fake_prompt(30, 1), length(5), 64));
  CHECK(engine.done.at(b).output == generate_plain(fake_prompt(40, 2), length(5), 64));
}

TEST_CASE("scheduler: without a KV cache a small budget still gets to the end, chunk by chunk") {
  SchedulerConfig config = limits(8, 2);
  config.kv_cache = false;
  FakeEngine engine(config, 32, 4, false);
  SeqId id = engine.add(fake_prompt(20, 1), 5);
  CHECK(engine.run(100) == 15);  // 20 to 24 tokens, three chunks each
  CHECK(engine.done.at(id).output == generate_plain(fake_prompt(20, 1), length(5), 64));
}
