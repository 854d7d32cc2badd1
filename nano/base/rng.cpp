#include "base/rng.h"

namespace nano {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t(0xD2511F53u) * c[0], p1 = uint64_t(0xCD9E8D57u) * c[2];
    c = {uint32_t(p1 >> 32) ^ c[1] ^ k[0], uint32_t(p1), uint32_t(p0 >> 32) ^ c[3] ^ k[1], uint32_t(p0)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return c;
}

uint64_t random_bits(RngKey key, uint64_t draw) {
  const auto words = philox4x32({uint32_t(draw), uint32_t(draw >> 32), key.position, 0},
                                {uint32_t(key.seed), uint32_t(key.seed >> 32)});
  return uint64_t(words[1]) << 32 | words[0];
}

double random_uniform(RngKey key, uint64_t draw) {
  // The middle of one of 2^52 cells: the last sum must be exact, or the top cell would round to 1.
  return (double(random_bits(key, draw) >> 12) + 0.5) * 0x1p-52;
}

}  // namespace nano
