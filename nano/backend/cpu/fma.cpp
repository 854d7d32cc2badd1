// The float micro-kernel: a chunk of weights is decoded to float32 in the L1 cache, then every row of x multiplies
// with it. For dense matrices, and for quantised ones with float32 activations. A decoded weight is rounded as
// decode_rows rounds it.
//
//   y[m] = fma(w[k], x[m][k], y[m]) for k ascending: one chain for each (row, output), carried from chunk to chunk.
// A chain waits for itself, so kPanelsAtOnce panels advance together.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "backend/cpu/linear.h"  // PackedPart, PanelRef
#include "backend/cpu/tile.h"    // unpack_quad, unit_scale

namespace nano::NANO_ISA {

namespace {

template <DType TYPE>
inline F load_weights(const uint8_t* w) {
  if constexpr (TYPE == DType::f16) return load_f16(w);
  if constexpr (TYPE == DType::bf16) return load_bf16(w);
  return load(reinterpret_cast<const float*>(w));
}

// One row of x against kPanelsAtOnce dense panels: nothing is used twice, so nothing goes through the L1 cache. The
// same operations in the same order as the way for more rows, so the same bits.
template <DType TYPE>
void fma_one_row(float* const* acc, const uint8_t* const* panels, const float* x, int64_t K) {
  constexpr int64_t kBytes = kLanes * dtype_bytes(TYPE);
  F y[kPanelsAtOnce];
  NANO_UNROLL
  for (int p = 0; p < kPanelsAtOnce; ++p) y[p] = zero_f();
  for (int64_t k = 0; k < K; ++k) {
    const F xv = set(x[k]);
    NANO_UNROLL
    for (int p = 0; p < kPanelsAtOnce; ++p) {
      const uint8_t* w = panels[p] + k * kBytes;
      __builtin_prefetch(w + kPrefetch);
      y[p] = fma(load_weights<TYPE>(w), xv, y[p]);
    }
  }
  NANO_UNROLL
  for (int p = 0; p < kPanelsAtOnce; ++p) store(acc[p], y[p]);
}

// out [n][L] = inputs k0 … k0+n−1 of a panel.
template <int FORMAT>
void decode_dense(float* out, const PackedPart&, const uint8_t* panel, int64_t k0, int64_t n,
                  int64_t prefetch) {
  constexpr DType type = kFormats[FORMAT].dense;
  const uint8_t* w = panel + k0 * kLanes * dtype_bytes(type);
  for (int64_t k = 0; k < n; ++k, w += kLanes * dtype_bytes(type)) {
    __builtin_prefetch(w + prefetch);
    store(out + k * kLanes, load_weights<type>(w));
  }
}

// FP8 E4M3 in normal numbers only, so that it holds with denormals flushed: (8·[e>0] + m) · 2^(max(e, 1) − 10).
F float_of_e4m3(I code) {  // in the low 8 bits
  const I e = code >> 3 & set_i(15), m = code & set_i(7);
  const I power = max_i(e, set_i(1)), implied = set_i(8) - ((power - e) << 3);
  const F size = to_float(m + implied) * float_of_bits((power + set_i(117)) << 23);
  return float_of_bits(bits_of(size) | (code & set_i(128)) << 24);
}

// One tile; apart is given for formats whose scales lie apart.
template <int FORMAT>
void decode_tile(float* out, const uint8_t* w, F d, F dmin, ApartScales* apart) {
  constexpr PanelFormat f = kFormats[FORMAT];
  constexpr bool kApart = f.scales == Scales::apart, kNibbles = f.low == 4 && f.high == 0;
  const uint8_t* scales = w + (f.low + f.high) * 4 * kLanes;
  const bool minimum = kApart ? apart->part.offset == Offset::minimum : f.minimum;
  const bool e4m3 = kApart && f.low == 8 && apart->part.e4m3;
  NANO_UNROLL
  for (int unit = 0; unit < kTile / f.unit; ++unit) {
    if constexpr (kApart) apart->enter_unit();
    const UnitScale s =
        kApart ? UnitScale{apart->scale, apart->minimum} : unit_scale<FORMAT>(scales, unit, d, dmin);
    const F zero = kApart ? to_float(apart->zero) : set(f.zero_shift ? 1 << f.zero_shift : 0);
    NANO_UNROLL
    for (int j = unit * f.unit / 4; j < (unit + 1) * f.unit / 4; ++j) {
      const I quad = kNibbles ? nibble_quad(w, j) : unpack_quad<FORMAT>(w, j);
      NANO_UNROLL
      for (int i = 0; i < 4; ++i) {
        const I code = quad >> 8 * i;
        F value = kNibbles ? nibble_to_float(code) : to_float(code & set_i(255));
        if (kApart || f.zero_shift) value = value - zero;
        if (e4m3) value = float_of_e4m3(code);
        value = s.scale * value;
        store(out + (4 * j + i) * kLanes, minimum ? value - s.minimum : value);
      }
    }
  }
}

template <int FORMAT>
void decode_quantized(float* out, const PackedPart& part, const uint8_t* panel, int64_t k0, int64_t n,
                      int64_t) {
  constexpr PanelFormat f = kFormats[FORMAT];
  F d = zero_f(), dmin = zero_f();
  [[maybe_unused]] ApartScales apart(part, panel, k0 / std::max(f.unit, 1));
  if (f.scales == Scales::apart) panel += part.apart_bytes;
  for (int64_t g = k0 / kTile; g < num_tiles(k0 + n); ++g, out += kTile * kLanes) {
    const uint8_t* w = panel + tile_offset(f, g);
    if (f.scales == Scales::two_level) {
      const uint8_t* super = panel + tile_offset(f, g / kTilesPerSuper * kTilesPerSuper);
      d = load_f16(super);
      if (f.minimum) dmin = load_f16(super + 2 * kLanes);
      if (g % kTilesPerSuper == 0) w += super_bytes(f);
    }
    decode_tile<FORMAT>(out, w, d, dmin, &apart);
  }
}

// prefetch: bytes ahead, for dense formats; 0 where the caller asks for the next chunk.
using Decode = void (*)(float* out, const PackedPart& part, const uint8_t* panel, int64_t k0, int64_t n,
                        int64_t prefetch);

template <int FORMAT>
constexpr Decode decoder() {
  if constexpr (FORMAT < kFirstDense)
    return decode_quantized<FORMAT>;
  else
    return decode_dense<FORMAT>;
}
template <int... FORMAT>
constexpr std::array<Decode, sizeof...(FORMAT)> decode_table(std::integer_sequence<int, FORMAT...>) {
  return {decoder<FORMAT>()...};
}
constexpr auto kDecoders = decode_table(std::make_integer_sequence<int, kNumFormats>());

// ROWS rows of x (row stride K) times the decoded chunk of PANELS panels, added to acc[panel] [.][L].
template <int ROWS, int PANELS>
void fma_block(float* const* acc, const float* weights, const float* x, int64_t K, int64_t n) {
  F y[PANELS][ROWS];
  NANO_UNROLL
  for (int p = 0; p < PANELS; ++p) {
    NANO_UNROLL
    for (int r = 0; r < ROWS; ++r) y[p][r] = load(acc[p] + r * kLanes);
  }
  for (int64_t k = 0; k < n; ++k) {
    F w[PANELS];
    NANO_UNROLL
    for (int p = 0; p < PANELS; ++p) w[p] = in_register(load(weights + (p * kChunkK + k) * kLanes));
    NANO_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      F xv = set(x[r * K + k]);
      NANO_UNROLL
      for (int p = 0; p < PANELS; ++p) y[p][r] = fma(w[p], xv, y[p][r]);
    }
  }
  NANO_UNROLL
  for (int p = 0; p < PANELS; ++p) {
    NANO_UNROLL
    for (int r = 0; r < ROWS; ++r) store(acc[p] + r * kLanes, y[p][r]);
  }
}

// By rows − 1 and panels − 1. (A table also because GCC 12 compiles a chain of ?: over these wrongly.)
using FmaBlock = void (*)(float* const*, const float*, const float*, int64_t, int64_t);
constexpr int kRowsAtOnce = 4;
template <int ROWS, int... I>
constexpr std::array<FmaBlock, kPanelsAtOnce> blocks_of_rows(std::integer_sequence<int, I...>) {
  return {fma_block<ROWS, I + 1>...};
}
template <int... I>
constexpr std::array<std::array<FmaBlock, kPanelsAtOnce>, kRowsAtOnce> all_blocks(
    std::integer_sequence<int, I...>) {
  return {blocks_of_rows<I + 1>(std::make_integer_sequence<int, kPanelsAtOnce>())...};
}
constexpr auto kFmaBlocks = all_blocks(std::make_integer_sequence<int, kRowsAtOnce>());

// In the order of kFormats.
constexpr void (*kOneRow[])(float* const*, const uint8_t* const*, const float*, int64_t) = {
    fma_one_row<DType::f32>, fma_one_row<DType::f16>, fma_one_row<DType::bf16>};

const uint8_t* panel_of(const PanelRef& ref) {
  return ref.part->panel_data + ref.panel * ref.part->panel_bytes;
}

bool alike_and_dense(const PanelRef* refs, int count) {
  const int format = refs[0].part->format;
  return format >= kFirstDense &&
         std::all_of(refs, refs + count, [&](const PanelRef& r) { return r.part->format == format; });
}

}  // namespace

void fma_panels(const PanelRef* refs, int count, float* weights, const float* x, int64_t rows, int64_t K) {
  float* acc[kPanelsAtOnce];
  const uint8_t* panels[kPanelsAtOnce];
  for (int p = 0; p < kPanelsAtOnce; ++p) {
    const PanelRef& ref =
        refs[p < count ? p : 0];  // in place of a missing panel fma_one_row does the first again
    acc[p] = ref.acc, panels[p] = panel_of(ref);
  }
  if (rows == 1 && alike_and_dense(refs, count))
    return kOneRow[refs[0].part->format - kFirstDense](acc, panels, x, K);
  for (int p = 0; p < count; ++p) std::fill_n(acc[p], rows * kLanes, 0.0f);
  // Few rows of a dense matrix wait for memory alone: it must be asked as early as can be. Else the next chunk is asked
  // for bit by bit, a share with each block of rows, and memory works while we multiply.
  const bool memory_bound = rows <= 2 * kRowsAtOnce && alike_and_dense(refs, count);
  const int64_t blocks = (rows + kRowsAtOnce - 1) / kRowsAtOnce;
  const int64_t step = refs[0].part != refs[count - 1].part ? count / 2 : count;  // gate and up take turns
  for (int64_t k0 = 0; k0 < K; k0 += kChunkK) {
    const int64_t n = std::min(kChunkK, K - k0);
    const uint8_t* next[kPanelsAtOnce] = {};
    int64_t lines = 0;
    for (int p = 0; p < count; ++p) {
      const PackedPart& part = *refs[p].part;
      kDecoders[size_t(part.format)](weights + p * kChunkK * kLanes, part, panels[p], k0, n,
                                     memory_bound ? kPrefetch : 0);
      // About: scales that lie apart are in front of the codes.
      next[p] = panels[p] + (k0 + n < K ? part.panel_bytes * (k0 + n) / K : part.panel_bytes * step);
      if (!memory_bound) lines = std::max(lines, part.panel_bytes * kChunkK / K / 64 / blocks + 1);
    }
    for (int64_t m = 0, R; m < rows; m += R) {
      R = std::min<int64_t>(kRowsAtOnce, rows - m);
      float* block[kPanelsAtOnce];
      for (int p = 0; p < count; ++p) {
        for (int64_t line = 0; line < lines; ++line, next[p] += 64) __builtin_prefetch(next[p]);
        block[p] = acc[p] + m * kLanes;
      }
      kFmaBlocks[size_t(R - 1)][size_t(count - 1)](block, weights, x + m * K + k0, K, n);
    }
  }
}

}  // namespace nano::NANO_ISA
