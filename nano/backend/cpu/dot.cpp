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

#include "backend/cpu/linear.h"     // PackedPart, QuantizedRows, InputForm
#include "backend/cpu/tile.h"       // unpack_quad, unit_scale
#include "backend/cpu/tile_unit.h"  // kHasTileUnit, multiply_codes

namespace nano::NANO_ISA {

namespace {

static_assert(!kHasTileUnit || kTileRows == kBlockRows);
// From so many rows on: a panel is unpacked once for all (measured, on AVX-512 and AVX2); the tile unit takes them
// (from the published rates of AMX: no measurement of ours).
constexpr int64_t kUnpackPays = 3 * kBlockRows, kTilesPay = 32;

// What a sum of products begins with, so that it ends as Σ (code − zero)·q.
template <PanelFormat f>
I sum_start(int32_t minus_sum) {
  if (f.zero_shift == 0 || (f.low == 8 && kDotBias != 0))
    return set_i(0);  // the biased dot itself subtracts 128
  return set_i(minus_sum) << f.zero_shift;
}

// A panel read front to back.
template <int FORMAT>
struct PanelReader {
  static constexpr PanelFormat f = kFormats[FORMAT];
  static constexpr bool kApart = f.scales == Scales::apart, kMinimum = f.minimum || kApart;
  static constexpr int kUnits = int(kTile) / f.unit, kQuads = f.unit / 4;  // units of a tile, quads of a unit

  PanelReader(const PackedPart& part, const uint8_t* panel)
      : part(part), tile(kApart ? panel + part.apart_bytes : panel), apart(part, panel, 0) {}

  void enter_tile(int64_t g, int64_t prefetch) {
    if (g > 0) tile += tile_bytes(f);
    if (f.scales == Scales::two_level && g % kTilesPerSuper == 0) {
      d = load_f16(tile);
      if (f.minimum) dmin = load_f16(tile + 2 * kLanes);
      tile += super_bytes(f);
    }
    for (int64_t line = 0; line < tile_bytes(f); line += 64) __builtin_prefetch(tile + prefetch + line);
  }
  I quad(int unit, int j) const { return unpack_quad<FORMAT>(tile, unit * kQuads + j); }
  // s and m of the tile's next unit.
  UnitScale scale(int unit) {
    if (!kApart) return unit_scale<FORMAT>(tile + (f.low + f.high) * 4 * kLanes, unit, d, dmin);
    apart.enter_unit();
    UnitScale s{apart.scale, apart.minimum};
    if (part.offset != Offset::minimum) s.minimum = s.scale * to_float(apart.zero);
    if (f.low == 8 && kDotBias != 0) s.minimum = s.minimum - s.scale * set(float(kDotBias));
    return s;
  }

  const PackedPart& part;
  const uint8_t* tile;
  F d = zero_f(), dmin = zero_f();
  ApartScales apart;
};

// A panel unpacked for a chunk of many rows: codes are bytes, scales floats, and little is left of the format.
//   codes [units] × quads of the unit, scale and minimum [units][L]
struct UnpackedPanel {
  uint8_t* codes;
  float *scale, *minimum;
  UnpackedPanel(uint8_t* memory, int64_t K)
      : codes(memory),
        scale(reinterpret_cast<float*>(memory + num_tiles(K) * kTile * kLanes)),
        minimum(scale + num_tiles(K) * 2 * kLanes) {}
};

template <int FORMAT>
void unpack_panel(const UnpackedPanel& out, const PackedPart& part, const uint8_t* w, int64_t K) {
  using Panel = PanelReader<FORMAT>;
  Panel panel(part, w);
  uint8_t* codes = out.codes;
  for (int64_t g = 0, unit = 0; g < num_tiles(K); ++g) {
    panel.enter_tile(g, kPrefetch);
    for (int u = 0; u < Panel::kUnits; ++u, ++unit) {
      for (int j = 0; j < Panel::kQuads; ++j, codes += 4 * kLanes) store_as(codes, panel.quad(u, j).v);
      const UnitScale s = panel.scale(u);
      store(out.scale + unit * kLanes, s.scale);
      if (Panel::kMinimum) store(out.minimum + unit * kLanes, s.minimum);
    }
  }
}

// The formats that differ still when they are unpacked. Bits, because AVX2 adds more products of narrow codes at once.
constexpr PanelFormat unpacked(PanelFormat f) {
  f.minimum = f.minimum || f.scales == Scales::apart;
  f.scales = Scales::in_tile;
  f.low = std::max(f.low + f.high, 4), f.high = 0;
  return f;
}

template <PanelFormat FORMAT>
struct UnpackedReader {
  static constexpr PanelFormat f = FORMAT;
  static constexpr bool kMinimum = f.minimum;
  static constexpr int kUnits = int(kTile) / f.unit, kQuads = f.unit / 4;

  void enter_tile(int64_t g, int64_t) { first_unit = g * kUnits; }
  const uint8_t* codes(int unit) const { return panel.codes + (first_unit + unit) * f.unit * kLanes; }
  I quad(int unit, int j) const { return load_i(codes(unit) + j * 4 * kLanes); }
  UnitScale scale(int unit) const {
    const int64_t at = (first_unit + unit) * kLanes;
    const F s = load(panel.scale + at);
    return {s, kMinimum ? load(panel.minimum + at) : s};
  }

  UnpackedPanel panel;
  int64_t first_unit = 0;
};

// acc [ROWS][L] for the block of ROWS rows that begins at row m.
template <int ROWS, class Panel>
void dot_block(float* acc, Panel panel, const QuantizedRows& x, int64_t m, int64_t K, int64_t prefetch) {
  constexpr PanelFormat f = Panel::f;
  const int64_t tiles = num_tiles(K);
  const int8_t* q = x.q + m * tiles * kTile;
  const float* scale = x.scale + m * tiles;
  const int32_t* minus_sum = x.minus_sum[f.unit == 16] + m * tiles * Panel::kUnits;
  const float* minus_scaled_sum = x.minus_scaled_sum[f.unit == 16] + m * tiles * Panel::kUnits;
  F y[ROWS];
  NANO_UNROLL
  for (int r = 0; r < ROWS; ++r) y[r] = zero_f();
  for (int64_t g = 0; g < tiles; ++g) {
    panel.enter_tile(g, prefetch);
    NANO_UNROLL
    for (int u = 0; u < Panel::kUnits; ++u) {
      Products<f.low + f.high> sum[ROWS];
      NANO_UNROLL
      for (int r = 0; r < ROWS; ++r) sum[r] = {sum_start<f>(minus_sum[r])};
      NANO_UNROLL
      for (int j = 0; j < Panel::kQuads; ++j) {
        const I codes = panel.quad(u, j);
        NANO_UNROLL
        for (int r = 0; r < ROWS; ++r) sum[r].add(codes, load_dword(q + r * kTile + u * f.unit + 4 * j));
      }
      const UnitScale s = panel.scale(u);
      NANO_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        y[r] = fma(to_float(sum[r].total()), s.scale * set(scale[r]), y[r]);
        if (Panel::kMinimum) y[r] = fma(s.minimum, set(minus_scaled_sum[r]), y[r]);
      }
      minus_sum += ROWS;
      minus_scaled_sum += ROWS;
    }
    q += ROWS * kTile;
    scale += ROWS;
  }
  NANO_UNROLL
  for (int r = 0; r < ROWS; ++r) store(acc + r * kLanes, y[r]);
}

// acc [rows][L] for the first `rows` rows, whole blocks of kBlockRows, on the tile unit.
template <class Panel>
void dot_tiles(float* acc, Panel panel, const QuantizedRows& x, int64_t rows, int64_t K) {
  constexpr int kUnit = Panel::f.unit, kUnits = Panel::kUnits;
  const int64_t tiles = num_tiles(K);
  std::fill_n(acc, rows * kLanes, 0.0f);
  set_up_tiles();
  for (int64_t g = 0; g < tiles; ++g) {
    panel.enter_tile(g, 0);
    for (int u = 0; u < kUnits; ++u) {
      alignas(64) int32_t sums[kChunkRows][kLanes];
      load_codes<kUnit>(panel.codes(u));
      for (int64_t m = 0; m < rows; m += kBlockRows)
        multiply_codes<kUnit>(sums[m], x.q + (m * tiles + g * kBlockRows) * kTile + u * kUnit);
      const UnitScale s = panel.scale(u);
      for (int64_t m = 0; m < rows; ++m) {
        const int64_t block = m / kBlockRows * kBlockRows * tiles, r = m % kBlockRows;
        const int64_t at = block * kUnits + (g * kUnits + u) * kBlockRows + r;
        const I sum = load_i(sums[m]) + sum_start<Panel::f>(x.minus_sum[kUnit == 16][at]);
        F y = fma(to_float(sum), s.scale * set(x.scale[block + g * kBlockRows + r]), load(acc + m * kLanes));
        if (Panel::kMinimum) y = fma(s.minimum, set(x.minus_scaled_sum[kUnit == 16][at]), y);
        store(acc + m * kLanes, y);
      }
    }
  }
}

// What there is for a format: a block of 1 … kBlockRows rows of the packed panel; the panel unpacked, and then blocks of
// kBlockRows rows of that.
using Block = void (*)(float*, const PackedPart&, const uint8_t*, const QuantizedRows&, int64_t, int64_t,
                       int64_t);
struct Ways {
  std::array<Block, kBlockRows> blocks;  // by rows − 1
  void (*unpack)(const UnpackedPanel&, const PackedPart&, const uint8_t*, int64_t);
  void (*many)(float*, const UnpackedPanel&, const QuantizedRows&, int64_t, int64_t, bool);
};
template <int FORMAT, int ROWS>
void packed_block(float* acc, const PackedPart& part, const uint8_t* w, const QuantizedRows& x, int64_t m,
                  int64_t K, int64_t prefetch) {
  dot_block<ROWS>(acc, PanelReader<FORMAT>(part, w), x, m, K, prefetch);
}
// acc [rows][L], whole blocks of kBlockRows.
template <PanelFormat FORMAT>
void many_rows(float* acc, const UnpackedPanel& panel, const QuantizedRows& x, int64_t rows, int64_t K,
               bool tiles) {
  const UnpackedReader<FORMAT> reader{panel};
  if constexpr (kHasTileUnit)
    if (tiles && rows >= kTilesPay) return dot_tiles(acc, reader, x, rows, K);
  for (int64_t m = 0; m < rows; m += kBlockRows) dot_block<kBlockRows>(acc + m * kLanes, reader, x, m, K, 0);
}
template <int FORMAT, int... I>
constexpr Ways ways_of(std::integer_sequence<int, I...>) {
  return {{packed_block<FORMAT, I + 1>...}, unpack_panel<FORMAT>, many_rows<unpacked(kFormats[FORMAT])>};
}
template <int... FORMAT>
constexpr std::array<Ways, sizeof...(FORMAT)> ways_table(std::integer_sequence<int, FORMAT...>) {
  return {ways_of<FORMAT>(std::make_integer_sequence<int, kBlockRows>())...};
}
constexpr auto kWays = ways_table(std::make_integer_sequence<int, kFirstDense>());

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

  // NaN or infinity stays in the scale, so the output is NaN, and the codes are 0. Below 1e-30 the inverse would
  // overflow: such inputs count as zero.
  explicit Rounding(float largest)
      : scale(largest / 127.0f), inverse(largest > 1e-30f ? 127.0f / largest : 0.0f) {}
  // q and its sum over the two halves of one tile of x.
  void tile(int8_t* q, const float* x, int32_t sum[2]) const {
    sum[0] = sum[1] = 0;
    if (!std::isfinite(scale)) return void(std::fill_n(q, kTile, int8_t(0)));
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

// int8_static: clamp(round(x / s) + z), −128 for NaN. Returns s, or NaN where the tile has one.
float static_tile(int8_t* q, const float* x, int64_t n, const InputForm& form, int32_t sum[2]) {
  const float zero = float(form.zero), largest = largest_of(x, n);
  std::fill_n(q, kTile, int8_t(0));  // beyond K: no product and no sum
  for (int64_t i = 0; i < n; ++i)
    q[i] = int8_t(std::min(std::max(-128.0f, std::nearbyint(x[i] / form.scale) + zero), 127.0f));
  for (int half = 0; half < 2; ++half) sum[half] = std::accumulate(q + half * 16, q + half * 16 + 16, 0);
  return std::isnan(largest) ? largest : form.scale;
}

}  // namespace

void quantize_rows(const QuantizedRows& out, const float* x, int64_t begin, int64_t end, int64_t rows,
                   int64_t K, const InputForm& form) {
  const int64_t tiles = num_tiles(K);
  for (int64_t m = begin, R; m < end; m += R) {
    R = std::min<int64_t>(kBlockRows, rows - m);
    for (int64_t r = 0; r < R; ++r) {
      const float* row = x + (m + r) * K;
      const bool per_token = form.scheme == ActivationScheme::int8_per_token;
      Rounding rounding(per_token ? largest_of(row, K) : 0.0f);
      for (int64_t g = 0; g < tiles; ++g) {
        const int64_t at = m * tiles + g * R + r,
                      n = std::min(kTile, K - g * kTile);  // at: in the block's order
        const float* from = row + g * kTile;
        float padded[kTile] = {};
        if (n < kTile) {
          std::copy_n(from, n, padded);
          from = padded;
        }
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

int64_t unpacked_bytes(int64_t K) { return num_tiles(K) * (kTile * kLanes + 2 * 2 * kLanes * 4); }

void dot_panel(const PanelRef& ref, const QuantizedRows& x, int64_t rows, int64_t K, uint8_t* spare,
               bool tiles) {
  const uint8_t* w = ref.part->panel_data + ref.panel * ref.part->panel_bytes;
  const Ways& ways = kWays[size_t(ref.part->format)];
  int64_t m = 0;
  if (rows >= kUnpackPays) {
    const UnpackedPanel panel(spare, K);
    ways.unpack(panel, *ref.part, w, K);
    m = rows / kBlockRows * kBlockRows;
    ways.many(ref.acc, panel, x, m, K, tiles);
  }
  int64_t prefetch = m > 0 ? 0 : kPrefetch;  // later blocks find the panel in the cache
  for (int64_t R; m < rows; m += R, prefetch = 0) {
    R = std::min<int64_t>(kBlockRows, rows - m);
    ways.blocks[size_t(R - 1)](ref.acc + m * kLanes, *ref.part, w, x, m, K, prefetch);
  }
}

}  // namespace nano::NANO_ISA
