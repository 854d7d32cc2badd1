// The tile unit of AMX multiplies a block of rows with the codes of a whole unit in one instruction:
//
//   C [kTileRows][L] int32 = A [kTileRows][UNIT] int8 · B [UNIT/4][L] quads of codes 0 … 255
//
// set_up_tiles() and load_codes<UNIT>(b) come first, on the same thread, and b [UNIT/4][L] quads stays as it is until
// the next one; then multiply_codes<UNIT> for each block of rows. Each thread keeps its configuration for its life (no
// TILERELEASE between linears: the price is 8 KB more to save when the thread is switched).
// Intel SDM vol. 1, ch. 18. With NANO_TILE_MODEL plain loops stand in for it, so that dot.cpp's way of using it is
// tested on machines without it (make tiles). Such products are exact: the bits are those of the vector instructions.
#pragma once

#include "backend/cpu/simd.h"  // kLanes

#if defined(__AMX_INT8__) && NANO_LANES == 16
#include <immintrin.h>
#endif

namespace nano::NANO_ISA {
namespace {

#if defined(__AMX_INT8__) && NANO_LANES == 16
constexpr bool kHasTileUnit = true, kTileModel = false;
constexpr int kTileRows = 8;

// GCC 12's intrinsics do not tell the compiler which memory they read.
inline void memory_is_written() { asm volatile("" ::: "memory"); }

// Once a thread. Register 0 is C; 1 and 2 are A and B of units of 32, 3 and 4 of units of 16.
inline void set_up_tiles() {
  [[maybe_unused]] thread_local const bool done = [] {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 32, 64, 16, 64};
      uint8_t rows[16] = {kTileRows, kTileRows, 8, kTileRows, 4};
    } config;
    memory_is_written();
    _tile_loadconfig(&config);
    return true;
  }();
}

template <int UNIT>
inline void load_codes(const uint8_t* b) {
  memory_is_written();
  if constexpr (UNIT == 32) _tile_loadd(2, b, 64);
  if constexpr (UNIT == 16) _tile_loadd(4, b, 64);
}

// c [kTileRows][L] = a [kTileRows][UNIT], rows 32 bytes apart, times the codes.
template <int UNIT>
inline void multiply_codes(int32_t* c, const int8_t* a) {
  _tile_zero(0);
  if constexpr (UNIT == 32) {
    _tile_loadd(1, a, 32);
    _tile_dpbsud(0, 1, 2);
  } else {
    _tile_loadd(3, a, 32);
    _tile_dpbsud(0, 3, 4);
  }
  _tile_stored(0, c, 64);
}

#elif defined(NANO_TILE_MODEL)
constexpr bool kHasTileUnit = true, kTileModel = true;
constexpr int kTileRows = kRegisters >= 32 ? 8 : 4;
thread_local const uint8_t* codes_in_tile = nullptr;

inline void set_up_tiles() {}
template <int UNIT>
inline void load_codes(const uint8_t* b) {
  codes_in_tile = b;
}
template <int UNIT>
inline void multiply_codes(int32_t* c, const int8_t* a) {
  for (int r = 0; r < kTileRows; ++r)
    for (int l = 0; l < kLanes; ++l) {
      int32_t sum = 0;
      for (int k = 0; k < UNIT; ++k) sum += a[r * 32 + k] * codes_in_tile[k / 4 * 4 * kLanes + 4 * l + k % 4];
      c[r * kLanes + l] = sum;
    }
}

#else
constexpr bool kHasTileUnit = false, kTileModel = false;
constexpr int kTileRows = 1;
inline void set_up_tiles() {}
template <int UNIT>
inline void load_codes(const uint8_t*) {}
template <int UNIT>
inline void multiply_codes(int32_t*, const int8_t*) {}
#endif

}  // namespace
}  // namespace nano::NANO_ISA
