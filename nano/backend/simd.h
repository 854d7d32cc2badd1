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
#define NANO_SIMD_AVX512 1
#include <immintrin.h>
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define NANO_SIMD_AVX2 1
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#define NANO_SIMD_NEON 1
#include <arm_neon.h>
#endif

#if defined(__clang__)
#define NANO_UNROLL _Pragma("clang loop unroll(full)")
#else
#define NANO_UNROLL _Pragma("GCC unroll 16")
#endif

namespace nano {
namespace {

#if defined(NANO_SIMD_AVX512)

constexpr const char* kSimdName = "AVX-512 VNNI";
constexpr int kLanes = 16;
constexpr int kRegisters = 32;
struct F { __m512 v; };
struct I { __m512i v; };

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
inline void store_i8(int8_t* p, I a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_maskz_cvtepi32_epi8(0xffff, a.v)); }

inline F load_f16(const void* p) {
  return {_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
inline void store_f16(void* p, F a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_maskz_cvtps_ph(0xffff, a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline I load_u16(const void* p) {
  return {_mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
inline I load_u8(const void* p) { return {_mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128(static_cast<const __m128i*>(p)))}; }
inline I load_i8(const void* p) { return {_mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(static_cast<const __m128i*>(p)))}; }

// acc + Σ of four products: each lane of w holds four codes 0 … 255, x four int8 for all lanes.
constexpr int kDotBias = 0;
template <bool WIDE>
inline I dot(I acc, I w, int32_t x) { return {_mm512_dpbusd_epi32(acc.v, w.v, _mm512_set1_epi32(x))}; }

// Lane i of the result is the sum over the lanes of v[i], in a tree that is the same for all i.
inline F sum_lanes(const F (&v)[kLanes]) {
  auto merge4 = [&](int i) {  // 128-bit part j of the result: four sums over part j of v[i] … v[i+3]
    auto pair = [](__m512 a, __m512 b) {
      return _mm512_add_ps(_mm512_maskz_unpacklo_ps(0xffff, a, b), _mm512_maskz_unpackhi_ps(0xffff, a, b));
    };
    __m512d lo = _mm512_castps_pd(pair(v[i].v, v[i + 1].v)), hi = _mm512_castps_pd(pair(v[i + 2].v, v[i + 3].v));
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_maskz_unpacklo_pd(0xff, lo, hi)),
                         _mm512_castpd_ps(_mm512_maskz_unpackhi_pd(0xff, lo, hi)));
  };
  __m512 a = merge4(0), b = merge4(4), c = merge4(8), d = merge4(12);
  __m512 ab = _mm512_add_ps(_mm512_maskz_shuffle_f32x4(0xffff, a, b, 0x88), _mm512_maskz_shuffle_f32x4(0xffff, a, b, 0xdd));
  __m512 cd = _mm512_add_ps(_mm512_maskz_shuffle_f32x4(0xffff, c, d, 0x88), _mm512_maskz_shuffle_f32x4(0xffff, c, d, 0xdd));
  return {_mm512_add_ps(_mm512_maskz_shuffle_f32x4(0xffff, ab, cd, 0x88), _mm512_maskz_shuffle_f32x4(0xffff, ab, cd, 0xdd))};
}

#elif defined(NANO_SIMD_AVX2)

#if defined(__AVXVNNI__)
constexpr const char* kSimdName = "AVX-VNNI";
#else
constexpr const char* kSimdName = "AVX2";
#endif
constexpr int kLanes = 8;
constexpr int kRegisters = 16;
struct F { __m256 v; };
struct I { __m256i v; };

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

inline F load_f16(const void* p) { return {_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)))}; }
inline void store_f16(void* p, F a) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline I load_u16(const void* p) { return {_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))}; }
inline I load_u8(const void* p) { return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)))}; }
inline I load_i8(const void* p) { return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)))}; }

constexpr int kDotBias = 0;
#if defined(__AVXVNNI__)
template <bool WIDE>
inline I dot(I acc, I w, int32_t x) { return {_mm256_dpbusd_avx_epi32(acc.v, w.v, _mm256_set1_epi32(x))}; }
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
  __m256 a = pair(pair(v[0].v, v[1].v), pair(v[2].v, v[3].v)), b = pair(pair(v[4].v, v[5].v), pair(v[6].v, v[7].v));
  return {_mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31))};
}

#elif defined(NANO_SIMD_NEON)

constexpr const char* kSimdName = "NEON dot product";
constexpr int kLanes = 4;
constexpr int kRegisters = 32;
struct F { float32x4_t v; };
struct I { int32x4_t v; };

inline F set(float x) { return {vdupq_n_f32(x)}; }
inline F load(const float* p) { return {vld1q_f32(p)}; }
inline void store(float* p, F a) { vst1q_f32(p, a.v); }
inline F add(F a, F b) { return {vaddq_f32(a.v, b.v)}; }
inline F sub(F a, F b) { return {vsubq_f32(a.v, b.v)}; }
inline F mul(F a, F b) { return {vmulq_f32(a.v, b.v)}; }
inline F div(F a, F b) { return {vdivq_f32(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
inline F min(F a, F b) { return {vbslq_f32(vcltq_f32(a.v, b.v), a.v, b.v)}; }  // b if either is NaN
inline F max(F a, F b) { return {vbslq_f32(vcgtq_f32(a.v, b.v), a.v, b.v)}; }

inline I set_i(int32_t x) { return {vdupq_n_s32(x)}; }
inline I load_i(const void* p) { return {vreinterpretq_s32_u8(vld1q_u8(static_cast<const uint8_t*>(p)))}; }
inline I add(I a, I b) { return {vaddq_s32(a.v, b.v)}; }
inline I sub(I a, I b) { return {vsubq_s32(a.v, b.v)}; }
inline I bit_and(I a, I b) { return {vandq_s32(a.v, b.v)}; }
inline I bit_or(I a, I b) { return {vorrq_s32(a.v, b.v)}; }
inline I shift_left(I a, int n) { return {vshlq_s32(a.v, vdupq_n_s32(n))}; }
inline I shift_right(I a, int n) { return {vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a.v), vdupq_n_s32(-n)))}; }
inline I max_i(I a, I b) { return {vmaxq_s32(a.v, b.v)}; }
inline I bits_of(F a) { return {vreinterpretq_s32_f32(a.v)}; }
inline F float_of_bits(I a) { return {vreinterpretq_f32_s32(a.v)}; }
inline F to_float(I a) { return {vcvtq_f32_s32(a.v)}; }
inline I round_to_i(F a) { return {vcvtnq_s32_f32(a.v)}; }
inline void store_i8(int8_t* p, I a) {
  int8x8_t bytes = vmovn_s16(vcombine_s16(vmovn_s32(a.v), vdup_n_s16(0)));
  std::memcpy(p, &bytes, 4);
}

inline F load_f16(const void* p) {
  float16x4_t h;
  std::memcpy(&h, p, 8);
  return {vcvt_f32_f16(h)};
}
inline void store_f16(void* p, F a) {
  float16x4_t h = vcvt_f16_f32(a.v);
  std::memcpy(p, &h, 8);
}
inline I load_u16(const void* p) {
  uint16x4_t h;
  std::memcpy(&h, p, 8);
  return {vreinterpretq_s32_u32(vmovl_u16(h))};
}
inline I load_u8(const void* p) {
  uint8x8_t b = vdup_n_u8(0);
  std::memcpy(&b, p, 4);
  return {vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(b))))};
}
inline I load_i8(const void* p) {
  int8x8_t b = vdup_n_s8(0);
  std::memcpy(&b, p, 4);
  return {vmovl_s16(vget_low_s16(vmovl_s8(b)))};
}

// The dot is signed by signed: codes of 8 bits go in as code − 128 and the caller starts from that bias.
constexpr int kDotBias = 128;
template <bool WIDE>
inline I dot(I acc, I w, int32_t x) {
  int8x16_t codes = vreinterpretq_s8_s32(w.v);
  if constexpr (WIDE) codes = veorq_s8(codes, vdupq_n_s8(-128));
  return {vdotq_s32(acc.v, codes, vreinterpretq_s8_s32(vdupq_n_s32(x)))};
}

inline F sum_lanes(const F (&v)[kLanes]) {
  return {vpaddq_f32(vpaddq_f32(v[0].v, v[1].v), vpaddq_f32(v[2].v, v[3].v))};
}

#else  // plain C++

constexpr const char* kSimdName = "plain C++";
constexpr int kLanes = 8;
constexpr int kRegisters = 16;
struct F { float v[kLanes]; };
struct I { int32_t v[kLanes]; };

template <class R, class G>
inline R each_lane(G g) {
  R r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = g(i);
  return r;
}
template <class T>
inline T element(const void* p, int i) {
  T x;
  std::memcpy(&x, static_cast<const char*>(p) + size_t(i) * sizeof(T), sizeof(T));
  return x;
}

inline F set(float x) { return each_lane<F>([&](int) { return x; }); }
inline F load(const float* p) { return each_lane<F>([&](int i) { return p[i]; }); }
inline void store(float* p, F a) { std::memcpy(p, a.v, sizeof a.v); }
inline F add(F a, F b) { return each_lane<F>([&](int i) { return a.v[i] + b.v[i]; }); }
inline F sub(F a, F b) { return each_lane<F>([&](int i) { return a.v[i] - b.v[i]; }); }
inline F mul(F a, F b) { return each_lane<F>([&](int i) { return a.v[i] * b.v[i]; }); }
inline F div(F a, F b) { return each_lane<F>([&](int i) { return a.v[i] / b.v[i]; }); }
inline F min(F a, F b) { return each_lane<F>([&](int i) { return math::min(a.v[i], b.v[i]); }); }
inline F max(F a, F b) { return each_lane<F>([&](int i) { return math::max(a.v[i], b.v[i]); }); }
inline F fma(F a, F b, F c) { return each_lane<F>([&](int i) { return math::fma(a.v[i], b.v[i], c.v[i]); }); }

inline I set_i(int32_t x) { return each_lane<I>([&](int) { return x; }); }
inline I load_i(const void* p) { return each_lane<I>([&](int i) { return element<int32_t>(p, i); }); }
inline I add(I a, I b) { return each_lane<I>([&](int i) { return int32_t(uint32_t(a.v[i]) + uint32_t(b.v[i])); }); }
inline I sub(I a, I b) { return each_lane<I>([&](int i) { return int32_t(uint32_t(a.v[i]) - uint32_t(b.v[i])); }); }
inline I bit_and(I a, I b) { return each_lane<I>([&](int i) { return a.v[i] & b.v[i]; }); }
inline I bit_or(I a, I b) { return each_lane<I>([&](int i) { return a.v[i] | b.v[i]; }); }
inline I shift_left(I a, int n) { return each_lane<I>([&](int i) { return int32_t(uint32_t(a.v[i]) << n); }); }
inline I shift_right(I a, int n) { return each_lane<I>([&](int i) { return int32_t(uint32_t(a.v[i]) >> n); }); }
inline I max_i(I a, I b) { return each_lane<I>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
inline I bits_of(F a) { return each_lane<I>([&](int i) { return int32_t(f32_bits(a.v[i])); }); }
inline F float_of_bits(I a) { return each_lane<F>([&](int i) { return bits_f32(uint32_t(a.v[i])); }); }
inline F to_float(I a) { return each_lane<F>([&](int i) { return float(a.v[i]); }); }
inline I round_to_i(F a) {  // |a| < 2^22
  return each_lane<I>([&](int i) { return int32_t(f32_bits(a.v[i] + math::kRound) - f32_bits(math::kRound)); });
}
inline void store_i8(int8_t* p, I a) {
  for (int i = 0; i < kLanes; ++i) p[i] = int8_t(a.v[i]);
}

inline F load_f16(const void* p) { return each_lane<F>([&](int i) { return f16_to_f32(element<uint16_t>(p, i)); }); }
inline void store_f16(void* p, F a) {
  for (int i = 0; i < kLanes; ++i) store_f32(p, DType::f16, i, a.v[i]);
}
inline I load_u16(const void* p) { return each_lane<I>([&](int i) { return int32_t(element<uint16_t>(p, i)); }); }
inline I load_u8(const void* p) { return each_lane<I>([&](int i) { return int32_t(element<uint8_t>(p, i)); }); }
inline I load_i8(const void* p) { return each_lane<I>([&](int i) { return int32_t(element<int8_t>(p, i)); }); }

constexpr int kDotBias = 0;
template <bool WIDE>
inline I dot(I acc, I w, int32_t x) {
  return each_lane<I>([&](int i) {
    int32_t sum = acc.v[i];
    for (int b = 0; b < 32; b += 8) sum += int32_t((uint32_t(w.v[i]) >> b) & 255) * int32_t(int8_t(uint32_t(x) >> b));
    return sum;
  });
}

inline F sum_lanes(const F (&v)[kLanes]) {
  return each_lane<F>([&](int i) {
    const float* a = v[i].v;
    return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
  });
}

#endif

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
