// Plain C++ for every other machine: 8 lanes, loops that compilers may vectorise. What the operations mean: simd.h, which includes this.
#pragma once

#include <cstdint>
#include <cstring>

#include "backend/mathfn.h"  // math::kRound
#include "base/dtype.h"      // conversions

namespace nano {
namespace {

constexpr const char* kSimdName = "plain C++";
constexpr int kLanes = 8;
constexpr int kRegisters = 16;
struct F {
  float v[kLanes];
};
struct I {
  int32_t v[kLanes];
};

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

inline F set(float x) {
  return each_lane<F>([&](int) { return x; });
}
inline F load(const float* p) {
  return each_lane<F>([&](int i) { return p[i]; });
}
inline void store(float* p, F a) { std::memcpy(p, a.v, sizeof a.v); }
inline F add(F a, F b) {
  return each_lane<F>([&](int i) { return a.v[i] + b.v[i]; });
}
inline F sub(F a, F b) {
  return each_lane<F>([&](int i) { return a.v[i] - b.v[i]; });
}
inline F mul(F a, F b) {
  return each_lane<F>([&](int i) { return a.v[i] * b.v[i]; });
}
inline F div(F a, F b) {
  return each_lane<F>([&](int i) { return a.v[i] / b.v[i]; });
}
inline F min(F a, F b) {
  return each_lane<F>([&](int i) { return math::min(a.v[i], b.v[i]); });
}
inline F max(F a, F b) {
  return each_lane<F>([&](int i) { return math::max(a.v[i], b.v[i]); });
}
inline F fma(F a, F b, F c) {
  return each_lane<F>([&](int i) { return math::fma(a.v[i], b.v[i], c.v[i]); });
}

inline I set_i(int32_t x) {
  return each_lane<I>([&](int) { return x; });
}
inline I load_i(const void* p) {
  return each_lane<I>([&](int i) { return element<int32_t>(p, i); });
}
inline I add(I a, I b) {
  return each_lane<I>([&](int i) { return int32_t(uint32_t(a.v[i]) + uint32_t(b.v[i])); });
}
inline I sub(I a, I b) {
  return each_lane<I>([&](int i) { return int32_t(uint32_t(a.v[i]) - uint32_t(b.v[i])); });
}
inline I bit_and(I a, I b) {
  return each_lane<I>([&](int i) { return a.v[i] & b.v[i]; });
}
inline I bit_or(I a, I b) {
  return each_lane<I>([&](int i) { return a.v[i] | b.v[i]; });
}
inline I shift_left(I a, int n) {
  return each_lane<I>([&](int i) { return int32_t(uint32_t(a.v[i]) << n); });
}
inline I shift_right(I a, int n) {
  return each_lane<I>([&](int i) { return int32_t(uint32_t(a.v[i]) >> n); });
}
inline I max_i(I a, I b) {
  return each_lane<I>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline I bits_of(F a) {
  return each_lane<I>([&](int i) { return int32_t(f32_bits(a.v[i])); });
}
inline F float_of_bits(I a) {
  return each_lane<F>([&](int i) { return bits_f32(uint32_t(a.v[i])); });
}
inline F to_float(I a) {
  return each_lane<F>([&](int i) { return float(a.v[i]); });
}
inline I round_to_i(F a) {  // |a| < 2^22
  return each_lane<I>(
      [&](int i) { return int32_t(f32_bits(a.v[i] + math::kRound) - f32_bits(math::kRound)); });
}
inline void store_i8(int8_t* p, I a) {
  for (int i = 0; i < kLanes; ++i) p[i] = int8_t(a.v[i]);
}

inline F load_f16(const void* p) {
  return each_lane<F>([&](int i) { return f16_to_f32(element<uint16_t>(p, i)); });
}
inline void store_f16(void* p, F a) {
  for (int i = 0; i < kLanes; ++i) store_f32(p, DType::f16, i, a.v[i]);
}
inline I load_u16(const void* p) {
  return each_lane<I>([&](int i) { return int32_t(element<uint16_t>(p, i)); });
}
inline I load_u8(const void* p) {
  return each_lane<I>([&](int i) { return int32_t(element<uint8_t>(p, i)); });
}
inline I load_i8(const void* p) {
  return each_lane<I>([&](int i) { return int32_t(element<int8_t>(p, i)); });
}

constexpr int kDotBias = 0;
template <bool WIDE>
inline I dot(I acc, I w, int32_t x) {
  return each_lane<I>([&](int i) {
    int32_t sum = acc.v[i];
    for (int b = 0; b < 32; b += 8)
      sum += int32_t((uint32_t(w.v[i]) >> b) & 255) * int32_t(int8_t(uint32_t(x) >> b));
    return sum;
  });
}

inline F sum_lanes(const F (&v)[kLanes]) {
  return each_lane<F>([&](int i) {
    const float* a = v[i].v;
    return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
  });
}

}  // namespace
}  // namespace nano
