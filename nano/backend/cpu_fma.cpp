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

#include "backend/cpu_linear.h"  // PackedPart, PanelRef
#include "backend/cpu_tile.h"    // unpack_quad, unit_scale

namespace nano {

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
      __builtin_prefetch(w + 4096);
      y[p] = fma(load_weights<TYPE>(w), xv, y[p]);
    }
  }
  NANO_UNROLL
  for (int p = 0; p < kPanelsAtOnce; ++p) store(acc[p], y[p]);
}

// out [n][L] = inputs k0 … k0+n−1 of a panel.
template <int FORMAT>
void decode_dense(float* out, const PackedPart&, const uint8_t* panel, int64_t k0, int64_t n) {
  constexpr DType type = kFormats[FORMAT].dense;
  const uint8_t* w = panel + k0 * kLanes * dtype_bytes(type);
  for (int64_t k = 0; k < n; ++k, w += kLanes * dtype_bytes(type)) {
    __builtin_prefetch(w + 4096);
    store(out + k * kLanes, load_weights<type>(w));
  }
}

// FP8 E4M3 in normal numbers only, so that it holds with denormals flushed: (8·[e>0] + m) · 2^(max(e, 1) − 10).
F float_of_e4m3(I code) {
  const I e = code >> 3 & set_i(15), m = code & set_i(7);
  const I power = max_i(e, set_i(1)), implied = set_i(8) - ((power - e) << 3);
  const F size = to_float(m + implied) * float_of_bits((power + set_i(117)) << 23);
  return float_of_bits(bits_of(size) | (code & set_i(128)) << 24);
}

// One tile; apart is given for formats whose scales lie apart.
template <int FORMAT>
void decode_tile(float* out, const uint8_t* w, F d, F dmin, ApartScales* apart) {
  constexpr PanelFormat f = kFormats[FORMAT];
  const uint8_t* scales = w + (f.low + f.high) * 4 * kLanes;
  for (int64_t line = 0; line < tile_bytes(f); line += 64) __builtin_prefetch(w + 4096 + line);
  NANO_UNROLL
  for (int j = 0; j < 8; ++j) {
    UnitScale s{d, dmin};
    if constexpr (f.scales == Scales::apart) {
      if (4 * j % f.unit == 0) apart->enter_unit();
      s = {apart->scale, apart->minimum};
    } else {
      s = unit_scale<FORMAT>(scales, 4 * j / f.unit, d, dmin);
    }
    I quad = unpack_quad<FORMAT>(w, j);
    NANO_UNROLL
    for (int i = 0; i < 4; ++i) {
      I code = quad >> 8 * i & set_i(255);
      if (f.zero_shift) code = code - set_i(1 << f.zero_shift);
      F value = to_float(code);
      bool minimum = f.minimum;
      if constexpr (f.scales == Scales::apart) {
        value = apart->part.e4m3 ? float_of_e4m3(code) : to_float(code - apart->zero);
        minimum = apart->part.offset == Offset::minimum;
      }
      value = s.scale * value;
      store(out + (4 * j + i) * kLanes, minimum ? value - s.minimum : value);
    }
  }
}

template <int FORMAT>
void decode_quantized(float* out, const PackedPart& part, const uint8_t* panel, int64_t k0, int64_t n) {
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

using Decode = void (*)(float* out, const PackedPart& part, const uint8_t* panel, int64_t k0, int64_t n);

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

// ROWS rows of x (row stride K) times the decoded chunk of kPanelsAtOnce panels, added to acc[panel] [.][L].
template <int ROWS>
void fma_block(float* const* acc, const float* weights, const float* x, int64_t K, int64_t n) {
  F y[kPanelsAtOnce][ROWS];
  NANO_UNROLL
  for (int p = 0; p < kPanelsAtOnce; ++p) {
    NANO_UNROLL
    for (int r = 0; r < ROWS; ++r) y[p][r] = load(acc[p] + r * kLanes);
  }
  for (int64_t k = 0; k < n; ++k) {
    F w[kPanelsAtOnce];
    NANO_UNROLL
    for (int p = 0; p < kPanelsAtOnce; ++p) w[p] = in_register(load(weights + (p * kChunkK + k) * kLanes));
    NANO_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      F xv = set(x[r * K + k]);
      NANO_UNROLL
      for (int p = 0; p < kPanelsAtOnce; ++p) y[p][r] = fma(w[p], xv, y[p][r]);
    }
  }
  NANO_UNROLL
  for (int p = 0; p < kPanelsAtOnce; ++p) {
    NANO_UNROLL
    for (int r = 0; r < ROWS; ++r) store(acc[p] + r * kLanes, y[p][r]);
  }
}

// By log2 of the rows. (A table also because GCC 12 compiles a chain of ?: over these wrongly.)
constexpr void (*kFmaBlocks[])(float* const*, const float*, const float*, int64_t, int64_t) = {
    fma_block<1>, fma_block<2>, fma_block<4>};

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

void fma_panels(const PanelRef* refs, int count, float* weights, float* spare, const float* x, int64_t rows,
                int64_t K) {
  float* acc[kPanelsAtOnce];
  for (int p = 0; p < kPanelsAtOnce; ++p) {
    acc[p] = p < count ? refs[p].acc : spare;  // what a missing panel computes is thrown away
    std::fill_n(acc[p], rows * kLanes, 0.0f);
  }
  if (rows == 1 && alike_and_dense(refs, count)) {
    const uint8_t* panels[kPanelsAtOnce];
    for (int p = 0; p < kPanelsAtOnce; ++p) panels[p] = panel_of(refs[p < count ? p : 0]);
    return kOneRow[refs[0].part->format - kFirstDense](acc, panels, x, K);
  }
  for (int64_t k0 = 0; k0 < K; k0 += kChunkK) {
    const int64_t n = std::min(kChunkK, K - k0);
    for (int p = 0; p < count; ++p) {
      const PackedPart& part = *refs[p].part;
      kDecoders[size_t(part.format)](weights + p * kChunkK * kLanes, part, panel_of(refs[p]), k0, n);
    }
    for (int64_t m = 0, R; m < rows; m += R) {
      float* block[kPanelsAtOnce];
      for (int p = 0; p < kPanelsAtOnce; ++p) block[p] = acc[p] + m * kLanes;
      const int log2_rows = rows - m >= 4 ? 2 : rows - m >= 2 ? 1 : 0;
      R = int64_t(1) << log2_rows;
      kFmaBlocks[log2_rows](block, weights, x + m * K + k0, K, n);
    }
  }
}

}  // namespace nano
