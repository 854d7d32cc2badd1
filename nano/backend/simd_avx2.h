// AVX2 with FMA and F16C, with or without AVX-VNNI: 8 lanes. What the operations mean: simd.h, which includes this.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "backend/mathfn.h"  // math::kRound
#include "base/dtype.h"      // conversions

namespace nano {
namespace {

#if defined(__AVXVNNI__)
constexpr const char* kSimdName = "AVX-VNNI";
#else
constexpr const char* kSimdName = "AVX2";
#endif
constexpr int kLanes = 8;
constexpr int kRegisters = 16;
struct F {
  __m256 v;
};
struct I {
  __m256i v;
};

inline F set(float x) { return {_mm256_set1_ps(x)}; }
inline F load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void store(float* p, F a) { _mm256_storeu_ps(p, a.v); }
inline F add(F a, F b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F sub(F a, F b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F mul(F a, F b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F div(F a, F b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline F min(F a, F b) { return {_mm256_min_ps(a.v, b.v)}; }
inline F max(F a, F b) { return {_mm256_max_ps(a.v, b.v)}; }

inline I set_i(int32_t x) { return {_mm256_set1_epi32(x)}; }
inline I load_i(const void* p) { return {_mm256_loadu_si256(static_cast<const __m256i*>(p))}; }
inline I add(I a, I b) { return {_mm256_add_epi32(a.v, b.v)}; }
inline I sub(I a, I b) { return {_mm256_sub_epi32(a.v, b.v)}; }
inline I bit_and(I a, I b) { return {_mm256_and_si256(a.v, b.v)}; }
inline I bit_or(I a, I b) { return {_mm256_or_si256(a.v, b.v)}; }
inline I shift_left(I a, int n) { return {_mm256_slli_epi32(a.v, n)}; }
inline I shift_right(I a, int n) { return {_mm256_srli_epi32(a.v, n)}; }
inline I max_i(I a, I b) { return {_mm256_max_epi32(a.v, b.v)}; }
inline I bits_of(F a) { return {_mm256_castps_si256(a.v)}; }
inline F float_of_bits(I a) { return {_mm256_castsi256_ps(a.v)}; }
inline F to_float(I a) { return {_mm256_cvtepi32_ps(a.v)}; }
inline I round_to_i(F a) { return {_mm256_cvtps_epi32(a.v)}; }
inline void store_i8(int8_t* p, I a) {
  __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}

inline F load_f16(const void* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
inline void store_f16(void* p, F a) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline I load_u16(const void* p) {
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
inline I load_u8(const void* p) {
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)))};
}
inline I load_i8(const void* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)))};
}

constexpr int kDotBias = 0;
#if defined(__AVXVNNI__)
template <bool WIDE>
inline I dot(I acc, I w, int32_t x) {
  return {_mm256_dpbusd_avx_epi32(acc.v, w.v, _mm256_set1_epi32(x))};
}
#else
// maddubs adds pairs of products in int16: codes up to 7 bits fit (2 · 127 · 127), 8 bits go as two nibbles.
template <bool WIDE>
inline I dot(I acc, I w, int32_t x) {
  __m256i a = _mm256_set1_epi32(x);
  auto pairs = [&](__m256i codes, int16_t weight) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, a), _mm256_set1_epi16(weight));
  };
  if constexpr (!WIDE) return {_mm256_add_epi32(acc.v, pairs(w.v, 1))};
  __m256i nibble = _mm256_set1_epi8(15);
  __m256i lo = _mm256_and_si256(w.v, nibble), hi = _mm256_and_si256(_mm256_srli_epi32(w.v, 4), nibble);
  return {_mm256_add_epi32(acc.v, _mm256_add_epi32(pairs(lo, 1), pairs(hi, 16)))};
}
#endif

inline F sum_lanes(const F (&v)[kLanes]) {
  auto pair = [](__m256 a, __m256 b) { return _mm256_hadd_ps(a, b); };
  __m256 a = pair(pair(v[0].v, v[1].v), pair(v[2].v, v[3].v)),
         b = pair(pair(v[4].v, v[5].v), pair(v[6].v, v[7].v));
  return {_mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31))};
}

}  // namespace
}  // namespace nano
