// AVX-512 with VNNI: 16 lanes. What the operations mean: simd.h, which includes this.
#pragma once

#include <immintrin.h>

namespace nano::NANO_ISA {
namespace {

constexpr const char* kSimdName = "AVX-512 VNNI";
constexpr int kRegisters = 32;

// The maskz forms, with all lanes, where GCC 12 warns that the plain ones read something uninitialised.
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F min(F a, F b) { return {_mm512_maskz_min_ps(0xffff, a.v, b.v)}; }
inline F max(F a, F b) { return {_mm512_maskz_max_ps(0xffff, a.v, b.v)}; }

inline I load_u8(const void* p) {
  return {Ints(_mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128(static_cast<const __m128i*>(p))))};
}
inline I load_i8(const void* p) {
  return {Ints(_mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(static_cast<const __m128i*>(p))))};
}
inline I load_u16(const void* p) {
  return {Ints(_mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(static_cast<const __m256i*>(p))))};
}
inline void store_i8(int8_t* p, I a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_maskz_cvtepi32_epi8(0xffff, __m512i(a.v)));
}
inline F load_f16(const void* p) {
  return {_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
inline void store_f16(void* p, F a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p),
                      _mm512_maskz_cvtps_ph(0xffff, a.v, _MM_FROUND_TO_NEAREST_INT));
}

// The vector with its halves swapped, its quarters, lanes two apart, neighbours: then every lane has all.
template <class Combine>
inline int32_t fold(I a, Combine combine) {
  a = combine(a, I{Ints(_mm512_maskz_shuffle_i64x2(0xff, __m512i(a.v), __m512i(a.v), 0x4e))});
  a = combine(a, I{Ints(_mm512_maskz_shuffle_i64x2(0xff, __m512i(a.v), __m512i(a.v), 0xb1))});
  a = combine(a, I{Ints(_mm512_maskz_shuffle_epi32(0xffff, __m512i(a.v), _MM_PERM_BADC))});
  return combine(a, I{Ints(_mm512_maskz_shuffle_epi32(0xffff, __m512i(a.v), _MM_PERM_CDAB))}).v[0];
}
inline int32_t max_lane(I a) { return fold(a, max_i); }
inline int32_t add_lanes(I a) {
  return fold(a, [](I x, I y) { return x + y; });
}

// vpermps looks at the low four bits of an index only.
inline F nibble_to_float(I a) {
  const Floats codes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return {_mm512_maskz_permutexvar_ps(0xffff, __m512i(a.v), codes)};
}

constexpr int kDotBias = 0;
template <bool WIDE>
inline I dot(I acc, I w, int32_t x) {
  return {Ints(_mm512_dpbusd_epi32(__m512i(acc.v), __m512i(w.v), _mm512_set1_epi32(x)))};
}

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
}  // namespace nano::NANO_ISA
