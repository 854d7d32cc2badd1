// QuantLinear: the one description of a weight matrix, dense or quantised, over the bytes of its file.
//
//   y = x · Wᵀ + bias,  W [N, K]:  N outputs (rows), K inputs.
//
// A row is cut into groups along K, the last perhaps short. In a group:
//   w = s·(q − z)   (Offset::integer)
//   w = s·q − m     (Offset::minimum; GGUF's d·q + m has m' = −m)
//   w = s·q         (Offset::none; q signed or FP8)
// A two-level scale is s = d·sc (and m = dmin·mc), with one d per super-block and small integers sc, mc per group:
// K-quants of GGML. It is a description, not a layout for computing: each backend's pack() reads rows through
// read_row() and chooses its own layout, codes kept at their width. It does not read files (checkpoint/) and does not
// say how x is rounded (quant/activations.h).
// Sources: GGML block formats; GPTQ arXiv 2210.17323; AWQ arXiv 2306.00978; FP8 arXiv 2209.05433.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"  // DType

namespace nano {

// How a row lies in the file. One value per file format; everything that depends on it is in quant/*.cpp.
enum class Source : uint8_t {
  dense,   // row-major floats: f32, f16, bf16
  arrays,  // a code a byte [N, K] and arrays of scales and offsets: what nano's own quantisers make
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,  // GGML blocks
};

enum class Code : uint8_t { unsigned_bits, int8, e4m3 };
enum class Offset : uint8_t { none, integer, minimum };
// What a checkpoint says its inputs are rounded to; formulas in quant/activations.h.
enum class ActivationScheme : uint8_t {
  none,
  int8_per32,
  int8_per_token,
  int8_static,
  fp8_static,
  fp8_token,
  fp8_group128
};

struct QuantLinear {
  std::string name;  // of the tensor, for messages and the ledger
  int64_t N = 0, K = 0;
  Source source = Source::dense;
  const uint8_t* data = nullptr;  // [N, row_bytes]: rows as in the file
  int64_t row_bytes = 0;
  // GGUF stores q and k of llama with the rows of each head interleaved for adjacent-pair RoPE; nano uses the
  // half-split form. The permutation is of rows, so it costs nothing: row n of W is row file_row(n) of the file.
  // 0 = as in the file, else the head dimension D: file_row(h·D + b·D/2 + i) = h·D + 2i + b  (b in {0,1}).
  int64_t rope_interleaved_dim = 0;

  int bits = 0;  // width of a code: 2, 3, 4, 5, 6, 8; 0 for dense (then `dtype` says)
  Code code = Code::unsigned_bits;
  DType dtype = DType::f32;  // dense: of the elements; quantised: of the (super-)scale
  int64_t group = 0;         // elements of K per scale; 0 for dense
  int64_t super_group = 0;   // elements of K per super-scale: 256; 0 = one-level
  Offset offset = Offset::none;
  // Offset::integer with one zero for the whole matrix (q4_0: 8, q5_0: 16, q3_k: 4, q6_k: 32); else 0.
  int32_t zero = 0;
  // Source::arrays: values of the groups, [rows, num_groups]. A row of scales serves rows_per_scale rows of W: 1, 128
  // for blocks of 128 × 128, N for one scale a matrix. minima is for Offset::minimum; without zeros `zero` holds.
  const uint8_t* scales = nullptr;  // of `dtype`
  const uint8_t* minima = nullptr;  // of `dtype`
  const uint8_t* zeros = nullptr;   // uint8
  int64_t rows_per_scale = 1;

  std::vector<float> bias;  // [N] or empty
  // Input k of the matrix reads x[permutation[k]]; empty = none (GPTQ act-order).
  std::vector<int32_t> permutation;
  ActivationScheme activations = ActivationScheme::none;
  // The static schemes:  x ≈ activation_scale · (q − activation_zero).
  float activation_scale = 0;
  int32_t activation_zero = 0;
  // Bytes that are in no file: random, quantised or expanded weights. Copies of a description share them.
  std::shared_ptr<std::vector<uint8_t>> owned;

  int64_t num_groups() const { return group == 0 ? 0 : (K + group - 1) / group; }
  int64_t file_bytes() const { return N * row_bytes; }
  int64_t file_row(int64_t n) const {
    if (rope_interleaved_dim == 0) return n;
    const int64_t D = rope_interleaved_dim, head = n / D, r = n % D;
    return head * D + 2 * (r % (D / 2)) + r / (D / 2);
  }
};

// Row n taken apart. The caller gives buffers; what a format does not have is left alone.
//   codes      [K]           q: 0 … 2^bits − 1, or bit patterns of int8 or e4m3
//   scale      [num_groups]  s, or for two-level formats the exact product d·sc
//   minimum    [num_groups]  m of w = s·q − m (Offset::minimum only)
//   zero       [num_groups]  z of w = s·(q − z) (Offset::integer only)
//   super_*                  two-level only: d, dmin [K/super_group]; sc, mc [num_groups] (sc signed)
struct RowParts {
  uint8_t* codes = nullptr;
  float* scale = nullptr;
  float* minimum = nullptr;
  int32_t* zero = nullptr;
  float* super_scale = nullptr;
  float* super_minimum = nullptr;
  int8_t* sub_scale = nullptr;
  uint8_t* sub_minimum = nullptr;
};
void read_row(const QuantLinear& w, int64_t n,
              const RowParts& out);  // null members are skipped; not for dense

// Rows [begin, begin + count) as float32 into out [count, K], rounded as the owning tool rounds
// (gguf-py's dequantize): bit-exact against its SHA-256. Inputs are in the matrix's order, before `permutation`.
void decode_rows(const QuantLinear& w, int64_t begin, int64_t count, float* out);

std::string source_name(const QuantLinear& w);  // "Q4_0", "bfloat16", "int4 group 128": for the ledger
double bits_per_weight(const QuantLinear& w);   // file bytes · 8 / (N·K)

// Error naming the matrix when its fields contradict each other, a code has more than `bits` bits or is FP8's NaN (it
// reads all of them): for descriptions that are filled in by hand.
void check_arrays(const QuantLinear& w);
// Error naming the matrix when K is not a multiple of the block, sizes overflow, or data is too short.
QuantLinear describe_dense(std::string name, const void* data, DType dtype, int64_t N, int64_t K);
QuantLinear describe_blocks(std::string name, const uint8_t* data, int64_t bytes, Source source, int64_t N,
                            int64_t K);

}  // namespace nano
