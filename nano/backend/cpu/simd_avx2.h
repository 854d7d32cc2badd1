// AVX2 with FMA and F16C, with or without AVX-VNNI: 8 lanes. What the operations mean: simd.h, which includes this.
#pragma once

#include <immintrin.h>

namespace nano::NANO_ISA {
namespace {

#if defined(__AVXVNNI__)
constexpr const char* kSimdName = "AVX-VNNI";
#else
constexpr const char* kSimdName = "AVX2";
#endif
constexpr int kRegisters = 16;

inline F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline F min(F a, F b) { return {_mm256_min_ps(a.v, b.v)}; }
inline F max(F a, F b) { return {_mm256_max_ps(a.v, b.v)}; }

inline I load_u8(const void* p) { return {Ints(_mm256_cvtepu8_epi32(_mm_loadu_si64(p)))}; }
inline I load_i8(const void* p) { return {Ints(_mm256_cvtepi8_epi32(_mm_loadu_si64(p)))}; }
inline I load_u16(const void* p) {
  return {Ints(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))))};
}
inline void store_i8(int8_t* p, I a) {
  const __m256i v = __m256i(a.v);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  _mm_storeu_si64(p, _mm_packs_epi16(words, words));
}
inline F load_f16(const void* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
inline void store_f16(void* p, F a) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}

// The halves, then lanes two apart, then neighbours.
template <class Combine>
inline int32_t fold(__m256i a, Combine combine) {
  __m128i x = combine(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  x = combine(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(combine(x, _mm_shuffle_epi32(x, 0xb1)));
}
inline int32_t max_lane(I a) {
  return fold(__m256i(a.v), [](__m128i x, __m128i y) { return _mm_max_epi32(x, y); });
}
inline int32_t add_lanes(I a) {
  return fold(__m256i(a.v), [](__m128i x, __m128i y) { return _mm_add_epi32(x, y); });
}

inline F nibble_to_float(I a) { return to_float(a & set_i(15)); }

constexpr int kDotBias = 0;
#if defined(__AVXVNNI__)
template <bool WIDE>
inline I dot(I acc, I w, int32_t x) {
  return {Ints(_mm256_dpbusd_avx_epi32(__m256i(acc.v), __m256i(w.v), _mm256_set1_epi32(x)))};
}
#else
// maddubs adds pairs of products in int16. As many of these as fit are added up before they are widened; codes of 8 bits
// go as two nibbles, which fit for a whole unit.
#define NANO_PRODUCTS
template <int BITS>
struct Products {
  static constexpr int kPlanes = BITS == 8 ? 2 : 1, kCode = (1 << (BITS / kPlanes)) - 1;
  static constexpr int kFit = 32767 / (kCode * 2 * 128);  // a pair is at most 2 · kCode · 128
  I sum;
  __m256i pairs[kPlanes] = {};
  int count = 0;

  void add(I w, int32_t x) {
    for (int p = 0; p < kPlanes; ++p) {
      const I codes = kPlanes == 1 ? w : (w >> 4 * p) & set_i(0x0f0f0f0f);
      pairs[p] = _mm256_add_epi16(pairs[p], _mm256_maddubs_epi16(__m256i(codes.v), _mm256_set1_epi32(x)));
    }
    if (++count % kFit == 0) widen();
  }
  I total() {
    if (count % kFit != 0) widen();
    return sum;
  }
  void widen() {
    for (int p = 0; p < kPlanes; ++p) {
      sum = sum + I{Ints(_mm256_madd_epi16(pairs[p], _mm256_set1_epi16(p == 0 ? 1 : 16)))};
      pairs[p] = _mm256_setzero_si256();
    }
  }
};
#endif

inline F sum_lanes(const F (&v)[kLanes]) {
  auto pair = [](__m256 a, __m256 b) { return _mm256_hadd_ps(a, b); };
  __m256 a = pair(pair(v[0].v, v[1].v), pair(v[2].v, v[3].v)),
         b = pair(pair(v[4].v, v[5].v), pair(v[6].v, v[7].v));
  return {_mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31))};
}

}  // namespace
}  // namespace nano::NANO_ISA
