// NEON with the dot product instructions: 4 lanes. What the operations mean: simd.h, which includes this.
#pragma once

#include <arm_neon.h>

#include <cstring>

namespace nano::NANO_ISA {
namespace {

constexpr const char* kSimdName = "NEON dot product";
constexpr int kRegisters = 32;

inline F fma(F a, F b, F c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
inline F min(F a, F b) { return {a.v < b.v ? a.v : b.v}; }
inline F max(F a, F b) { return {a.v > b.v ? a.v : b.v}; }

inline I load_u16(const void* p) {
  uint16x4_t v;
  std::memcpy(&v, p, 8);
  return {Ints(vmovl_u16(v))};
}
inline I load_u8(const void* p) {
  return {Ints(vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(uint32_t(load_dword(p))))))))};
}
inline I load_i8(const void* p) {
  return {vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(load_dword(p))))))};
}
inline void store_i8(int8_t* p, I a) {
  const int16x4_t words = vmovn_s32(a.v);
  store_as(p, vget_lane_s32(vreinterpret_s32_s8(vmovn_s16(vcombine_s16(words, words))), 0));
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

inline int32_t max_lane(I a) { return vmaxvq_s32(a.v); }
inline int32_t add_lanes(I a) { return vaddvq_s32(a.v); }

inline F nibble_to_float(I a) { return to_float(a & set_i(15)); }

// The dot is signed by signed: wide codes go in as code − 128.
constexpr int kDotBias = 128;
template <bool WIDE>
inline I dot(I acc, I w, int32_t x) {
  int8x16_t codes = int8x16_t(w.v);
  if constexpr (WIDE) codes = veorq_s8(codes, vdupq_n_s8(-128));
  return {vdotq_s32(acc.v, codes, int8x16_t(set_i(x).v))};
}

inline F sum_lanes(const F (&v)[kLanes]) {
  return {vpaddq_f32(vpaddq_f32(v[0].v, v[1].v), vpaddq_f32(v[2].v, v[3].v))};
}

}  // namespace
}  // namespace nano::NANO_ISA
