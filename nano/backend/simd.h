// The few vector operations of the cpu backend, over AVX-512 (VNNI), AVX2 (with or without AVX-VNNI), NEON (dot
// product) and plain C++, chosen when the file is compiled.
//
// F is kLanes floats, I is kLanes int32. In a linear one lane is one output row. All paths round alike; the integer
// dots are exact, so that every path computes the same function (sums over lanes have a tree of their own).
// Everything is in an anonymous namespace: object files built for different machines must not share these.
#pragma once

#include <cstdint>
#include <cstring>

#include "backend/mathfn.h"  // kRound and the scalar versions
#include "base/dtype.h"      // f16_to_f32, …

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#include "backend/simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "backend/simd_avx2.h"
#elif defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#include "backend/simd_neon.h"
#else
#include "backend/simd_plain.h"
#endif

#if defined(__clang__)
#define NANO_UNROLL _Pragma("clang loop unroll(full)")
#else
#define NANO_UNROLL _Pragma("GCC unroll 16")
#endif

namespace nano {
namespace {

inline F zero_f() { return set(0.0f); }
inline F load_bf16(const void* p) { return float_of_bits(shift_left(load_u16(p), 16)); }
inline int32_t load_dword(const void* p) {
  int32_t x;
  std::memcpy(&x, p, 4);
  return x;
}
// For mathfn.h.
inline F set_like(F, float x) { return set(x); }
inline F scale_by_power(F x, F t) {
  I n = sub(bits_of(t), set_i(int32_t(f32_bits(math::kRound))));
  I half = sub(shift_right(add(n, set_i(512)), 1), set_i(256));  // n >> 1, with a shift that knows no sign
  auto power = [](I e) { return float_of_bits(shift_left(add(e, set_i(127)), 23)); };
  return mul(mul(x, power(half)), power(sub(n, half)));
}

inline int32_t max_lane(I a) {
  int32_t lane[kLanes], most;
  std::memcpy(lane, &a, sizeof lane);
  most = lane[0];
  for (int i = 1; i < kLanes; ++i) most = lane[i] > most ? lane[i] : most;
  return most;
}

}  // namespace
}  // namespace nano
