// Reading a packed tile: codes and scales into vectors, for both kernels. Layout: linear.h.
#pragma once

#include "backend/cpu/linear.h"  // kFormats, kTile
#include "backend/cpu/simd.h"    // F, I

namespace nano::NANO_ISA {
namespace {

// Bytes ahead. Hardware prefetch alone leaves 40 % of the bandwidth unused.
constexpr int64_t kPrefetch = 4096;

// Quad j of a tile: four codes of each row, one byte each.
template <int FORMAT>
inline I unpack_quad(const uint8_t* tile, int j) {
  constexpr PanelFormat f = kFormats[FORMAT];
  // The plane's bits of the quad, moved to bit `to` of each byte.
  auto plane = [&](const uint8_t* p, int width, int to) {
    I v = load_i(p + (j % width) * 4 * kLanes);
    if (width == 8) return v;
    const int from = width * (j / width);
    v = from > to ? v >> (from - to) : v << (to - from);
    return v & set_i(int32_t(0x01010101u * (((1u << width) - 1) << to)));
  };
  const I low = plane(tile, f.low, 0);
  if constexpr (f.high == 0) return low;
  return low | plane(tile + f.low * 4 * kLanes, f.high == 0 ? 1 : f.high, f.low);
}

// The same of a single plane of 4 bits, but the upper half of each byte is not cleared: for nibble_to_float.
inline I nibble_quad(const uint8_t* tile, int j) { return load_i(tile + j % 4 * 4 * kLanes) >> j / 4 * 4; }

// Scale and minimum of one unit for the L rows; two-level ones from d, dmin and the small integers of this tile.
struct UnitScale {
  F scale, minimum;
};
template <int FORMAT>
inline UnitScale unit_scale(const uint8_t* scales, int unit, F d, F dmin) {
  constexpr PanelFormat f = kFormats[FORMAT];
  if constexpr (f.scales == Scales::in_tile) {
    return {load_f16(scales), f.minimum ? load_f16(scales + (f.minimum ? 2 * kLanes : 0)) : d};
  } else if constexpr (f.minimum && f.unit == 16) {
    I both = load_u8(scales + unit * kLanes);
    return {d * nibble_to_float(both), dmin * nibble_to_float(both >> 4)};
  } else {
    const uint8_t* minima = scales + kTile / f.unit * kLanes;
    F minimum = f.minimum ? dmin * to_float(load_u8(minima + (f.minimum ? unit * kLanes : 0))) : d;
    return {d * to_float(load_i8(scales + unit * kLanes)), minimum};
  }
}

inline F load_scale(const uint8_t* p, DType t) {
  if (t == DType::f16) return load_f16(p);
  return t == DType::bf16 ? load_bf16(p) : load(reinterpret_cast<const float*>(p));
}

// Walks the scales of a panel that lie apart, unit by unit; a group is one or more units.
struct ApartScales {
  ApartScales(const PackedPart& part, const uint8_t* panel, int64_t unit)
      : part(part), at(panel), zero(set_i(part.zero)) {
    const int64_t size = dtype_bytes(part.scale_dtype) * kLanes, into = unit % part.units_per_group;
    at += unit / part.units_per_group *
          (size * (part.offset == Offset::minimum ? 2 : 1) + (part.zeros ? kLanes : 0));
    if (into == 0) return;
    read();
    left = part.units_per_group - into;
  }
  void enter_unit() {
    if (left == 0) {
      read();
      left = part.units_per_group;
    }
    --left;
  }
  void read() {
    auto take = [&] {
      const F v = load_scale(at, part.scale_dtype);
      at += dtype_bytes(part.scale_dtype) * kLanes;
      return v;
    };
    scale = take();
    if (part.offset == Offset::minimum) minimum = take();
    if (!part.zeros) return;
    zero = load_u8(at);
    at += kLanes;
  }

  const PackedPart& part;
  const uint8_t* at;
  int64_t left = 0;
  F scale = zero_f(), minimum = zero_f();
  I zero;
};

}  // namespace
}  // namespace nano::NANO_ISA
