// exp and what is made of it. One template for floats and for vectors: the same operations in the same order, so that
// an element's bits do not depend on whether it was in a vector or in its tail.
//
// A vector type V joins by overloading the operators, fma, min, max, set_like and scale_by_power (backend/cpu/simd.h).
// Largest errors, tested against double: exp 1 ulp (1.2 without fma instructions), silu and gelu 1.2e-7 · |x|.
#pragma once

#include <cstdint>

#include "base/dtype.h"  // f32_bits, bits_f32

namespace nano {

namespace math {

// Rounded twice, on every machine: without the instruction std::fma is a slow function.
inline float fma(float a, float b, float c) { return a * b + c; }
// b if either is NaN, as the machine instruction.
inline float min(float a, float b) { return a < b ? a : b; }
inline float max(float a, float b) { return a > b ? a : b; }
inline float set_like(float, float x) { return x; }

// x · 2^n, where n sits in the low bits of t = n + 1.5·2^23. In two steps, so that 2^n may leave the float range:
// the product then overflows to infinity or underflows as usual.
constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer
inline float scale_by_power(float x, float t) {
  int32_t n = int32_t(f32_bits(t) - f32_bits(kRound)), half = n >> 1;
  x *= bits_f32(uint32_t(half + 127) << 23);
  return x * bits_f32(uint32_t(n - half + 127) << 23);
}

// e^x = 2^n · e^r with n = round(x / ln 2), |r| <= ln 2 / 2, ln 2 split in two (Cody & Waite 1980), e^r by its
// Taylor series. Exactly 0 for -inf and below -104, +inf above 89, NaN stays NaN.
template <class V>
inline V exp_of(V x) {
  auto c = [&](float value) { return set_like(x, value); };
  x = max(c(-104.0f), min(c(89.0f), x));
  V t = fma(x, c(1.44269504f), c(kRound));
  V n = t - c(kRound);
  V r = fma(n, c(-0.693145752f), x);  // 14 bits: n · this is exact
  r = fma(n, c(-1.42860677e-6f), r);
  V p = c(1.0f / 5040);
  p = fma(p, r, c(1.0f / 720));
  p = fma(p, r, c(1.0f / 120));
  p = fma(p, r, c(1.0f / 24));
  p = fma(p, r, c(1.0f / 6));
  p = fma(p, r, c(0.5f));
  p = fma(p, r, c(1.0f));
  p = fma(p, r, c(1.0f));
  return scale_by_power(p, t);
}

// x · sigmoid(x)
template <class V>
inline V silu_of(V x) {
  auto c = [&](float value) { return set_like(x, value); };
  return x / (c(1.0f) + exp_of(c(0.0f) - x));
}

// The tanh form of GELU (Hendrycks & Gimpel 2016), by  ½(1 + tanh u) = 1 / (1 + e^(−2u)).
template <class V>
inline V gelu_of(V x) {
  auto c = [&](float value) { return set_like(x, value); };
  V u2 = x * c(-1.5957691216f) * fma(x * x, c(0.044715f), c(1.0f));  // −2u, u = √(2/π)(x + 0.044715x³)
  return x / (c(1.0f) + exp_of(u2));
}

}  // namespace math

inline float exp_approx(float x) { return math::exp_of(x); }

}  // namespace nano
