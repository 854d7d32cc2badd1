#include "quant/linear.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/dtype.h"         // load_f32, e4m3_to_f32
#include "base/error.h"         // Error, NANO_CHECK
#include "quant/ggml_blocks.h"  // BlockFormat, BlockParts

namespace nano {

namespace {

std::string shape_text(int64_t N, int64_t K) {
  return "[" + std::to_string(N) + ", " + std::to_string(K) + "]";
}

// Σ bytes of N rows; Error instead of a wrapped product.
void check_extent(const std::string& name, int64_t N, int64_t K, int64_t bytes_per_unit,
                  int64_t units_per_row) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  if (N <= 0 || K <= 0) throw Error("matrix of shape " + shape_text(N, K) + " is empty", name);
  if (units_per_row > kMax / bytes_per_unit || units_per_row * bytes_per_unit > kMax / N)
    throw Error("size of a matrix of shape " + shape_text(N, K) + " overflows", name);
}

const uint8_t* row_bytes_of(const QuantLinear& w, int64_t n) { return w.data + w.file_row(n) * w.row_bytes; }

float group_scale(const BlockFormat& f, const BlockParts& p, int64_t g) {
  return f.two_level() ? p.scale * float(p.sub_scale[g]) : p.scale;  // 11 + 8 bits: the product is exact
}
float group_minimum(const BlockFormat& f, const BlockParts& p, int64_t g) {
  return f.two_level() ? p.minimum * float(p.sub_minimum[g]) : p.minimum;
}

// w = s·q, s·(q − z) or s·q − m for the n codes of one group, each step rounded to float32 as the tools do.
void decode_group(float* out, const uint8_t* q, int64_t n, Code code, Offset offset, float s, float m,
                  int32_t z) {
  if (code == Code::int8)
    for (int64_t i = 0; i < n; ++i) out[i] = s * float(int8_t(q[i]));
  else if (code == Code::e4m3)
    for (int64_t i = 0; i < n; ++i) out[i] = s * e4m3_to_f32(q[i]);
  else if (offset == Offset::minimum)
    for (int64_t i = 0; i < n; ++i) out[i] = s * float(q[i]) - m;
  else
    for (int64_t i = 0; i < n; ++i) out[i] = s * float(int32_t(q[i]) - z);
}

void read_arrays_row(const QuantLinear& w, int64_t n, const RowParts& out) {
  const int64_t groups = w.num_groups(), first = n / w.rows_per_scale * groups;
  if (out.codes) std::copy_n(row_bytes_of(w, n), w.K, out.codes);
  for (int64_t g = 0; g < groups; ++g) {
    if (out.scale) out.scale[g] = load_f32(w.scales, w.dtype, first + g);
    if (out.minimum && w.minima) out.minimum[g] = load_f32(w.minima, w.dtype, first + g);
    if (out.zero && w.offset == Offset::integer) out.zero[g] = w.zeros ? w.zeros[first + g] : w.zero;
  }
}

void decode_arrays_row(const QuantLinear& w, int64_t n, float* out) {
  const uint8_t* codes = row_bytes_of(w, n);
  const int64_t first = n / w.rows_per_scale * w.num_groups();
  for (int64_t g = 0; g < w.num_groups(); ++g) {
    const int64_t k = g * w.group;
    decode_group(out + k, codes + k, std::min(w.group, w.K - k), w.code, w.offset,
                 load_f32(w.scales, w.dtype, first + g),
                 w.minima ? load_f32(w.minima, w.dtype, first + g) : 0.0f,
                 w.zeros ? w.zeros[first + g] : w.zero);
  }
}

void decode_dense_row(const uint8_t* row, DType dtype, int64_t K, float* out) {
  switch (dtype) {
    case DType::f32: std::memcpy(out, row, size_t(K) * 4); break;
    case DType::f16:
      for (int64_t k = 0; k < K; ++k) out[k] = load_f32(row, DType::f16, k);
      break;
    case DType::bf16:
      for (int64_t k = 0; k < K; ++k) out[k] = load_f32(row, DType::bf16, k);
      break;
    default: NANO_CHECK(false, "a dense matrix is f32, f16 or bf16");
  }
}

}  // namespace

void read_row(const QuantLinear& w, int64_t n, const RowParts& out) {
  NANO_CHECK(w.source != Source::dense, "read_row is for block formats");
  NANO_CHECK(n >= 0 && n < w.N, "row index");
  if (w.source == Source::arrays) return read_arrays_row(w, n, out);
  const BlockFormat& f = block_format(w.source);
  const uint8_t* block = row_bytes_of(w, n);
  const int64_t groups = f.elems / f.group;
  BlockParts p;
  for (int64_t b = 0; b < w.K / f.elems; ++b, block += f.bytes) {
    f.unpack(block, p);
    if (out.codes) std::copy_n(p.codes, f.elems, out.codes + b * f.elems);
    const bool has_minimum = f.offset == Offset::minimum;
    for (int64_t g = 0; g < groups; ++g) {
      if (out.scale) out.scale[b * groups + g] = group_scale(f, p, g);
      if (out.minimum && has_minimum) out.minimum[b * groups + g] = group_minimum(f, p, g);
      if (out.zero && f.offset == Offset::integer) out.zero[b * groups + g] = f.zero;
    }
    if (!f.two_level()) continue;
    if (out.super_scale) out.super_scale[b] = p.scale;
    if (out.sub_scale) std::copy_n(p.sub_scale, groups, out.sub_scale + b * groups);
    if (out.super_minimum && has_minimum) out.super_minimum[b] = p.minimum;
    if (out.sub_minimum && has_minimum) std::copy_n(p.sub_minimum, groups, out.sub_minimum + b * groups);
  }
}

void decode_rows(const QuantLinear& w, int64_t begin, int64_t count, float* out) {
  NANO_CHECK(begin >= 0 && count >= 0 && begin <= w.N - count, "row range");
  for (int64_t n = begin; n < begin + count; ++n, out += w.K) {
    const uint8_t* row = row_bytes_of(w, n);
    if (w.source == Source::dense) {
      decode_dense_row(row, w.dtype, w.K, out);
      continue;
    }
    if (w.source == Source::arrays) {
      decode_arrays_row(w, n, out);
      continue;
    }
    const BlockFormat& f = block_format(w.source);
    BlockParts p;
    for (int64_t b = 0; b < w.K / f.elems; ++b) {
      f.unpack(row + b * f.bytes, p);
      for (int64_t g = 0; g < f.elems / f.group; ++g)
        decode_group(out + b * f.elems + g * f.group, p.codes + g * f.group, f.group, f.code, f.offset,
                     group_scale(f, p, g), group_minimum(f, p, g), f.zero);
    }
  }
}

std::string source_name(const QuantLinear& w) {
  if (w.source == Source::dense) return dtype_name(w.dtype);
  if (w.source != Source::arrays) return block_format(w.source).name;
  return (w.code == Code::e4m3 ? dtype_name(DType::e4m3) : "int" + std::to_string(w.bits)) +
         (w.group >= w.K ? "" : " group " + std::to_string(w.group));
}

double bits_per_weight(const QuantLinear& w) { return double(w.row_bytes) * 8.0 / double(w.K); }

void check_arrays(const QuantLinear& w) {
  check_extent(w.name, w.N, w.K, 1, w.K);
  auto refuse = [&](const std::string& what) { throw Error("quantised matrix: " + what, w.name); };
  if (w.source != Source::arrays || w.data == nullptr || w.scales == nullptr) refuse("no codes or no scales");
  if (w.row_bytes != w.K) refuse("a row has one byte a code");
  const bool eight = w.code != Code::unsigned_bits;
  if (eight ? w.bits != 8 : w.bits < 2 || w.bits > 8 || w.bits == 7)
    refuse("codes of " + std::to_string(w.bits) + " bits");
  if (w.group <= 0 || (w.group % 16 != 0 && w.group < w.K))
    refuse("groups of " + std::to_string(w.group) + " (a multiple of 16, or whole rows)");
  if (w.rope_interleaved_dim != 0) refuse("rows in another order than its scales");
  if (w.super_group != 0) refuse("two-level scales are for GGML's formats");
  if (w.dtype != DType::f32 && w.dtype != DType::f16 && w.dtype != DType::bf16)
    refuse(std::string("scales of type ") + dtype_name(w.dtype));
  if ((w.offset == Offset::minimum) != (w.minima != nullptr) ||
      ((w.zeros || w.zero != 0) && w.offset != Offset::integer) || (eight && w.offset != Offset::none) ||
      w.zero < 0 || w.zero > 255)
    refuse("offsets that do not fit the codes");
  if (w.rows_per_scale < 1) refuse("rows per scale");
  if (!w.permutation.empty()) {
    std::vector<bool> seen(size_t(w.K), false);
    if (int64_t(w.permutation.size()) != w.K) refuse("a permutation of another length");
    for (int32_t k : w.permutation) {
      if (k < 0 || k >= w.K || seen[size_t(k)]) refuse("a permutation that repeats or leaves out an input");
      seen[size_t(k)] = true;
    }
  }
  // Codes that backends would read in different ways: cpu keeps `bits` of each, and takes FP8's NaN for 480.
  uint8_t all = 0;
  bool nan = false;
  for (int64_t i = 0; w.code != Code::int8 && i < w.N * w.K; ++i) {
    all |= w.data[i];
    nan |= (w.data[i] & 0x7f) == 0x7f;
  }
  if (w.code == Code::e4m3 && nan) refuse("a weight is NaN: the file is damaged");
  if (w.code == Code::unsigned_bits && all >> w.bits != 0)
    refuse("a code of more than " + std::to_string(w.bits) + " bits: the file is damaged");
}

QuantLinear describe_dense(std::string name, const void* data, DType dtype, int64_t N, int64_t K) {
  if (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16)
    throw Error(std::string("elements of type ") + dtype_name(dtype) + " are not supported in a dense matrix",
                name, "float32, float16 or bfloat16");
  check_extent(name, N, K, dtype_bytes(dtype), K);
  QuantLinear w;
  w.name = std::move(name);
  w.N = N, w.K = K;
  w.data = static_cast<const uint8_t*>(data);
  w.dtype = dtype;
  w.row_bytes = K * dtype_bytes(dtype);
  return w;
}

QuantLinear describe_blocks(std::string name, const uint8_t* data, int64_t bytes, Source source, int64_t N,
                            int64_t K) {
  const BlockFormat& f = block_format(source);
  check_extent(name, N, K, f.bytes, K / f.elems + 1);
  if (K % f.elems != 0)
    throw Error("rows of " + std::to_string(K) + " elements are not a multiple of the " + f.name +
                    " block of " + std::to_string(f.elems),
                name, "the file is damaged or was quantised by a broken tool");
  const int64_t row_bytes = K / f.elems * f.bytes;
  if (bytes < N * row_bytes)
    throw Error("shape " + shape_text(N, K) + " in " + f.name + " needs " + std::to_string(N * row_bytes) +
                    " bytes, but there are " + std::to_string(bytes),
                name);
  QuantLinear w;
  w.name = std::move(name);
  w.N = N, w.K = K;
  w.source = source;
  w.data = data;
  w.row_bytes = row_bytes;
  w.bits = f.bits;
  w.code = f.code;
  w.dtype = DType::f16;
  w.group = f.group;
  w.super_group = f.two_level() ? f.elems : 0;
  w.offset = f.offset;
  w.zero = f.zero;
  return w;
}

}  // namespace nano
