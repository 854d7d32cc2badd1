#include <random>
#include <vector>

#include "catch.h"
#include "core/chunk_planner.h"

using namespace nano;
using Ints = std::vector<int32_t>;

TEST_CASE("chunk planner: one sequence") {
  struct Row {
    int32_t to_compute;
    ChunkLimits limits;
    int32_t expected;
  };
  const Row rows[] = {
      {1, {16, true, 0}, 1},       {16, {16, true, 0}, 16},  {17, {16, true, 0}, 16}, {100, {16, true, 8}, 8},
      {5, {16, true, 8}, 5},       {100, {4, true, 8}, 4},   {5, {0, true, 0}, 0},    {5, {-3, true, 0}, 0},
      {0, {16, true, 0}, 0},       {16, {16, false, 0}, 16}, {17, {16, false, 0}, 0}, {1, {0, false, 0}, 0},
      {100, {128, false, 8}, 100},  // off = whole or nothing: a threshold would split it
  };
  for (const Row& row : rows) {
    CAPTURE(row.to_compute, row.limits.budget, row.limits.chunked, row.limits.long_prefill_threshold);
    CHECK(plan_chunk(row.to_compute, row.limits) == row.expected);
  }
}

TEST_CASE("chunk planner: decodes first, the prompt gets what they leave") {
  CHECK(plan_chunks(Ints{1, 1, 100}, Ints{50}, {16, true, 0}) == Ints{1, 1, 14, 0});
  CHECK(plan_chunks(Ints{1, 6}, Ints{5, 50}, {16, true, 0}) == Ints{1, 6, 5, 4});
  CHECK(plan_chunks(Ints{1, 100}, Ints{50, 3}, {16, true, 4}) == Ints{1, 4, 4, 3});
}

TEST_CASE("chunk planner off: a prompt is whole or waits, and nobody overtakes it") {
  CHECK(plan_chunks(Ints{1, 1}, Ints{14, 1}, {16, false, 0}) == Ints{1, 1, 14, 0});
  CHECK(plan_chunks(Ints{1, 1}, Ints{15, 1}, {16, false, 0}) == Ints{1, 1, 0, 0});
  CHECK(plan_chunks(Ints{20, 3}, Ints{}, {16, false, 0}) == Ints{0, 3});  // a running one is only skipped
}

TEST_CASE("chunk planner: nothing to plan") {
  CHECK(plan_chunks(Ints{}, Ints{}, {16, true, 0}).empty());
  CHECK(plan_chunks(Ints{3}, Ints{3}, {0, true, 0}) == Ints{0, 0});
}

TEST_CASE("chunk planner: random plans keep the budget, waste none of it, and keep the order") {
  for (uint32_t seed = 1; seed <= 2000; ++seed) {
    CAPTURE(seed);
    std::mt19937 rng(seed);
    Ints running(rng() % 6), waiting(rng() % 6);
    for (int32_t& n : running) n = rng() % 2 ? 1 : int32_t(rng() % 40) + 1;
    for (int32_t& n : waiting) n = int32_t(rng() % 40) + 1;
    ChunkLimits limits{int32_t(rng() % 64), rng() % 2 == 0, int32_t(rng() % 3) * 5};
    Ints chunks = plan_chunks(running, waiting, limits);
    REQUIRE(chunks.size() == running.size() + waiting.size());

    int32_t left = limits.budget;
    bool stopped = false;  // a waiting one got nothing
    for (size_t i = 0; i < chunks.size(); ++i) {
      const int32_t wanted = i < running.size() ? running[i] : waiting[i - running.size()];
      const bool split = limits.chunked && limits.long_prefill_threshold > 0;
      const int32_t most = split ? std::min(wanted, limits.long_prefill_threshold) : wanted;
      const bool fits = limits.chunked ? left > 0 : most <= left;
      const int32_t expected = stopped || !fits ? 0 : std::min(most, left);
      CHECK(chunks[i] == expected);
      if (i >= running.size() && chunks[i] == 0) stopped = true;
      left -= chunks[i];
      REQUIRE(left >= 0);
    }
  }
}
