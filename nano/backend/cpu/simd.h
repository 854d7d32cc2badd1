// The few vector operations of the cpu backend: GCC's and clang's vector types do the arithmetic; what differs from
// machine to machine (number of lanes, fused multiply-add, the int8 dot, float16, sums over lanes) is in one small
// file each for AVX-512 (VNNI), AVX2 (with or without AVX-VNNI), NEON (dot product) and everything else.
//
// F is kLanes floats, I is kLanes int32. In a linear one lane is one output row. All paths round alike; the integer
// dots are exact, so that every path computes the same function (sums over lanes have a tree of their own).
#pragma once

#include <cstdint>

#include "base/dtype.h"  // f16_to_f32, …
#include "base/exp.h"    // math::kRound, exp_of

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#define NANO_SIMD "backend/cpu/simd_avx512.h"
#define NANO_LANES 16
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define NANO_SIMD "backend/cpu/simd_avx2.h"
#define NANO_LANES 8
#elif defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#define NANO_SIMD "backend/cpu/simd_neon.h"
#define NANO_LANES 4
#else
#define NANO_SIMD "backend/cpu/simd_plain.h"
#define NANO_LANES 4
#endif

#if defined(__clang__)
#define NANO_UNROLL _Pragma("clang loop unroll(full)")
#else
#define NANO_UNROLL _Pragma("GCC unroll 16")
#endif

namespace nano::NANO_ISA {
namespace {

constexpr int kLanes = NANO_LANES;

using Floats __attribute__((vector_size(4 * kLanes))) = float;
using Ints __attribute__((vector_size(4 * kLanes))) = int32_t;
struct F {
  Floats v;
};
struct I {
  Ints v;
};

// At any address, of memory of any type. Not memcpy: GCC 12 copies 32 bytes in two halves by way of the stack, which is
// five times slower.
template <class T>
struct __attribute__((packed, may_alias)) Unaligned {
  T value;
};
template <class T>
inline T load_as(const void* p) {
  return static_cast<const Unaligned<T>*>(p)->value;
}
template <class T>
inline void store_as(void* p, T x) {
  static_cast<Unaligned<T>*>(p)->value = x;
}
inline F set(float x) { return {x - Floats{}}; }  // x − 0: keeps the sign of −0
inline I set_i(int32_t x) { return {x + Ints{}}; }
inline F zero_f() { return set(0.0f); }
inline F load(const float* p) { return {load_as<Floats>(p)}; }
inline I load_i(const void* p) { return {load_as<Ints>(p)}; }
inline void store(float* p, F a) { store_as(p, a.v); }
inline int32_t load_dword(const void* p) { return load_as<int32_t>(p); }

// Compilers like to load a value again at each use, as an operand of the instruction; loads are what such loops lack.
inline F in_register(F a) {
#if defined(__x86_64__)
  asm("" : "+v"(a.v));
#endif
  return a;
}

inline F operator+(F a, F b) { return {a.v + b.v}; }
inline F operator-(F a, F b) { return {a.v - b.v}; }
inline F operator*(F a, F b) { return {a.v * b.v}; }
inline F operator/(F a, F b) { return {a.v / b.v}; }
inline I operator+(I a, I b) { return {a.v + b.v}; }
inline I operator-(I a, I b) { return {a.v - b.v}; }
inline I operator&(I a, I b) { return {a.v & b.v}; }
inline I operator|(I a, I b) { return {a.v | b.v}; }
inline I operator<<(I a, int n) { return {a.v << n}; }
inline I operator>>(I a, int n) { return {a.v >> n}; }  // copies the sign
inline I max_i(I a, I b) { return {a.v > b.v ? a.v : b.v}; }

inline I bits_of(F a) { return {Ints(a.v)}; }  // a conversion between vectors keeps the bits
inline F float_of_bits(I a) { return {Floats(a.v)}; }
inline F to_float(I a) { return {__builtin_convertvector(a.v, Floats)}; }
inline I round_to_i(F a) {
  return bits_of(a + set(math::kRound)) - set_i(int32_t(f32_bits(math::kRound)));
}  // |a| < 2^22

}  // namespace
}  // namespace nano::NANO_ISA

// fma, min, max, load_u8, load_i8, load_u16, store_i8, load_f16, store_f16, nibble_to_float, dot, sum_lanes, max_lane,
// add_lanes:
//   load_u8, …            kLanes integers of that width (not by __builtin_convertvector: GCC 12 does it lane by lane)
//   store_i8              lanes −128 … 127
//   nibble_to_float(a)    the low four bits of each lane, whatever is above them
//   dot<WIDE>(acc, w, x)  acc + Σ of four products: a lane of w holds four codes (0 … 255 if WIDE, else 0 … 127), x
//                         four int8 for all lanes. Wide codes count as code − kDotBias. Where that is no instruction
//                         there is a Products in its place (below), and NANO_PRODUCTS says so.
//   sum_lanes(v)          lane i is the sum over the lanes of v[i], in a tree that is the same for all i
//   min, max              b if either is NaN
//   max_lane, add_lanes   the largest lane, the sum of all lanes
#include NANO_SIMD

namespace nano::NANO_ISA {
namespace {

// Σ of the products of codes of BITS bits and int8 activations of one unit, on from `sum`: add(w, x) adds four of each
// lane, as dot does; then total() is the sum, exactly.
#ifndef NANO_PRODUCTS
template <int BITS>
struct Products {
  I sum;
  void add(I w, int32_t x) { sum = dot<BITS == 8>(sum, w, x); }
  I total() const { return sum; }
};
#endif

inline F load_bf16(const void* p) { return float_of_bits(load_u16(p) << 16); }

// For vector_math.h.
inline F set_like(F, float x) { return set(x); }
inline F scale_by_power(F x, F t) {
  const I n = bits_of(t) - set_i(int32_t(f32_bits(math::kRound))), half = n >> 1;
  auto power = [](I e) { return float_of_bits((e + set_i(127)) << 23); };
  return x * power(half) * power(n - half);
}

}  // namespace
}  // namespace nano::NANO_ISA
