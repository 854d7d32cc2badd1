#include <map>
#include <random>
#include <vector>

#include "aborts.h"
#include "catch.h"
#include "core/block_manager.h"
#include "fake_model.h"
#include "naive.h"

using namespace nano;
using nano_test::aborts;
using nano_test::FakeEngine;
using Tokens = std::vector<int32_t>;
using Blocks = std::vector<BlockId>;
using Kind = BlockEvent::Kind;

namespace {

BlockHash constant_hash(BlockHash, std::span<const int32_t>) { return 7; }

Sequence sequence(SeqId id, Tokens tokens) {
  Sequence seq;
  seq.id = id;
  seq.num_prompt_tokens = int32_t(tokens.size());
  seq.tokens = std::move(tokens);
  return seq;
}

// All tokens computed, as after a step.
void compute(BlockManager& blocks, Sequence& seq) {
  REQUIRE(blocks.grow(seq, seq.num_tokens()));
  seq.num_computed_tokens = seq.num_tokens();
  blocks.cache_computed(seq);
}

void check(const BlockManager& blocks, std::vector<const Sequence*> live) { blocks.check_integrity(live); }

Tokens range(int32_t first, int32_t count) {
  Tokens tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

SchedulerConfig case_config() {
  SchedulerConfig config;
  config.max_num_batched_tokens = config.max_model_len = 64;
  config.max_num_seqs = 4;
  return config;
}

}  // namespace

TEST_CASE("block manager: grow allocates in order, all or nothing") {
  BlockManager blocks(4, 4, false);
  Sequence a = sequence(1, range(0, 20)), b = sequence(2, range(0, 4));
  CHECK(blocks.blocks_for(0) == 0);
  CHECK(blocks.blocks_for(4) == 1);
  CHECK(blocks.blocks_for(5) == 2);
  CHECK(blocks.blocks_for(2147483647) == 536870912);
  CHECK(blocks.grow(a, 5));
  CHECK(a.block_table == Blocks{0, 1});
  CHECK(blocks.grow(a, 8));
  CHECK(blocks.grow(a, 1));
  CHECK(a.block_table.size() == 2);
  CHECK(blocks.num_free() == 2);
  CHECK(!blocks.can_grow(a, 20));
  CHECK(!blocks.grow(a, 20));
  CHECK(a.block_table.size() == 2);
  CHECK(blocks.num_free() == 2);
  CHECK(blocks.can_grow(a, 16));
  CHECK(blocks.grow(b, 4));
  check(blocks, {&a, &b});
  blocks.release(a);
  blocks.release(b);
  CHECK(a.block_table.empty());
  CHECK(blocks.num_free() == 4);
  check(blocks, {});
}

TEST_CASE("block manager: unknown blocks are reused first, known ones last, tails before heads") {
  BlockManager blocks(6, 2, true);
  Sequence a = sequence(1, Tokens{1, 2, 3, 4, 5}), b = sequence(2, range(50, 11));
  compute(blocks, a);  // blocks 0 and 1 full, 2 half full
  REQUIRE(a.block_table == Blocks{0, 1, 2});
  blocks.release(a);
  REQUIRE(blocks.grow(b, 11));
  CHECK(b.block_table == Blocks{2, 3, 4, 5, 1, 0});
  CHECK(blocks.num_evictions() == 2);
}

TEST_CASE("block manager: cached blocks that are free do not count twice") {
  BlockManager blocks(3, 2, true);
  Sequence a = sequence(1, Tokens{1, 2, 3, 4});
  compute(blocks, a);
  blocks.release(a);
  Sequence b = sequence(2, Tokens{1, 2, 3, 4, 5, 6, 7});
  Blocks hit = blocks.match_prefix(b);
  REQUIRE(hit.size() == 2);
  CHECK(blocks.num_free() == 3);
  CHECK(blocks.can_grow(b, 6, hit));
  CHECK(!blocks.can_grow(b, 7, hit));
  blocks.take_cached(b, hit);
  CHECK(b.num_computed_tokens == 4);
  CHECK(blocks.num_free() == 1);
  CHECK(blocks.grow(b, 6));
  CHECK(!blocks.grow(b, 7));
  Sequence c = sequence(3, Tokens{1, 2, 3, 4, 5, 6});  // a hit on blocks in use costs nothing
  CHECK(blocks.can_grow(c, 4, blocks.match_prefix(c)));
  CHECK(!blocks.can_grow(c, 5, blocks.match_prefix(c)));
  check(blocks, {&b});
  CHECK(blocks.queried_tokens() == 7);
  CHECK(blocks.hit_tokens() == 4);
}

TEST_CASE("block manager: fork shares full computed blocks, never the child's last token") {
  BlockManager blocks(8, 2, false);
  Sequence parent = sequence(1, Tokens{1, 2, 3, 4, 5});
  REQUIRE(blocks.grow(parent, 5));
  parent.num_computed_tokens = 5;
  Sequence same = sequence(2, Tokens{1, 2, 3, 4, 5}), whole = sequence(3, Tokens{1, 2, 3, 4}),
           other = sequence(4, Tokens{1, 2, 9, 4, 5});
  blocks.fork(parent, same);
  blocks.fork(parent, whole);
  blocks.fork(parent, other);
  CHECK(same.block_table == Blocks{0, 1});
  CHECK(same.num_computed_tokens == 4);
  CHECK(whole.block_table == Blocks{0});
  CHECK(whole.num_computed_tokens == 2);
  CHECK(other.block_table == Blocks{0});
  check(blocks, {&parent, &same, &whole, &other});
  blocks.release(parent);
  CHECK(blocks.num_free() == 6);  // the children still hold two
  parent.num_computed_tokens = 1;
  CHECK(blocks.match_fork(parent, same).empty());
  check(blocks, {&same, &whole, &other});
}

TEST_CASE("block manager: without caching nothing is found, nothing is evicted") {
  BlockManager blocks(4, 2, false);
  Sequence a = sequence(1, range(0, 8));
  compute(blocks, a);
  blocks.release(a);
  CHECK(blocks.match_prefix(a).empty());
  compute(blocks, a);
  CHECK(blocks.num_evictions() == 0);
  blocks.release(a);
  blocks.take_cached(a, {});
  CHECK(blocks.queried_tokens() == 0);
}

TEST_CASE("block manager: events tell what happened, in order") {
  BlockManager blocks(2, 2, true);
  std::vector<BlockEvent> events;
  blocks.record_events(&events);
  Sequence a = sequence(1, Tokens{1, 2, 3}), b = sequence(2, Tokens{1, 2, 4}),
           c = sequence(3, Tokens{1, 2, 5});
  compute(blocks, a);
  blocks.fork(a, c);
  blocks.release(c);
  blocks.release(a);
  blocks.take_cached(b, blocks.match_prefix(b));
  compute(blocks, b);
  blocks.release(b);
  Sequence d = sequence(4, Tokens{7, 7, 7});
  compute(blocks, d);
  std::vector<BlockEvent> expected{{Kind::allocated, 1, 0}, {Kind::allocated, 1, 1}, {Kind::cached, 1, 0},
                                   {Kind::shared, 3, 0},    {Kind::freed, 3, 0},     {Kind::freed, 1, 1},
                                   {Kind::freed, 1, 0},     {Kind::hit, 2, 0},       {Kind::allocated, 2, 1},
                                   {Kind::freed, 2, 1},     {Kind::freed, 2, 0},     {Kind::allocated, 4, 1},
                                   {Kind::evicted, -1, 0},  {Kind::allocated, 4, 0}, {Kind::cached, 4, 1}};
  REQUIRE(events.size() == expected.size());
  for (size_t i = 0; i < events.size(); ++i) {
    CAPTURE(i);
    CHECK(events[i].kind == expected[i].kind);
    CHECK(events[i].seq == expected[i].seq);
    CHECK(events[i].block == expected[i].block);
  }
  blocks.record_events(nullptr);
  blocks.release(d);
  CHECK(events.size() == expected.size());
}

TEST_CASE("block manager: check_integrity finds planted faults") {
  BlockManager blocks(6, 2, true);
  Sequence a = sequence(1, Tokens{1, 2, 3, 4, 5}), b = sequence(2, Tokens{1, 2, 3, 4, 6});
  compute(blocks, a);
  blocks.take_cached(b, blocks.match_prefix(b));
  REQUIRE(blocks.grow(b, 5));
  check(blocks, {&a, &b});
  CHECK(aborts([&] { check(blocks, {&a}); }));  // a leak: references without an owner
  auto with_table = [&](Blocks table) {
    return aborts([&, table] {
      b.block_table = table;
      check(blocks, {&a, &b});
    });
  };
  CHECK(!with_table({0, 1, 3}));
  CHECK(with_table({0, 1}));     // one reference too many
  CHECK(with_table({0, 1, 2}));  // another's partial block
  CHECK(with_table({0, 1, 6}));  // no such block
  CHECK(with_table({0, 1, 4}));  // a free block
  CHECK(with_table({0, 0, 3}));  // twice
  CHECK(aborts([&] {             // shared, but not yet full
    b.num_computed_tokens = 3;
    check(blocks, {&a, &b});
  }));
  CHECK(aborts([&] { blocks.take_cached(b, {}); }));  // not an empty table
}

TEST_CASE("block manager: 10,000 random operations give the very blocks of the naive model") {
  struct Setting {
    int32_t num_blocks, block_size;
    bool caching;
    HashFunction hash;
  };
  const Setting settings[] = {{12, 2, true, hash_block}, {12, 2, true, constant_hash},
                              {20, 1, true, hash_block}, {9, 4, true, hash_block},
                              {9, 3, false, hash_block}, {8, 5, false, hash_block}};
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    const Setting& setting = settings[seed - 1];
    CAPTURE(seed);
    std::mt19937 rng(seed);
    BlockManager blocks(setting.num_blocks, setting.block_size, setting.caching, setting.hash);
    nano_test::NaiveBlocks naive(setting.num_blocks, setting.block_size, setting.caching);
    std::map<SeqId, Sequence> live;
    SeqId next_id = 1;
    auto pick = [&] { return std::next(live.begin(), int64_t(rng() % live.size())); };
    int64_t hits = 0, forks = 0, refused = 0;

    for (int32_t op = 0; op < 10000; ++op) {
      const uint32_t kind = live.empty() ? 0 : rng() % 8;
      if (kind <= 1) {  // a new sequence: hit, or fork, then its prompt
        Sequence seq = sequence(next_id++, {});
        for (uint32_t n = 1 + rng() % 14; n > 0; --n) seq.tokens.push_back(int32_t(rng() % 2));
        if (kind == 1) seq.tokens = pick()->second.tokens;
        Blocks shared = naive.match(seq.tokens);
        REQUIRE(blocks.match_prefix(seq) == shared);
        const Sequence* parent = kind == 1 && shared.empty() ? &pick()->second : nullptr;
        if (parent) {
          blocks.fork(*parent, seq);
          int32_t same = 0, limit = std::min(parent->num_computed_tokens, seq.num_tokens() - 1);
          while (same < limit && parent->tokens[size_t(same)] == seq.tokens[size_t(same)]) ++same;
          const Blocks& table = naive.tables[parent->id];
          shared.assign(table.begin(), table.begin() + same / setting.block_size);
          forks += !shared.empty();
        } else {
          blocks.take_cached(seq, shared);
          hits += !shared.empty();
        }
        naive.hold(seq.id, shared);
        live.emplace(seq.id, std::move(seq));
      } else if (kind <= 5) {  // a step: up to 6 more tokens of it are computed, perhaps a new one appended
        Sequence& seq = pick()->second;
        if (seq.num_computed_tokens == seq.num_tokens()) seq.tokens.push_back(int32_t(rng() % 2));
        int32_t end = seq.num_computed_tokens + 1 + int32_t(rng()) % 6;
        end = std::min(std::max(end, seq.num_computed_tokens + 1), seq.num_tokens());
        const bool ok = naive.grow(seq.id, end);
        REQUIRE(blocks.can_grow(seq, end) == ok);
        REQUIRE(blocks.grow(seq, end) == ok);
        refused += !ok;
        if (ok) {
          seq.num_computed_tokens = end;
          blocks.cache_computed(seq);
          naive.cache(seq.id, seq.tokens, end);
        }
      } else if (live.size() > 4 || kind == 7) {
        auto it = pick();
        blocks.release(it->second);
        naive.release(it->first);
        live.erase(it);
      }
      REQUIRE(blocks.num_free() == int32_t(naive.free.size()));
      REQUIRE(blocks.num_evictions() == naive.evictions);
      std::vector<const Sequence*> holders;
      for (auto& [id, seq] : live) {
        REQUIRE(seq.block_table == naive.tables[id]);
        holders.push_back(&seq);
      }
      blocks.check_integrity(holders);
    }
    CHECK(refused > 100);
    CHECK(forks + hits > 20);
    if (setting.caching) CHECK(naive.evictions > 100);
    for (auto& [id, seq] : live) blocks.release(seq);
    check(blocks, {});
    CHECK(blocks.num_free() == setting.num_blocks);
  }
}

TEST_CASE("B1 full prompt hit: B computes at least one token and says what A said") {
  for (int32_t n : {4, 8, 12}) {
    FakeEngine engine(case_config(), 8, 4, true);
    for (int32_t twice = 0; twice < 2; ++twice) {
      SeqId a = engine.add(range(1, n), 1), b = 0;
      engine.run();
      int64_t before = engine.num_computed;
      b = engine.add(range(1, n), 1);
      engine.run();
      CHECK(engine.done.at(b).num_cached_tokens == n - 4);
      CHECK(engine.num_computed - before == 4);
      CHECK(engine.done.at(a).output == engine.done.at(b).output);
    }
  }
}

TEST_CASE("B1 hit of one block and a new tail") {
  FakeEngine engine(case_config(), 8, 4, true);
  engine.add(range(1, 8), 1);
  engine.run();
  SeqId b = engine.add({1, 2, 3, 4, 99, 98, 97}, 1);
  StepPlan plan = engine.step();
  REQUIRE(plan.seqs.size() == 1);
  CHECK(plan.seqs[0].first_pos == 4);
  CHECK(plan.seqs[0].tokens == Tokens{99, 98, 97});
  CHECK(plan.seqs[0].block_table == Blocks{0, 2});  // 1 is A's second block
  CHECK(engine.done.at(b).num_cached_tokens == 4);
}

TEST_CASE("B2 a hundred sequential requests: never out of blocks, evictions, a hit rate between 0 and 1") {
  FakeEngine engine(case_config(), 8, 4, true);
  for (uint64_t i = 0; i < 100; ++i) {
    SeqId id = engine.add(nano_test::fake_prompt(5 + int32_t(i) % 20, i / 3), 6);
    engine.run();
    CHECK(engine.done.at(id).output.size() == 6);
  }
  CHECK(engine.blocks.num_evictions() > 0);
  CHECK(engine.blocks.hit_tokens() > 0);
  CHECK(engine.blocks.hit_tokens() < engine.blocks.queried_tokens());
}

TEST_CASE("B2 abort in each state brings every block home") {
  SchedulerConfig config = case_config();
  config.max_num_batched_tokens = 4;
  FakeEngine engine(config, 8, 4, true);
  auto idle = [&] { return engine.blocks.num_free() == 8 && !engine.scheduler.has_work(); };

  SeqId waiting = engine.add(range(1, 6), 4);
  engine.abort(waiting);
  CHECK(idle());
  CHECK(engine.done.at(waiting).reason == FinishReason::abort);

  SeqId prefilling = engine.add(range(1, 12), 4);
  engine.step();
  CHECK(engine.done.count(prefilling) == 0);
  engine.abort(prefilling);
  CHECK(idle());

  SeqId decoding = engine.add(range(1, 3), 4);
  engine.step();
  engine.step();
  CHECK(engine.seqs.at(decoding)->num_output_tokens() == 2);
  engine.abort(decoding);
  CHECK(idle());
  CHECK(engine.done.at(decoding).output.size() == 2);

  engine.abort(decoding);  // twice
  engine.abort(12345);     // unknown
  CHECK(idle());

  SeqId midstep = engine.add(range(1, 3), 4);  // between schedule and commit
  engine.before_commit = [&](const StepPlan&) { engine.scheduler.finish(midstep, FinishReason::abort); };
  engine.step();
  CHECK(idle());
  CHECK(engine.done.at(midstep).output.empty());
}

TEST_CASE(
    "B4 same block content under different parents, stale hashes and colliding ones: no hit, right output") {
  SamplingParams params;
  params.max_tokens = 1;
  for (HashFunction hash : {&hash_block, &constant_hash}) {
    FakeEngine engine(case_config(), 8, 4, true, hash);
    auto run = [&](Tokens prompt, int32_t expected_hit) {
      SeqId id = engine.add(prompt, params);
      engine.run();
      CHECK(engine.done.at(id).num_cached_tokens == expected_hit);
      CHECK(engine.done.at(id).output == nano_test::generate_plain(prompt, params, 64));
    };
    run({1, 2, 3, 4, 5, 6, 7, 8}, 0);
    run({9, 9, 9, 9, 5, 6, 7, 8}, 0);
    run({6, 7, 8, 9, 5}, 0);
    run(range(100, 32), 0);  // all 8 blocks
    CHECK(engine.blocks.num_free() == 8);
    run(range(200, 32), 0);  // evicts all of it
    run(range(100, 32), 0);
    run(range(100, 32), 28);
  }
}

TEST_CASE("B4 cache key includes what changes KV: another engine's cache gives no hit") {
  BlockManager one(8, 4, true, hash_block, 1), other(8, 4, true, hash_block, 2);
  Sequence seq = sequence(1, range(1, 9));
  compute(one, seq);
  CHECK(one.match_prefix(seq).size() == 2);
  CHECK(other.match_prefix(seq).empty());
}
