// Counter-based random numbers: a pure function of a key, no state to carry or to lose.
//
// The key is (request seed, index in n, output position, draw number): no engine id and no slot is in it, so a
// seeded request gives the same tokens alone, in any batch, and after preemption.
// Source: Philox4x32-10, Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
#pragma once

#include <array>
#include <cstdint>

namespace nano {

struct RngKey {
  uint64_t seed = 0;      // SamplingParams.seed (+ i for child i of n), or drawn from the engine's seed
  uint32_t position = 0;  // index of the output token being drawn
};

// The bijection itself: ten rounds of multiply, swap and xor over a 128-bit counter with a 64-bit key.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);
// 64 random bits for draw number `draw` of this key: two of the words of counter (draw, position, 0), key seed.
uint64_t random_bits(RngKey key, uint64_t draw);
// Uniform in (0, 1): never 0, so that log(u) is finite; never 1.
double random_uniform(RngKey key, uint64_t draw);

}  // namespace nano
