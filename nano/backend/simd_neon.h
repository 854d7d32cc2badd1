// NEON with the dot product instructions: 4 lanes. What the operations mean: simd.h, which includes this.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "backend/mathfn.h"  // math::kRound
#include "base/dtype.h"      // conversions

namespace nano {
namespace {

constexpr const char* kSimdName = "NEON dot product";
constexpr int kLanes = 4;
constexpr int kRegisters = 32;
struct F {
  float32x4_t v;
};
struct I {
  int32x4_t v;
};

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
inline I shift_right(I a, int n) {
  return {vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a.v), vdupq_n_s32(-n)))};
}
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

}  // namespace
}  // namespace nano
