// What the op tests share: matrices with random bytes in every format, and a bound on rounding.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "catch.h"
#include "data.h"  // tested_isas
#include "quant/linear.h"

namespace nano_test {

using namespace nano;

struct FormatCase {
  Source source;
  DType dtype;  // dense only
  int64_t block, bytes;
  std::vector<int64_t> scales;  // where a block has its f16 scales
};
inline const std::vector<FormatCase>& all_formats() {
  static const std::vector<FormatCase> cases = {
      {Source::dense, DType::f32, 1, 4, {}},  {Source::dense, DType::f16, 1, 2, {}},
      {Source::dense, DType::bf16, 1, 2, {}}, {Source::q4_0, {}, 32, 18, {0}},
      {Source::q4_1, {}, 32, 20, {0, 2}},     {Source::q5_0, {}, 32, 22, {0}},
      {Source::q5_1, {}, 32, 24, {0, 2}},     {Source::q8_0, {}, 32, 34, {0}},
      {Source::q2_k, {}, 256, 84, {80, 82}},  {Source::q3_k, {}, 256, 110, {108}},
      {Source::q4_k, {}, 256, 144, {0, 2}},   {Source::q5_k, {}, 256, 176, {0, 2}},
      {Source::q6_k, {}, 256, 210, {208}},
  };
  return cases;
}

inline const FormatCase& format_of(Source source, DType dtype = {}) {  // dtype: dense only
  for (const FormatCase& f : all_formats())
    if (f.source == source && f.dtype == dtype) return f;
  throw std::invalid_argument("a format that all_formats() has not");
}

struct Random {
  explicit Random(uint32_t seed) : engine(seed) {}
  float normal() { return std::normal_distribution<float>()(engine); }
  uint32_t bits() { return uint32_t(engine()); }
  std::vector<float> normals(int64_t n) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = normal();
    return x;
  }
  std::mt19937 engine;
};

// A matrix over bytes it owns. Codes and small scales are random bits, f16 scales are normal numbers.
inline QuantLinear random_matrix(const FormatCase& f, int64_t N, int64_t K, uint32_t seed) {
  Random random(seed);
  auto bytes = std::make_shared<std::vector<uint8_t>>(size_t(N * K / f.block * f.bytes));
  if (f.source == Source::dense) {
    for (int64_t i = 0; i < N * K; ++i) store_f32(bytes->data(), f.dtype, i, random.normal());
  } else {
    for (uint8_t& b : *bytes) b = uint8_t(random.bits());
    for (size_t block = 0; block < bytes->size(); block += size_t(f.bytes))
      for (int64_t at : f.scales)
        store_f32(bytes->data() + block + at, DType::f16, 0, 0.05f * random.normal());
  }
  QuantLinear w = f.source == Source::dense
                      ? describe_dense("test.weight", bytes->data(), f.dtype, N, K)
                      : describe_blocks("test.weight", bytes->data(), int64_t(bytes->size()), f.source, N, K);
  w.owned = bytes;
  return w;
}

// What a matrix of Source::arrays may be made of.
struct Field {
  Code code;
  int bits;
  Offset offset;
  bool zeros;  // a zero point per row and group
};
constexpr Field kFields[] = {
    {Code::unsigned_bits, 2, Offset::integer, true},
    {Code::unsigned_bits, 2, Offset::minimum, false},
    {Code::unsigned_bits, 3, Offset::integer, false},
    {Code::unsigned_bits, 3, Offset::integer, true},
    {Code::unsigned_bits, 3, Offset::minimum, false},
    {Code::unsigned_bits, 4, Offset::integer, false},
    {Code::unsigned_bits, 4, Offset::integer, true},
    {Code::unsigned_bits, 4, Offset::minimum, false},
    {Code::unsigned_bits, 5, Offset::integer, true},
    {Code::unsigned_bits, 5, Offset::minimum, false},
    {Code::unsigned_bits, 6, Offset::integer, true},
    {Code::unsigned_bits, 6, Offset::minimum, false},
    {Code::unsigned_bits, 8, Offset::integer, true},
    {Code::unsigned_bits, 8, Offset::minimum, false},
    {Code::int8, 8, Offset::none, false},
    {Code::e4m3, 8, Offset::none, false},
};
constexpr Field kInt4{Code::unsigned_bits, 4, Offset::integer, true},
    kInt8{Code::int8, 8, Offset::none, false}, kE4m3{Code::e4m3, 8, Offset::none, false};

// Bytes: codes [N, K], then scales, minima and zeros [rows of scales, groups].
inline QuantLinear synthetic(const Field& f, int64_t N, int64_t K, int64_t group, DType scale,
                             int64_t rows_per_scale, Random& random) {
  QuantLinear w;
  w.name = "test.weight";
  w.N = N, w.K = K, w.group = group, w.dtype = scale, w.row_bytes = K, w.rows_per_scale = rows_per_scale;
  w.source = Source::arrays;
  w.code = f.code, w.bits = f.bits, w.offset = f.offset;
  const int64_t values = (N + rows_per_scale - 1) / rows_per_scale * w.num_groups(),
                size = dtype_bytes(scale);
  auto bytes = std::make_shared<std::vector<uint8_t>>(size_t(N * K + values * (2 * size + 1)));
  uint8_t *codes = bytes->data(), *scales = codes + N * K, *minima = scales + values * size,
          *zeros = minima + values * size;
  for (int64_t i = 0; i < N * K; ++i) {
    codes[i] = uint8_t(random.bits() & ((1u << f.bits) - 1));
    if (f.code == Code::e4m3 && (codes[i] & 0x7f) == 0x7f) codes[i] ^= 1;
  }
  for (int64_t i = 0; i < values; ++i) {
    store_f32(scales, scale, i, 0.05f * random.normal());
    store_f32(minima, scale, i, 0.3f * random.normal());
    zeros[i] = uint8_t(random.bits() & ((1u << f.bits) - 1));
  }
  w.data = codes, w.scales = scales;
  if (f.offset == Offset::minimum) w.minima = minima;
  if (f.zeros) w.zeros = zeros;
  if (f.offset == Offset::integer && !f.zeros) w.zero = 1 << (f.bits - 1);
  w.owned = bytes;
  return w;
}

inline std::vector<int32_t> shuffled(int64_t K, Random& random) {
  std::vector<int32_t> order(static_cast<size_t>(K));
  for (int64_t k = 0; k < K; ++k) order[size_t(k)] = int32_t(k);
  std::shuffle(order.begin(), order.end(), random.engine);
  return order;
}

// Rounding of Σ w·x in one chain, against another order of summing: partial sums grow like √k, each is rounded to
// eps/2, so the error is about eps·√K·‖w∘x‖. Where w = s·q − m, or s·(q − z), the two products may be added apart:
// their sizes count. x is as the products see it, in the matrix's order.
inline std::vector<double> linear_tolerance(const QuantLinear& w, const std::vector<float>& x, int64_t M) {
  std::vector<float> row(size_t(w.K)), scale(row), minimum(row);
  std::vector<int32_t> zero(size_t(w.K), 0);
  std::vector<double> tolerance(size_t(M * w.N));
  for (int64_t n = 0; n < w.N; ++n) {
    decode_rows(w, n, 1, row.data());
    if (w.source == Source::arrays || w.offset == Offset::minimum) {
      RowParts parts;
      parts.scale = scale.data(), parts.minimum = minimum.data(), parts.zero = zero.data();
      read_row(w, n, parts);
      for (int64_t k = 0; k < w.K; ++k) {
        const size_t g = size_t(k / w.group);
        const float offset = w.code == Code::int8          ? 128 * scale[g]
                             : w.offset == Offset::minimum ? minimum[g]
                                                           : scale[g] * float(zero[g]);
        row[size_t(k)] = std::fabs(row[size_t(k)]) + 2 * std::fabs(offset);
      }
    }
    for (int64_t m = 0; m < M; ++m) {
      double squares = 0;
      for (int64_t k = 0; k < w.K; ++k)
        squares += std::pow(double(row[size_t(k)]) * x[size_t(m * w.K + k)], 2);
      const double bias =
          w.bias.empty() ? 0 : std::fabs(double(w.bias[size_t(n)]));  // added last: one rounding
      tolerance[size_t(m * w.N + n)] =
          1.2e-7 * (4 * std::sqrt(double(w.K)) * std::sqrt(squares) + bias) + 1e-30;
    }
  }
  return tolerance;
}

inline Act act(std::vector<float>& x) { return {x.data()}; }
inline Act act(const std::vector<float>& x) { return {const_cast<float*>(x.data())}; }

inline Limits limits(int64_t K) {
  Limits l;
  l.max_tokens = 80;
  l.max_K = K;
  l.H = l.KVH = 1, l.D = 8;
  return l;
}

inline std::vector<float> run(Backend& b, const std::vector<const QuantLinear*>& parts,
                              const std::vector<float>& x, int32_t M, Epilogue epilogue = Epilogue::store,
                              float before = 0) {
  const PackedLinear* packed = b.pack(parts);
  const bool pair = epilogue == Epilogue::silu_mul || epilogue == Epilogue::gelu_mul;
  std::vector<float> out(size_t(M * packed->N / (pair ? 2 : 1)), before);
  b.step(M, [&] { b.linear(act(out), act(x), M, *packed, epilogue); });
  return out;
}

// Outputs whose difference is not within the tolerance (NaN counts).
inline int64_t outside(const std::vector<float>& a, const std::vector<float>& b,
                       const std::vector<double>& tolerance) {
  int64_t n = 0;
  for (size_t i = 0; i < a.size(); ++i) n += !(std::fabs(double(a[i]) - double(b[i])) <= tolerance[i]);
  return n;
}

// Numbers of workers that must give the same bits. With 8 most ranges are a single panel or span, or empty.
constexpr int32_t kWorkers[] = {1, 2, 3, 5, 8};

// A test case that begins with NANO_EACH_ISA runs once for each of tested_isas().
inline std::string test_isa = "auto";
#define NANO_EACH_ISA                                                                      \
  nano_test::test_isa = GENERATE(Catch::Generators::from_range(nano_test::tested_isas())); \
  CAPTURE(nano_test::test_isa)

// Has just so many workers, however few cores there are: else a test compares one worker with itself.
inline std::unique_ptr<Backend> cpu_backend(ActivationDtype activations, int32_t workers) {
  return make_cpu_backend(activations, workers, /*exact_threads=*/true, test_isa);
}
inline std::unique_ptr<Backend> cpu_backend(ActivationDtype activations, int32_t workers, Limits limits) {
  auto backend = cpu_backend(activations, workers);
  REQUIRE(backend->describe().find("cpu: " + std::to_string(workers) + " thread") == 0);
  backend->reserve(limits);
  return backend;
}

inline int64_t differing(const std::vector<float>& a, const std::vector<float>& b) {  // bits, not values
  int64_t n = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) n += std::memcmp(&a[i], &b[i], 4) != 0;
  return n + std::abs(int64_t(a.size()) - int64_t(b.size()));
}

}  // namespace nano_test
