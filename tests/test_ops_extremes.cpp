// linear on cpu with numbers at the edge of float32: denormal weights, scales and inputs; NaN and infinity in a row.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/backend.h"  // make_ref_backend
#include "catch.h"
#include "ops_fixture.h"  // random_matrix, synthetic, cpu_backend, kWorkers

using namespace nano;
using namespace nano_test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// All of every third row becomes denormal float32, or zero: a normal number in the same sum would hide them.
void make_denormal(uint8_t* values, DType dtype, int64_t N, int64_t width, bool zero) {
  for (int64_t n = 0; n < N; n += 3)
    for (int64_t i = n * width; i < (n + 1) * width; ++i)
      store_f32(values, dtype, i, zero ? 0.0f : 3e-40f * float(1 + i % 7));
}

// A matrix with denormals among its scales, or its weights if it is dense (no field); or zeros in their place.
QuantLinear denormal_matrix(const Field* field, DType dtype, bool zero) {
  const int64_t N = 33, K = 96;
  Random random(8);
  QuantLinear w = field == nullptr ? random_matrix(format_of(Source::dense, dtype), N, K, 8)
                                   : synthetic(*field, N, K, 32, dtype, 1, random);
  uint8_t* bytes = w.owned->data();
  if (field == nullptr)
    make_denormal(bytes, dtype, N, K, zero);
  else
    make_denormal(bytes + N * K, dtype, N, w.num_groups(), zero);
  return w;
}

}  // namespace

TEST_CASE("denormal weights, scales and inputs count as zero, for every M and worker") {
  NANO_EACH_ISA;
  const int64_t K = 96;
  const int32_t kRows = 67;
  // Products of 1e20 with a denormal are large: a thread that does not flush shows.
  std::vector<float> x = Random(9).normals(kRows * K);
  for (float& v : x) v *= 1e20f;
  for (int64_t m = 0; m < kRows; m += 4) std::fill_n(&x[size_t(m * K)], K, 1e-39f);
  for (ActivationDtype activations : {ActivationDtype::float32, ActivationDtype::int8}) {
    std::vector<std::unique_ptr<Backend>> cpus;
    for (int32_t workers : kWorkers) cpus.push_back(cpu_backend(activations, workers, limits(K)));
    for (const Field* field : std::initializer_list<const Field*>{nullptr, &kInt4, &kInt8, &kE4m3})
      for (DType dtype : {DType::f32, DType::bf16}) {
        const QuantLinear w = denormal_matrix(field, dtype, false),
                          zero = denormal_matrix(field, dtype, true);
        CAPTURE(int(activations), source_name(w), dtype_name(dtype));
        const std::vector<float> expected = run(*cpus[0], {&zero}, x, kRows);
        CHECK(std::all_of(&expected[0], &expected[size_t(w.N)], [](float y) { return y == 0.0f; }));
        for (const auto& cpu : cpus) {
          const PackedLinear* packed = cpu->pack(std::vector<const QuantLinear*>{&w});
          for (int32_t M : {1, 2, 9, 27, 67}) {
            std::vector<float> got(size_t(M * w.N));
            cpu->linear(act(got), act(x), M, *packed, Epilogue::store);
            CAPTURE(cpu->describe(), M);
            CHECK(std::memcmp(got.data(), expected.data(), got.size() * 4) == 0);
          }
        }
      }
  }
}

TEST_CASE("the largest codes times the largest inputs: no sum overflows") {
  NANO_EACH_ISA;
  auto ref = make_ref_backend(ActivationDtype::float32),
       cpu = cpu_backend(ActivationDtype::float32, 1, limits(256));
  std::vector<QuantLinear> matrices;
  for (const FormatCase& f : all_formats()) {
    if (f.source == Source::dense) continue;
    matrices.push_back(random_matrix(f, 17, f.block == 256 ? 256 : 64, 1));
    QuantLinear& w = matrices.back();
    for (uint8_t& byte : *w.owned) byte = 0xff;  // all codes and small scales; those of float16 are set again
    for (size_t block = 0; block < w.owned->size(); block += size_t(f.bytes))
      for (int64_t at : f.scales) store_f32(w.owned->data() + block + at, DType::f16, 0, 0.05f);
  }
  for (const Field& field : kFields) {
    Random random(2);
    if (field.code == Code::e4m3) continue;
    for (int64_t group : {16, 32}) {
      matrices.push_back(synthetic(field, 17, 64, group, DType::f16, 1, random));
      std::fill_n(matrices.back().owned->data(), 17 * 64,
                  field.code == Code::int8 ? 0x80 : uint8_t((1u << field.bits) - 1));
    }
  }
  for (QuantLinear& w : matrices)
    for (ActivationScheme scheme : {ActivationScheme::int8_per32, ActivationScheme::int8_static})
      for (float size : {3.0f, -3.0f})  // static: 127 and −128
        for (int32_t M : {1, 5, 41}) {
          w.activations = scheme, w.activation_scale = 0.02f, w.activation_zero = 0;
          const std::vector<float> x(size_t(M * w.K), size);
          CAPTURE(source_name(w), int(w.offset), w.group, int(scheme), size, M);
          CHECK(outside(run(*cpu, {&w}, x, M), run(*ref, {&w}, x, M), linear_tolerance(w, x, M)) == 0);
        }
}

TEST_CASE("NaN and infinity among int8 inputs show in their own row alone") {
  NANO_EACH_ISA;
  struct Bad {
    std::vector<std::pair<int64_t, float>> at;  // inputs of the row; many of one tile, in both of its halves
    bool nan;
  };
  const std::vector<Bad> kinds = {
      {{{0, NAN}, {1, NAN}, {16, NAN}, {17, NAN}}, true},
      {{{3, kInf}}, false},
      {{{20, -kInf}, {31, -kInf}, {33, kInf}}, false},
      {{{0, kInf}, {1, -kInf}, {16, NAN}, {17, -NAN}, {40, NAN}}, true},
  };
  std::vector<QuantLinear> matrices;
  for (const FormatCase& f : all_formats())
    if (f.source != Source::dense) matrices.push_back(random_matrix(f, 17, f.block == 256 ? 256 : 64, 1));
  for (const Field& field : kFields) {
    Random random(2);
    if (field.code != Code::e4m3) matrices.push_back(synthetic(field, 17, 100, 48, DType::f16, 1, random));
  }
  auto ref = make_ref_backend(ActivationDtype::float32),
       cpu = cpu_backend(ActivationDtype::float32, 3, limits(256));
  for (QuantLinear& w : matrices)
    for (ActivationScheme scheme :
         {ActivationScheme::int8_per32, ActivationScheme::int8_per_token, ActivationScheme::int8_static})
      for (int32_t M : {3, 41}) {  // the panel as it is packed, and unpacked
        w.activations = scheme, w.activation_scale = 0.02f, w.activation_zero = 5;
        const std::vector<float> good = Random(3).normals(M * w.K), finite = run(*cpu, {&w}, good, M);
        for (const Bad& bad : kinds) {
          std::vector<float> x = good;
          const std::vector<int32_t> rows =
              M == 3 ? std::vector<int32_t>{1} : std::vector<int32_t>{0, 13, 40};
          for (int32_t m : rows)
            for (const auto& [k, value] : bad.at) x[size_t(m * w.K + k)] = value;
          const std::vector<float> got = run(*cpu, {&w}, x, M), expected = run(*ref, {&w}, x, M);
          const std::vector<double> tolerance = linear_tolerance(w, good, M);
          int64_t nan = 0, nan_of_ref = 0, far = 0, touched = 0;
          for (int32_t m = 0; m < M; ++m) {
            const bool is_bad = std::count(rows.begin(), rows.end(), m) > 0;
            for (size_t i = size_t(m * w.N); i < size_t((m + 1) * w.N); ++i) {
              if (!is_bad) touched += f32_bits(got[i]) != f32_bits(finite[i]);
              if (is_bad) nan += std::isnan(got[i]), nan_of_ref += std::isnan(expected[i]);
              if (is_bad) far += !(std::fabs(double(got[i]) - double(expected[i])) <= tolerance[i]);
            }
          }
          CAPTURE(source_name(w), int(w.offset), int(scheme), M, bad.at[0].first, bad.at[0].second);
          const int64_t outputs = int64_t(rows.size()) * w.N;
          CHECK(touched == 0);
          if (bad.nan || scheme != ActivationScheme::int8_static) {
            CHECK(nan_of_ref == outputs);
            CHECK(nan == outputs);
          } else {  // a static scale holds: infinity is the largest code
            CHECK(far == 0);
          }
        }
      }
}
