// The integer micro-kernel: int8 activations times packed codes. One template for all formats and all numbers of
// rows; what differs is known when it is compiled.
//
//   y[m] = Σ over units g, in order:  fma( float(Σ (code − zero)·q), s_g · scale_g, · )  and then  fma( m_g, −scale_g·Σq, · )
//
// The sums inside a unit are exact integers, so the only rounding is the one written here: the same for every M.
#include <algorithm>
#include <array>
#include <utility>

#include "backend/cpu_linear.h"
#include "backend/cpu_tile.h"  // unpack_quad, unit_scale

namespace nano {

namespace {

constexpr int kMaxRows = kRegisters >= 32 ? 8 : 4;  // rows that share an unpacked vector

// Rows of the block that begins at row m: the largest of 8, 4, 2, 1 that fits before M.
int64_t block_rows(int64_t m, int64_t M) {
  int64_t rows = kMaxRows;
  while (rows > M - m) rows /= 2;
  return rows;
}

// acc [ROWS][L] for a block of ROWS rows.
template <int FORMAT, int ROWS>
void dot_block(float* acc, const uint8_t* w, const QuantizedRows& x, int64_t m, int64_t K, int64_t prefetch) {
  constexpr PanelFormat f = kFormats[FORMAT];
  constexpr int kUnits = int(kTile) / f.unit, kQuads = f.unit / 4;
  const int64_t tiles = K / kTile;
  const int8_t* q = x.q + m * K;
  const float* scale = x.scale + m * tiles;
  const int32_t* minus_sum = x.minus_sum[f.unit == 16] + m * tiles * kUnits;
  const float* minus_scaled_sum = x.minus_scaled_sum[f.unit == 16] + m * tiles * kUnits;
  F y[ROWS], d = zero_f(), dmin = zero_f();
  NANO_UNROLL
  for (int r = 0; r < ROWS; ++r) y[r] = zero_f();
  for (int64_t g = 0; g < tiles; ++g) {
    if (f.two_level && g % kTilesPerSuper == 0) {
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
        sum[r] = f.zero_shift ? shift_left(set_i(minus_sum[r]), f.zero_shift) : set_i(0);
        if (f.low == 8 && kDotBias != 0) sum[r] = set_i(0);  // the dot itself subtracts 128
      }
      NANO_UNROLL
      for (int j = 0; j < kQuads; ++j) {
        I codes = unpack_quad<FORMAT>(w, u * kQuads + j);
        NANO_UNROLL
        for (int r = 0; r < ROWS; ++r)
          sum[r] = dot<f.low == 8>(sum[r], codes, load_dword(q + r * kTile + u * f.unit + 4 * j));
      }
      UnitScale s = unit_scale<FORMAT>(w + (f.low + f.high) * 4 * kLanes, u, d, dmin);
      NANO_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        y[r] = fma(to_float(sum[r]), mul(s.scale, set(scale[r])), y[r]);
        if (f.minimum) y[r] = fma(s.minimum, set(minus_scaled_sum[r]), y[r]);
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

using DotBlock = void (*)(float*, const uint8_t*, const QuantizedRows&, int64_t, int64_t, int64_t);

// [format][log2 of the rows]
template <int... FORMAT>
constexpr std::array<std::array<DotBlock, 4>, sizeof...(FORMAT)> dot_table(
    std::integer_sequence<int, FORMAT...>) {
  return {{{dot_block<FORMAT, 1>, dot_block<FORMAT, 2>, dot_block<FORMAT, 4>, dot_block < FORMAT,
            kMaxRows == 8 ? 8 : 4 > }...}};
}
constexpr auto kDotBlocks = dot_table(std::make_integer_sequence<int, kFirstDense>());

int log2_of(int64_t rows) { return rows == 8 ? 3 : rows == 4 ? 2 : rows == 2 ? 1 : 0; }

// One tile of one row; q at its place in the block, sums of both halves.
struct TileSums {
  float scale;
  int32_t sum[2];
};
TileSums quantize_tile(int8_t* q, const float* x) {
  I most = set_i(0);
  for (int i = 0; i < kTile; i += kLanes)
    most = max_i(most, bit_and(bits_of(load(x + i)), set_i(0x7fffffff)));
  // Compared as integers the largest magnitude is exact, whatever the order; NaN is above infinity.
  const float largest = bits_f32(uint32_t(max_lane(most)));
  // Below 1e-30 the inverse would overflow: such inputs count as zero. NaN or infinity stays in the scale, so the
  // output shows it.
  const float scale = largest / 127.0f, inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
  for (int i = 0; i < kTile; i += kLanes) store_i8(q + i, round_to_i(mul(load(x + i), set(inverse))));
  TileSums out{scale, {0, 0}};
  for (int half = 0; half < 2; ++half)
    for (int i = 0; i < 16; ++i) out.sum[half] += q[half * 16 + i];
  return out;
}

}  // namespace

void quantize_rows(const QuantizedRows& out, const float* x, int64_t row0, int64_t rows, int64_t total_rows,
                   int64_t K, const bool has_unit[2]) {
  const int64_t tiles = K / kTile;
  for (int64_t m = row0, R; m < row0 + rows; m += R) {
    R = block_rows(m, total_rows);
    for (int64_t r = 0; r < R; ++r) {
      for (int64_t g = 0; g < tiles; ++g) {
        const int64_t at = m * tiles + g * R + r;  // of this tile in the block's order
        const TileSums t = quantize_tile(out.q + at * kTile, x + (m + r) * K + g * kTile);
        out.scale[at] = t.scale;
        if (has_unit[0]) {
          out.minus_sum[0][at] = -(t.sum[0] + t.sum[1]);
          out.minus_scaled_sum[0][at] = -(t.scale * float(t.sum[0] + t.sum[1]));
        }
        for (int64_t u = 0; has_unit[1] && u < 2; ++u) {
          const int64_t unit = m * tiles * 2 + (g * 2 + u) * R + r;
          out.minus_sum[1][unit] = -t.sum[u];
          out.minus_scaled_sum[1][unit] = -(t.scale * float(t.sum[u]));
        }
      }
    }
  }
}

void dot_panel(const PanelRef& ref, const QuantizedRows& x, int64_t row0, int64_t rows, int64_t total_rows,
               int64_t K) {
  const uint8_t* w = ref.part->panel_data + ref.panel * ref.part->panel_bytes;
  // Hardware prefetch alone leaves 40 % of the bandwidth unused. Later blocks find the panel in the cache.
  int64_t prefetch = 4096;
  for (int64_t m = row0, R; m < row0 + rows; m += R, prefetch = 0) {
    R = block_rows(m, total_rows);
    kDotBlocks[size_t(ref.part->format)][size_t(log2_of(R))](ref.acc + (m - row0) * kLanes, w, x, m, K,
                                                             prefetch);
  }
}

}  // namespace nano
