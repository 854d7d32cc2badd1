#include <algorithm>
#include <random>

#include "catch.h"
#include "core/chunk_planner.h"

using namespace nano;

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

TEST_CASE("chunk planner: random calls never exceed a limit and waste none of the budget") {
  for (uint32_t seed = 1; seed <= 2000; ++seed) {
    CAPTURE(seed);
    std::mt19937 rng(seed);
    const int32_t wanted = int32_t(rng() % 40) + 1;
    const ChunkLimits limits{int32_t(rng() % 64), rng() % 2 == 0, int32_t(rng() % 3) * 5};
    const bool split = limits.chunked && limits.long_prefill_threshold > 0;
    const int32_t most = split ? std::min(wanted, limits.long_prefill_threshold) : wanted;
    const bool fits = limits.chunked || most <= limits.budget;
    CHECK(plan_chunk(wanted, limits) == (fits ? std::min(most, limits.budget) : 0));
  }
}
