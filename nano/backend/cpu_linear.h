// The cpu backend's matrices: repacked once at load into panels of kLanes output rows, so that one vector
// instruction feeds one lane per row. Codes keep their width, scales keep their type; a panel is read front to back.
//
//   panel (rows pL … pL+L−1, L = kLanes), padded to 64 bytes:
//     dense:      K × [L elements]
//     quantised:  K/32 tiles; two-level formats have [L × f16 d | L × f16 dmin] before every 8th
//     tile of 32 inputs:  low plane | high plane | scales
//       A plane of w bits is w vectors of 4L bytes. "Quad" j holds inputs 4j … 4j+3 of all rows: byte 4r+i is row r,
//       input 4j+i. Quad j lies in vector j mod w, at bit w·⌊j/w⌋ of each byte.
//       scales: one-level  L × f16 s, then L × f16 m of w = s·q − m;  two-level  L × int8 sc per unit, then L × mc;
//               with 16 inputs a unit and minima (Q2_K) sc and mc share a byte.
// A unit is what one scale covers, 16 or 32 inputs. Rows beyond N are zero.
//
// What this does not do: K is never split, neither by threads nor by the number of rows, so a result depends on its
// own row of x alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"     // PackedLinear, Epilogue, ActivationDtype, Limits
#include "backend/cpu_memory.h"  // Arena
#include "backend/simd.h"        // kLanes
#include "base/team.h"           // Team

namespace nano {

// What the kernels must know of a format when they are compiled.
struct PanelFormat {
  int low = 0, high = 0;  // bits of the planes; low = 0: dense
  int unit = 0;           // inputs per scale: 16 or 32
  bool two_level = false;
  bool minimum = false;
  int zero_shift = 0;  // codes stand for q − 2^zero_shift; 0 = q itself
  DType dense = DType::f32;
};

constexpr int kNumFormats = 13;
constexpr PanelFormat kFormats[kNumFormats] = {
    {4, 0, 32, false, false, 3, {}},  // q4_0
    {4, 0, 32, false, true, 0, {}},   // q4_1
    {4, 1, 32, false, false, 4, {}},  // q5_0
    {4, 1, 32, false, true, 0, {}},   // q5_1
    {8, 0, 32, false, false, 7, {}},  // q8_0: int8 is stored as q + 128
    {2, 0, 16, true, true, 0, {}},    // q2_k
    {2, 1, 16, true, false, 2, {}},   // q3_k
    {4, 0, 32, true, true, 0, {}},    // q4_k
    {4, 1, 32, true, true, 0, {}},    // q5_k
    {4, 2, 16, true, false, 5, {}},   // q6_k
    {0, 0, 0, false, false, 0, DType::f32},  {0, 0, 0, false, false, 0, DType::f16},
    {0, 0, 0, false, false, 0, DType::bf16},
};
constexpr int kFirstDense = 10;

constexpr int64_t kTile = 32;          // inputs of a tile, and of a scale of int8 activations
constexpr int64_t kTilesPerSuper = 8;  // 256 inputs share d and dmin

constexpr int64_t tile_bytes(const PanelFormat& f) {
  int64_t codes = (f.low + f.high) * 4 * kLanes;
  if (!f.two_level) return codes + (f.minimum ? 4 : 2) * kLanes;
  bool shared_byte = f.unit == 16 && f.minimum;
  return codes + kTile / f.unit * (f.minimum && !shared_byte ? 2 : 1) * kLanes;
}
constexpr int64_t super_bytes(const PanelFormat& f) { return f.two_level ? (f.minimum ? 4 : 2) * kLanes : 0; }
// Where tile g of a panel begins; for the first tile of a super-block, its d. panel_bytes is that of the end.
constexpr int64_t tile_offset(const PanelFormat& f, int64_t g) {
  return g * tile_bytes(f) + (g + kTilesPerSuper - 1) / kTilesPerSuper * super_bytes(f);
}

struct PackedPart {
  int format = 0;  // index in kFormats
  int64_t N = 0, panels = 0, panel_bytes = 0;
  const uint8_t* panel_data = nullptr;
  const float* bias = nullptr;  // [panels · L] or nullptr
};

struct CpuLinear : PackedLinear {
  std::vector<PackedPart> parts;
  bool has_unit[2] = {false,
                      false};  // quantised parts with units of 32, of 16: which sums the activations need
  QuantLinear table;           // pack_embedding only: rows are decoded from the file
};

// Bytes in the arena are counted exactly in CpuLinear::bytes. Error "not supported yet" for descriptions without a
// kernel.
void pack_cpu(CpuLinear& out, std::span<const QuantLinear* const> parts, ActivationDtype activations,
              Team& team, Arena& arena);

// Activations as int8, per row and 32 inputs: x ≈ scale · q. Rows lie in blocks of 8, 4, 2, 1; in a block of R rows
// that begins at row m, from element m·K (m·K/32, …) on: q [K/32][R][32], scale [K/32][R], and per unit of 32 and
// of 16 inputs [K/unit][R] of  −Σq  and  scale·Σq.
struct QuantizedRows {
  int8_t* q = nullptr;
  float* scale = nullptr;
  int32_t* minus_sum[2] = {};
  float* minus_scaled_sum[2] = {};
};

struct LinearScratch {
  QuantizedRows rows;
  float* worker = nullptr;  // per worker: accumulators and decoded weights
  int64_t worker_floats = 0;
  int64_t max_tokens = 0, max_K = 0;
};
int64_t linear_scratch_bytes(const Limits& limits, int32_t workers);
LinearScratch linear_scratch(const Limits& limits, int32_t workers, uint8_t* memory);

void linear_cpu(float* out, const float* x, int32_t M, const CpuLinear& w, Epilogue epilogue,
                ActivationDtype activations, const LinearScratch& scratch, Team& team);

// The two kernels. acc [rows][L] = x · panel for rows row0 …, rows <= kChunkRows.
constexpr int64_t kChunkRows = 64;
constexpr int kPanelsAtOnce = kRegisters >= 32 ? 4 : 2;  // of the float kernel: independent chains
constexpr int64_t kChunkK = 64;                          // inputs whose weights it decodes at a time
struct PanelRef {
  const PackedPart* part;
  int64_t panel;
  float* acc;
};
// cpu_dot.cpp. x is quantised in blocks that depend on total_rows; a worker may do any range that begins at a
// multiple of 8.
void quantize_rows(const QuantizedRows& out, const float* x, int64_t row0, int64_t rows, int64_t total_rows,
                   int64_t K, const bool has_unit[2]);
void dot_panel(const PanelRef& ref, const QuantizedRows& x, int64_t row0, int64_t rows, int64_t total_rows,
               int64_t K);
// cpu_fma.cpp. weights and spare: room for kPanelsAtOnce · kChunkK · L and kChunkRows · L floats.
void fma_panels(const PanelRef* refs, int count, float* weights, float* spare, const float* x, int64_t rows,
                int64_t K);

}  // namespace nano
