// Every other machine: 4 lanes, loops where the vector types do not help. What the operations mean: simd.h.
#pragma once

namespace nano::NANO_ISA {
namespace {

constexpr const char* kSimdName = "plain C++";
constexpr int kRegisters = 16;

inline F fma(F a, F b, F c) {
  for (int i = 0; i < kLanes; ++i) c.v[i] = math::fma(a.v[i], b.v[i], c.v[i]);
  return c;
}
inline F min(F a, F b) { return {a.v < b.v ? a.v : b.v}; }
inline F max(F a, F b) { return {a.v > b.v ? a.v : b.v}; }

template <class T>
inline I load_integers(const void* p) {
  const auto* v = static_cast<const Unaligned<T>*>(p);
  return {Ints{v[0].value, v[1].value, v[2].value, v[3].value}};
}
inline I load_u8(const void* p) { return load_integers<uint8_t>(p); }
inline I load_i8(const void* p) { return load_integers<int8_t>(p); }
inline I load_u16(const void* p) { return load_integers<uint16_t>(p); }
inline void store_i8(int8_t* p, I a) {
  for (int i = 0; i < kLanes; ++i) p[i] = int8_t(a.v[i]);
}
inline F load_f16(const void* p) {
  F x;
  for (int i = 0; i < kLanes; ++i) x.v[i] = load_f32(p, DType::f16, i);
  return x;
}
inline void store_f16(void* p, F a) {
  for (int i = 0; i < kLanes; ++i) store_f32(p, DType::f16, i, a.v[i]);
}

inline int32_t max_lane(I a) {
  for (int i = 1; i < kLanes; ++i) a.v[0] = a.v[i] > a.v[0] ? a.v[i] : a.v[0];
  return a.v[0];
}
inline int32_t add_lanes(I a) {
  for (int i = 1; i < kLanes; ++i) a.v[0] += a.v[i];
  return a.v[0];
}

inline F nibble_to_float(I a) { return to_float(a & set_i(15)); }

constexpr int kDotBias = 0;
template <bool WIDE>
inline I dot(I acc, I w, int32_t x) {
  for (int b = 0; b < 32; b += 8) acc = acc + I{((w.v >> b) & 255) * int32_t(int8_t(uint32_t(x) >> b))};
  return acc;
}

inline F sum_lanes(const F (&v)[kLanes]) {
  F sum;
  for (int i = 0; i < kLanes; ++i) sum.v[i] = (v[i].v[0] + v[i].v[2]) + (v[i].v[1] + v[i].v[3]);
  return sum;
}

}  // namespace
}  // namespace nano::NANO_ISA
