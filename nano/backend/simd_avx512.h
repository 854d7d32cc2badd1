// AVX-512 with VNNI: 16 lanes. What the operations mean: simd.h, which includes this.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "backend/mathfn.h"  // math::kRound
#include "base/dtype.h"      // conversions

namespace nano {
namespace {

constexpr const char* kSimdName = "AVX-512 VNNI";
constexpr int kLanes = 16;
constexpr int kRegisters = 32;
struct F {
  __m512 v;
};
struct I {
  __m512i v;
};

inline F set(float x) { return {_mm512_set1_ps(x)}; }
inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
inline F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F min(F a, F b) { return {_mm512_maskz_min_ps(0xffff, a.v, b.v)}; }
inline F max(F a, F b) { return {_mm512_maskz_max_ps(0xffff, a.v, b.v)}; }

inline I set_i(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I load_i(const void* p) { return {_mm512_loadu_si512(p)}; }
inline I add(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I sub(I a, I b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline I bit_and(I a, I b) { return {_mm512_and_si512(a.v, b.v)}; }
inline I bit_or(I a, I b) { return {_mm512_or_si512(a.v, b.v)}; }
inline I shift_left(I a, int n) { return {_mm512_maskz_slli_epi32(0xffff, a.v, unsigned(n))}; }
inline I shift_right(I a, int n) { return {_mm512_maskz_srli_epi32(0xffff, a.v, unsigned(n))}; }
inline I max_i(I a, I b) { return {_mm512_maskz_max_epi32(0xffff, a.v, b.v)}; }
inline I bits_of(F a) { return {_mm512_castps_si512(a.v)}; }
inline F float_of_bits(I a) { return {_mm512_castsi512_ps(a.v)}; }
inline F to_float(I a) { return {_mm512_maskz_cvtepi32_ps(0xffff, a.v)}; }
inline I round_to_i(F a) { return {_mm512_maskz_cvtps_epi32(0xffff, a.v)}; }
inline void store_i8(int8_t* p, I a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_maskz_cvtepi32_epi8(0xffff, a.v));
}

inline F load_f16(const void* p) {
  return {_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
inline void store_f16(void* p, F a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p),
                      _mm512_maskz_cvtps_ph(0xffff, a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline I load_u16(const void* p) {
  return {_mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
inline I load_u8(const void* p) {
  return {_mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
inline I load_i8(const void* p) {
  return {_mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(static_cast<const __m128i*>(p)))};
}

// acc + Σ of four products: each lane of w holds four codes 0 … 255, x four int8 for all lanes.
constexpr int kDotBias = 0;
template <bool WIDE>
inline I dot(I acc, I w, int32_t x) {
  return {_mm512_dpbusd_epi32(acc.v, w.v, _mm512_set1_epi32(x))};
}

// Lane i of the result is the sum over the lanes of v[i], in a tree that is the same for all i.
inline F sum_lanes(const F (&v)[kLanes]) {
  auto merge4 = [&](int i) {  // 128-bit part j of the result: four sums over part j of v[i] … v[i+3]
    auto pair = [](__m512 a, __m512 b) {
      return _mm512_add_ps(_mm512_maskz_unpacklo_ps(0xffff, a, b), _mm512_maskz_unpackhi_ps(0xffff, a, b));
    };
    __m512d lo = _mm512_castps_pd(pair(v[i].v, v[i + 1].v)),
            hi = _mm512_castps_pd(pair(v[i + 2].v, v[i + 3].v));
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_maskz_unpacklo_pd(0xff, lo, hi)),
                         _mm512_castpd_ps(_mm512_maskz_unpackhi_pd(0xff, lo, hi)));
  };
  __m512 a = merge4(0), b = merge4(4), c = merge4(8), d = merge4(12);
  __m512 ab = _mm512_add_ps(_mm512_maskz_shuffle_f32x4(0xffff, a, b, 0x88),
                            _mm512_maskz_shuffle_f32x4(0xffff, a, b, 0xdd));
  __m512 cd = _mm512_add_ps(_mm512_maskz_shuffle_f32x4(0xffff, c, d, 0x88),
                            _mm512_maskz_shuffle_f32x4(0xffff, c, d, 0xdd));
  return {_mm512_add_ps(_mm512_maskz_shuffle_f32x4(0xffff, ab, cd, 0x88),
                        _mm512_maskz_shuffle_f32x4(0xffff, ab, cd, 0xdd))};
}

}  // namespace
}  // namespace nano
