// The integer micro-kernel: int8 activations times packed codes. One template for all formats and all numbers of
// rows; what differs is known when it is compiled.
//
//   y[m], over units g in order:  fma( float(Σ (code − zero)·q), s_g · scale_g, · ),  then  fma( m_g, −scale_g·Σq, · )
//
// The sums inside a unit are exact integers, so the only rounding is the one written here: the same for every M.
// Formats whose scales lie apart take an integer zero point as m_g = s_g · z.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "backend/cpu_linear.h"  // PackedPart, QuantizedRows, InputForm
#include "backend/cpu_tile.h"    // unpack_quad, unit_scale

namespace nano {

namespace {

constexpr int kMaxRows = kRegisters >= 32 ? 8 : 4;  // rows that share an unpacked vector

// Rows of the block that begins at row m: the largest of 8, 4, 2, 1 that fits before M.
int64_t block_rows(int64_t m, int64_t M) {
  int64_t rows = kMaxRows;
  while (rows > M - m) rows /= 2;
  return rows;
}

// acc [ROWS][L] for the block of ROWS rows that begins at row m.
template <int FORMAT, int ROWS>
void dot_block(float* acc, const PackedPart& part, const uint8_t* w, const QuantizedRows& x, int64_t m,
               int64_t K, int64_t prefetch) {
  constexpr PanelFormat f = kFormats[FORMAT];
  constexpr bool kApart = f.scales == Scales::apart, kMinimum = f.minimum || kApart;
  constexpr int kUnits = int(kTile) / f.unit, kQuads = f.unit / 4;
  const int64_t tiles = num_tiles(K);
  const int8_t* q = x.q + m * tiles * kTile;
  const float* scale = x.scale + m * tiles;
  const int32_t* minus_sum = x.minus_sum[f.unit == 16] + m * tiles * kUnits;
  const float* minus_scaled_sum = x.minus_scaled_sum[f.unit == 16] + m * tiles * kUnits;
  F y[ROWS], d = zero_f(), dmin = zero_f();
  NANO_UNROLL
  for (int r = 0; r < ROWS; ++r) y[r] = zero_f();
  [[maybe_unused]] ApartScales apart(part, w, 0);
  if (kApart) w += part.apart_bytes;
  for (int64_t g = 0; g < tiles; ++g) {
    if (f.scales == Scales::two_level && g % kTilesPerSuper == 0) {
      d = load_f16(w);
      if (f.minimum) dmin = load_f16(w + 2 * kLanes);
      w += super_bytes(f);
    }
    for (int64_t line = 0; line < tile_bytes(f); line += 64) __builtin_prefetch(w + prefetch + line);
    NANO_UNROLL
    for (int u = 0; u < kUnits; ++u) {
      I sum[ROWS];
      NANO_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        sum[r] = f.zero_shift ? set_i(minus_sum[r]) << f.zero_shift : set_i(0);
        if (f.low == 8 && kDotBias != 0) sum[r] = set_i(0);  // the dot itself subtracts 128
      }
      NANO_UNROLL
      for (int j = 0; j < kQuads; ++j) {
        I codes = unpack_quad<FORMAT>(w, u * kQuads + j);
        NANO_UNROLL
        for (int r = 0; r < ROWS; ++r)
          sum[r] = dot<f.low == 8>(sum[r], codes, load_dword(q + r * kTile + u * f.unit + 4 * j));
      }
      UnitScale s{d, dmin};
      if constexpr (kApart) {
        apart.enter_unit();
        s = {apart.scale, apart.minimum};
        if (part.offset != Offset::minimum) s.minimum = s.scale * to_float(apart.zero);
        if (f.low == 8 && kDotBias != 0) s.minimum = s.minimum - s.scale * set(float(kDotBias));
      } else {
        s = unit_scale<FORMAT>(w + (f.low + f.high) * 4 * kLanes, u, d, dmin);
      }
      NANO_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        y[r] = fma(to_float(sum[r]), s.scale * set(scale[r]), y[r]);
        if (kMinimum) y[r] = fma(s.minimum, set(minus_scaled_sum[r]), y[r]);
      }
      minus_sum += ROWS;
      minus_scaled_sum += ROWS;
    }
    w += tile_bytes(f);
    q += ROWS * kTile;
    scale += ROWS;
  }
  NANO_UNROLL
  for (int r = 0; r < ROWS; ++r) store(acc + r * kLanes, y[r]);
}

using DotBlock = void (*)(float*, const PackedPart&, const uint8_t*, const QuantizedRows&, int64_t, int64_t,
                          int64_t);

// [format][log2 of the rows]
template <int... FORMAT>
constexpr std::array<std::array<DotBlock, 4>, sizeof...(FORMAT)> dot_table(
    std::integer_sequence<int, FORMAT...>) {
  return {
      {{dot_block<FORMAT, 1>, dot_block<FORMAT, 2>, dot_block<FORMAT, 4>, dot_block<FORMAT, kMaxRows>}...}};
}
constexpr auto kDotBlocks = dot_table(std::make_integer_sequence<int, kFirstDense>());

int log2_of(int64_t rows) { return rows == 8 ? 3 : rows == 4 ? 2 : rows == 2 ? 1 : 0; }

// The largest magnitude, NaN above infinity: compared as integers it is exact, whatever the order.
float largest_of(const float* x, int64_t n) {
  uint32_t largest = 0;
  I most = set_i(0);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) most = max_i(most, bits_of(load(x + i)) & set_i(0x7fffffff));
  for (; i < n; ++i) largest = std::max(largest, f32_bits(x[i]) & 0x7fffffffu);
  return bits_f32(std::max(largest, uint32_t(max_lane(most))));
}

// What turns one row's floats into int8; formulas in quant/activations.h.
struct Rounding {
  float scale = 0, inverse = 0;

  // NaN or infinity stays in the scale, so the output shows it. Below 1e-30 the inverse would overflow: such inputs
  // count as zero.
  explicit Rounding(float largest)
      : scale(largest / 127.0f), inverse(largest > 1e-30f ? 127.0f / largest : 0.0f) {}
  // q and its sum over the two halves of one tile of x.
  void tile(int8_t* q, const float* x, int32_t sum[2]) const {
    for (int half = 0; half < 2; ++half) {
      I all = set_i(0);
      for (int i = half * 16; i < half * 16 + 16; i += kLanes) {
        const I codes = round_to_i(load(x + i) * set(inverse));
        store_i8(q + i, codes);
        all = all + codes;
      }
      sum[half] = add_lanes(all);
    }
  }
};

// int8_static: clamp(round(x / s) + z). Returns s, or NaN where the tile has one.
float static_tile(int8_t* q, const float* x, int64_t n, const InputForm& form, int32_t sum[2]) {
  const float zero = float(form.zero), largest = largest_of(x, n);
  std::fill_n(q, kTile, int8_t(0));  // beyond K: no product and no sum
  for (int64_t i = 0; i < n; ++i)
    q[i] = int8_t(std::min(std::max(std::nearbyint(x[i] / form.scale) + zero, -128.0f), 127.0f));
  for (int half = 0; half < 2; ++half) sum[half] = std::accumulate(q + half * 16, q + half * 16 + 16, 0);
  return std::isnan(largest) ? largest : form.scale;
}

}  // namespace

void quantize_rows(const QuantizedRows& out, const float* x, int64_t begin, int64_t end, int64_t rows,
                   int64_t K, const InputForm& form) {
  const int64_t tiles = num_tiles(K);
  for (int64_t m = begin, R; m < end; m += R) {
    R = block_rows(m, rows);
    for (int64_t r = 0; r < R; ++r) {
      const float* row = x + (m + r) * K;
      const bool per_token = form.scheme == ActivationScheme::int8_per_token;
      Rounding rounding(per_token ? largest_of(row, K) : 0.0f);
      for (int64_t g = 0; g < tiles; ++g) {
        const int64_t at = m * tiles + g * R + r,
                      n = std::min(kTile, K - g * kTile);  // at: in the block's order
        const float* from = row + g * kTile;
        float padded[kTile] = {};
        if (n < kTile) from = std::copy_n(from, n, padded) - n;
        int8_t* q = out.q + at * kTile;
        int32_t sum[2];
        if (form.scheme == ActivationScheme::int8_static) {
          rounding.scale = static_tile(q, from, n, form, sum);
        } else {
          if (!per_token) rounding = Rounding(largest_of(from, kTile));
          rounding.tile(q, from, sum);
        }
        out.scale[at] = rounding.scale;
        if (form.has_unit[0]) {
          out.minus_sum[0][at] = -(sum[0] + sum[1]);
          out.minus_scaled_sum[0][at] = -(rounding.scale * float(sum[0] + sum[1]));
        }
        for (int64_t u = 0; form.has_unit[1] && u < 2; ++u) {
          const int64_t unit = m * tiles * 2 + (g * 2 + u) * R + r;
          out.minus_sum[1][unit] = -sum[u];
          out.minus_scaled_sum[1][unit] = -(rounding.scale * float(sum[u]));
        }
      }
    }
  }
}

void dot_panel(const PanelRef& ref, const QuantizedRows& x, int64_t rows, int64_t K) {
  const uint8_t* w = ref.part->panel_data + ref.panel * ref.part->panel_bytes;
  // Hardware prefetch alone leaves 40 % of the bandwidth unused. Later blocks find the panel in the cache.
  int64_t prefetch = 4096;
  for (int64_t m = 0, R; m < rows; m += R, prefetch = 0) {
    R = block_rows(m, rows);
    kDotBlocks[size_t(ref.part->format)][size_t(log2_of(R))](ref.acc + m * kLanes, *ref.part, w, x, m, K,
                                                             prefetch);
  }
}

}  // namespace nano
