// The cpu backend's matrices: repacked once at load into panels of kLanes output rows, so that one vector
// instruction feeds one lane per row. Codes keep their width, scales keep their type; a panel is read front to back.
//
//   panel (rows pL … pL+L−1, L = kLanes), padded to 64 bytes:
//     dense:      K × [L elements]
//     quantised:  K/32 tiles, the last padded with zeros; two-level formats have [L × f16 d | L × f16 dmin] before
//                 every 8th, formats whose scales lie apart have all of them before the first tile
//     tile of 32 inputs:  low plane | high plane | scales
//       A plane of w bits is w vectors of 4L bytes. "Quad" j holds inputs 4j … 4j+3 of all rows: byte 4r+i is row r,
//       input 4j+i. Quad j lies in vector j mod w, at bit w·⌊j/w⌋ of each byte.
//       scales: one-level  L × f16 s, then L × f16 m of w = s·q − m;  two-level  L × int8 sc per unit, then L × mc;
//               with 16 inputs a unit and minima (Q2_K) sc and mc share a byte.
//     scales apart, for groups of any multiple of 16: per group  L × s (f16, bf16 or f32), then L × m of that type
//               or L × uint8 z of w = s·(q − z)
// A unit is the inputs whose products are summed before a scale is applied, 16 or 32. Rows beyond N are zero.
//
// What this does not do: K is never split, neither by threads nor by the number of rows, so a result depends on its
// own row of x alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"     // PackedLinear, Epilogue, ActivationDtype, Limits
#include "backend/cpu/memory.h"  // Arena
#include "backend/cpu/simd.h"    // kLanes
#include "base/team.h"           // Team
#include "quant/activations.h"   // is_int8

namespace nano::NANO_ISA {

enum class Scales : uint8_t { in_tile, two_level, apart };

// What the kernels must know of a format when they are compiled.
struct PanelFormat {
  int low = 0, high = 0;  // bits of the planes; low = 0: dense
  int unit = 0;           // 16 or 32
  Scales scales = Scales::in_tile;
  bool minimum = false;
  int zero_shift = 0;  // codes stand for q − 2^zero_shift; 0 = q itself
  DType dense = DType::f32;
};

constexpr int kNumFormats = 25;
constexpr PanelFormat kFormats[kNumFormats] = {
    {4, 0, 32, Scales::in_tile, false, 3, {}},    // q4_0
    {4, 0, 32, Scales::in_tile, true, 0, {}},     // q4_1
    {4, 1, 32, Scales::in_tile, false, 4, {}},    // q5_0
    {4, 1, 32, Scales::in_tile, true, 0, {}},     // q5_1
    {8, 0, 32, Scales::in_tile, false, 7, {}},    // q8_0: int8 is stored as q + 128
    {2, 0, 16, Scales::two_level, true, 0, {}},   // q2_k
    {2, 1, 16, Scales::two_level, false, 2, {}},  // q3_k
    {4, 0, 32, Scales::two_level, true, 0, {}},   // q4_k
    {4, 1, 32, Scales::two_level, true, 0, {}},   // q5_k
    {4, 2, 16, Scales::two_level, false, 5, {}},  // q6_k
    // All else (Source::arrays): the rest of the description is in PackedPart. e4m3 is a plane of 8 bits.
    {2, 0, 32, Scales::apart, false, 0, {}},
    {2, 0, 16, Scales::apart, false, 0, {}},
    {2, 1, 32, Scales::apart, false, 0, {}},
    {2, 1, 16, Scales::apart, false, 0, {}},
    {4, 0, 32, Scales::apart, false, 0, {}},
    {4, 0, 16, Scales::apart, false, 0, {}},
    {4, 1, 32, Scales::apart, false, 0, {}},
    {4, 1, 16, Scales::apart, false, 0, {}},
    {4, 2, 32, Scales::apart, false, 0, {}},
    {4, 2, 16, Scales::apart, false, 0, {}},
    {8, 0, 32, Scales::apart, false, 0, {}},
    {8, 0, 16, Scales::apart, false, 0, {}},
    {0, 0, 0, Scales::in_tile, false, 0, DType::f32},
    {0, 0, 0, Scales::in_tile, false, 0, DType::f16},
    {0, 0, 0, Scales::in_tile, false, 0, DType::bf16},
};
constexpr int kFirstDense = 22;
static_assert(kFormats[kFirstDense].low == 0 && kFormats[kFirstDense - 1].low != 0);

constexpr int64_t kTile = 32;          // inputs of a tile, and of a scale of int8 activations
constexpr int64_t kTilesPerSuper = 8;  // 256 inputs share d and dmin

constexpr int64_t tile_bytes(const PanelFormat& f) {
  int64_t codes = (f.low + f.high) * 4 * kLanes;
  if (f.scales == Scales::apart) return codes;
  if (f.scales == Scales::in_tile) return codes + (f.minimum ? 4 : 2) * kLanes;
  bool shared_byte = f.unit == 16 && f.minimum;
  return codes + kTile / f.unit * (f.minimum && !shared_byte ? 2 : 1) * kLanes;
}
constexpr int64_t super_bytes(const PanelFormat& f) {
  return f.scales == Scales::two_level ? (f.minimum ? 4 : 2) * kLanes : 0;
}
// Where tile g begins behind the scales that lie apart; for the first tile of a super-block, its d.
constexpr int64_t tile_offset(const PanelFormat& f, int64_t g) {
  return g * tile_bytes(f) + (g + kTilesPerSuper - 1) / kTilesPerSuper * super_bytes(f);
}

// What a linear's inputs become before a kernel reads them. Parts that say the same share a form.
struct InputForm {
  ActivationScheme scheme = ActivationScheme::none;
  float scale = 0;  // static schemes
  int32_t zero = 0;
  std::vector<int32_t> permutation;   // of the inputs, or empty
  bool has_unit[2] = {false, false};  // int8: sums over units of 32, of 16 are wanted

  bool moves() const {
    return !permutation.empty() || (scheme != ActivationScheme::none && !is_int8(scheme));
  }
  bool same(const InputForm& o) const {
    return scheme == o.scheme && f32_bits(scale) == f32_bits(o.scale) && zero == o.zero &&
           permutation == o.permutation;
  }
};
constexpr int kMaxForms = 3;  // q, k, v

struct PackedPart {
  int format = 0;  // index in kFormats
  int form = 0;    // index in CpuLinear::forms
  int64_t N = 0, panels = 0, panel_bytes = 0;
  const uint8_t* panel_data = nullptr;
  const float* bias = nullptr;  // [panels · L] or nullptr
  // Scales apart:
  int64_t units_per_group = 1, apart_bytes = 0;  // apart_bytes: of all scales of a panel
  DType scale_dtype = DType::f32;
  Offset offset = Offset::none;
  bool zeros = false;  // a z per row and group; else `zero` for all
  int32_t zero = 0;
  bool e4m3 = false;
};

struct CpuLinear : PackedLinear {
  std::vector<PackedPart> parts;
  std::vector<InputForm> forms;
  QuantLinear table;  // pack_embedding only: rows are decoded from the file
};

// Bytes in the arena are counted exactly in CpuLinear::bytes. Error "not supported" for descriptions without a kernel.
void pack_cpu(CpuLinear& out, std::span<const QuantLinear* const> parts, ActivationDtype activations,
              Team& team, Arena& arena);

constexpr int kBlockRows = kRegisters >= 32 ? 8 : 4;  // rows that share an unpacked vector of codes

// A chunk of rows as int8: x ≈ scale · q (static schemes: · (q − zero)) with a scale per row and tile. Rows lie in
// blocks of kBlockRows, the last one of what is left; in a block of R rows that begins at row m, from element
// m·tiles·32 (m·tiles, …) on: q [tiles][R][32], scale [tiles][R], and per unit of 32 and of 16 inputs [units][R] of
// −Σq  and  −scale·Σq.
struct QuantizedRows {
  int8_t* q = nullptr;
  float* scale = nullptr;
  int32_t* minus_sum[2] = {};
  float* minus_scaled_sum[2] = {};
};

// Rows of x in one form, a chunk at a time.
struct FormRows {
  QuantizedRows int8;
  float* moved = nullptr;  // [kChunkRows, K]: permuted, or rounded to FP8
};
struct LinearScratch {
  FormRows forms[kMaxForms];
  float* worker = nullptr;      // per worker: accumulators and decoded weights
  uint8_t* unpacked = nullptr;  // per worker: a panel
  int64_t max_K = 0;
  bool tiles = false;  // the machine has the tile unit, and is to use it
};
int64_t linear_scratch_bytes(const Limits& limits, int32_t workers);
LinearScratch linear_scratch(const Limits& limits, int32_t workers, uint8_t* memory, bool tiles);

// Backend::linear: out [M, N] (gate and up: [M, N/2]) from x [M, K]. They must not overlap; `add` reads out as well.
void linear_cpu(float* out, const float* x, int32_t M, const CpuLinear& w, Epilogue epilogue,
                const LinearScratch& scratch, Team& team);

// The two kernels: acc [rows][L] = x · panel for a chunk of rows.
constexpr int64_t kChunkRows = 64;
constexpr int kPanelsAtOnce = kRegisters >= 32 ? 4 : 2;  // of the float kernel: independent chains
constexpr int64_t kChunkK = 64;                          // inputs whose weights it decodes at a time
struct PanelRef {
  const PackedPart* part;
  int64_t panel;
  float* acc;
};
constexpr int64_t num_tiles(int64_t K) { return (K + kTile - 1) / kTile; }
// dot.cpp. x [rows, K] to int8, formulas in quant/activations.h. Rows begin … end−1 of the chunk; begin is a
// multiple of kBlockRows, `rows` the chunk's number of rows.
void quantize_rows(const QuantizedRows& out, const float* x, int64_t begin, int64_t end, int64_t rows,
                   int64_t K, const InputForm& form);
// spare: unpacked_bytes(K) at a multiple of 64.
int64_t unpacked_bytes(int64_t K);
void dot_panel(const PanelRef& ref, const QuantizedRows& x, int64_t rows, int64_t K, uint8_t* spare,
               bool tiles);
// fma.cpp. 1 … kPanelsAtOnce refs that all read x [rows, K]; weights: room for kPanelsAtOnce · kChunkK · L floats.
void fma_panels(const PanelRef* refs, int count, float* weights, const float* x, int64_t rows, int64_t K);

}  // namespace nano::NANO_ISA
