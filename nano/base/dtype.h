// Element types and their conversions to float32, bit by bit, so that a reader sees them and every device
// rounds alike. The CUDA kernels include this file: no standard containers here.
// Sources: IEEE 754-2019 (binary16), arXiv 2209.05433 (FP8 E4M3).
#pragma once

#include <cstdint>
#include <cstring>

namespace nano {

enum class DType : uint8_t { f32, f16, bf16, e4m3, i8, u8, i16, i32, i64 };

constexpr int64_t dtype_bytes(DType t) {
  switch (t) {
    case DType::f32:
    case DType::i32: return 4;
    case DType::f16:
    case DType::bf16:
    case DType::i16: return 2;
    case DType::i64: return 8;
    case DType::e4m3:
    case DType::i8:
    case DType::u8: return 1;
  }
  return 0;
}

constexpr const char* dtype_name(DType t) {
  switch (t) {
    case DType::f32: return "float32";
    case DType::f16: return "float16";
    case DType::bf16: return "bfloat16";
    case DType::e4m3: return "float8_e4m3";
    case DType::i8: return "int8";
    case DType::u8: return "uint8";
    case DType::i16: return "int16";
    case DType::i32: return "int32";
    case DType::i64: return "int64";
  }
  return "?";
}

inline uint32_t f32_bits(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
}
inline float bits_f32(uint32_t u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

// bfloat16 is the upper half of a float32.
inline float bf16_to_f32(uint16_t h) { return bits_f32(uint32_t(h) << 16); }
inline uint16_t f32_to_bf16(float x) {  // to nearest, ties to even; NaN stays NaN
  uint32_t u = f32_bits(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t((u >> 16) | 0x40);
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

// binary16: 1 sign, 5 exponent (bias 15), 10 mantissa bits.
inline float f16_to_f32(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000u) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 31) return bits_f32(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return bits_f32(sign | ((exponent + 112) << 23) | (mantissa << 13));
  float magnitude = float(mantissa) * 5.9604644775390625e-8f;  // subnormal: mantissa · 2^-24, exact
  return bits_f32(sign | f32_bits(magnitude));
}
inline uint16_t f32_to_f16(float x) {  // to nearest, ties to even; overflow becomes infinity
  uint32_t u = f32_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return uint16_t(sign | 0x7e00u | ((a >> 13) & 0x1ffu));
  if (a >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // 65520 and above round to infinity
  if (a >= 0x38800000u)                                   // normal: 2^-14 and above
    return uint16_t(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1)) >> 13));
  // Subnormal: adding 0.5 leaves the value in units of 2^-24 in the low bits, rounded by the adder.
  uint32_t units = f32_bits(bits_f32(a) + 0.5f) - 0x3f000000u;
  return uint16_t(sign | units);
}

// FP8 E4M3 (FN): bias 7, no infinity, 0x7f and 0xff are NaN.
inline float e4m3_to_f32(uint8_t b) {
  uint32_t exponent = (b >> 3) & 15, mantissa = b & 7, sign = uint32_t(b & 0x80u) << 24;
  if ((b & 0x7f) == 0x7f) return bits_f32(sign | 0x7fc00000u);
  if (exponent != 0) return bits_f32(sign | ((exponent + 120) << 23) | (mantissa << 20));
  return bits_f32(sign | f32_bits(float(mantissa) * 0.001953125f));  // mantissa · 2^-9
}

inline uint8_t f32_to_e4m3(float x) {  // to nearest, ties to even; saturates at 448; NaN stays NaN
  uint32_t u = f32_bits(x), sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return uint8_t(sign | 0x7fu);
  if (a >= 0x43e00000u) return uint8_t(sign | 0x7eu);  // 448 and above
  if (a >= 0x3c800000u)                                // normal: 2^-6 and above
    return uint8_t(sign | ((a - 0x3c000000u + 0x7ffffu + ((a >> 20) & 1)) >> 20));
  // Subnormal: adding 2^14 leaves the value in units of 2^-9 in the low bits, rounded by the adder.
  return uint8_t(sign | (f32_bits(bits_f32(a) + 16384.0f) - 0x46800000u));
}

// Element i of an array of floating-point type t, as float32.
inline float load_f32(const void* p, DType t, int64_t i) {
  uint16_t h;
  switch (t) {
    case DType::f32: {
      float x;
      std::memcpy(&x, static_cast<const char*>(p) + 4 * i, 4);
      return x;
    }
    case DType::f16: std::memcpy(&h, static_cast<const char*>(p) + 2 * i, 2); return f16_to_f32(h);
    case DType::bf16: std::memcpy(&h, static_cast<const char*>(p) + 2 * i, 2); return bf16_to_f32(h);
    case DType::e4m3: return e4m3_to_f32(static_cast<const uint8_t*>(p)[i]);
    default: return 0.0f;
  }
}
inline void store_f32(void* p, DType t, int64_t i, float x) {  // f32, f16 and bf16
  uint16_t h;
  switch (t) {
    case DType::f32: std::memcpy(static_cast<char*>(p) + 4 * i, &x, 4); break;
    case DType::f16:
      h = f32_to_f16(x);
      std::memcpy(static_cast<char*>(p) + 2 * i, &h, 2);
      break;
    case DType::bf16:
      h = f32_to_bf16(x);
      std::memcpy(static_cast<char*>(p) + 2 * i, &h, 2);
      break;
    default: break;
  }
}

}  // namespace nano
