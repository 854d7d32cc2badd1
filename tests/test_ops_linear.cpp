// linear on cpu: every format, both activation types, against ref within the rounding; and bit for bit the same
// whatever the batch, the position in it, the workers.
#include "catch.h"
#include "base/error.h"
#include "ops_fixture.h"

using namespace nano;
using namespace nano_test;

namespace {

constexpr ActivationDtype kActivations[] = {ActivationDtype::float32, ActivationDtype::int8};
// Few rows; enough for a panel to be unpacked, and a rest; more than a chunk of 64.
constexpr int32_t kBatches[] = {5, 27, 67};

// Largest |a − b| relative to the largest |b|; NaN if there is one.
double worst(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0, size = 0;
  for (float v : b) size = std::max(size, std::fabs(double(v)));
  for (size_t i = 0; i < a.size(); ++i) {
    const double error = std::fabs(double(a[i]) - double(b[i])) / size;
    if (!std::isnan(most) && !(error <= most)) most = error;  // NaN stays
  }
  return most;
}
double rounding(int64_t K) { return 4 * 1.2e-7 * std::sqrt(double(K)); }

std::vector<int64_t> inputs_for(const FormatCase& f) {
  if (f.block == 1) return {1, 31, 33, 100, 576};
  if (f.block == 32) return {32, 96, 576};
  return {256, 768};
}

}  // namespace

TEST_CASE("linear equals ref within rounding: all formats, activations and odd sizes") {
  NANO_EACH_ISA;
  uint32_t seed = 1;
  for (const FormatCase& f : all_formats()) {
    for (ActivationDtype activations : kActivations) {
      auto ref = make_ref_backend(activations);
      for (int64_t K : inputs_for(f)) {
        auto cpu = cpu_backend(activations, 3, limits(K));
        for (int64_t N : {1, 17, 49}) {
          QuantLinear w = random_matrix(f, N, K, ++seed);
          CAPTURE(source_name(w), int(activations), K, N, seed);
          const int32_t M = 9;
          const std::vector<float> x = Random(seed + 5000).normals(M * K);
          const std::vector<float> expected = run(*ref, {&w}, x, M), got = run(*cpu, {&w}, x, M);
          const std::vector<double> tolerance = linear_tolerance(w, x, M);
          CHECK(outside(got, expected, tolerance) == 0);
          // The bound is tight enough to see one changed code.
          (*w.owned)[f.block == 1       ? size_t(f.bytes - 1)
                     : f.scales[0] == 0 ? size_t(f.bytes - 1)
                                        : size_t(48)] ^= 0x11;
          CHECK(outside(got, run(*ref, {&w}, x, M), tolerance) > 0);
        }
      }
    }
  }
}

TEST_CASE("a row's result has the same bits for every M, position, neighbour and number of workers") {
  NANO_EACH_ISA;
  constexpr int32_t kRows = 70;
  uint32_t seed = 100;
  for (const FormatCase& f : all_formats()) {
    for (ActivationDtype activations : kActivations) {
      const int64_t K = f.block == 256 ? 512 : f.block == 32 ? 96 : 100, N = 81;
      QuantLinear w = random_matrix(f, N, K, ++seed);
      std::vector<std::unique_ptr<Backend>> cpus;
      std::vector<const PackedLinear*> packed;
      for (int32_t workers : kWorkers) {
        cpus.push_back(cpu_backend(activations, workers, limits(K)));
        packed.push_back(cpus.back()->pack(std::vector<const QuantLinear*>{&w}));
      }
      const std::vector<float> x = Random(seed + 5000).normals(kRows * K);
      std::vector<float> all(size_t(kRows * N));
      cpus[0]->linear(act(all), act(x), kRows, *packed[0], Epilogue::store);
      int64_t wrong = 0;
      for (int32_t M = 1; M <= kRows; ++M) {
        // Rows M−1, M−2, … 0: another M, another place, other neighbours.
        std::vector<float> reversed(size_t(M * K)), out(size_t(M * N));
        for (int64_t m = 0; m < M; ++m) std::copy_n(&x[size_t((M - 1 - m) * K)], K, &reversed[size_t(m * K)]);
        const size_t i = size_t(M) % cpus.size();
        cpus[i]->linear(act(out), act(reversed), M, *packed[i], Epilogue::store);
        for (int64_t m = 0; m < M; ++m)
          wrong += std::memcmp(&out[size_t(m * N)], &all[size_t((M - 1 - m) * N)], size_t(N) * 4) != 0;
      }
      CAPTURE(source_name(w), int(activations), seed);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("parts of different formats and biases") {
  NANO_EACH_ISA;
  const int64_t K = 256;
  for (ActivationDtype activations : kActivations)
    for (int32_t M : kBatches) {
      CAPTURE(int(activations), M);
      Random random{uint32_t(M)};
      const std::vector<float> x = random.normals(M * K);
      auto ref = make_ref_backend(activations), cpu = cpu_backend(activations, 3, limits(K));
      QuantLinear q = random_matrix(format_of(Source::q4_k), 40, K, 1),
                  k = random_matrix(format_of(Source::q6_k), 17, K, 2),
                  v = random_matrix(format_of(Source::dense, DType::f32), 17, K, 3);
      q.bias = random.normals(40);
      v.bias = random.normals(17);
      const std::vector<float> got = run(*cpu, {&q, &k, &v}, x, M);
      CHECK(worst(got, run(*ref, {&q, &k, &v}, x, M)) <= rounding(K));
      CHECK(worst(got, run(*ref, {&k, &q, &v}, x, M)) > rounding(K));
    }
}

TEST_CASE("epilogues, also of a pair with integer products in one half and float products in the other") {
  NANO_EACH_ISA;
  const int64_t K = 256;
  QuantLinear q4 = random_matrix(format_of(Source::q4_k), 40, K, 1),
              q8 = random_matrix(format_of(Source::q8_0), 40, K, 4),
              half = random_matrix(format_of(Source::dense, DType::f16), 40, K, 5);
  q4.bias = Random(6).normals(40);
  half.bias = Random(7).normals(40);
  for (ActivationDtype activations : kActivations) {
    auto ref = make_ref_backend(activations), cpu = cpu_backend(activations, 3, limits(K)),
         one = cpu_backend(activations, 1, limits(K));
    for (const auto& [first, second] : {std::pair{&q4, &q8}, {&q8, &half}, {&half, &q8}})
      for (Epilogue e : {Epilogue::add, Epilogue::silu_mul, Epilogue::gelu_mul})
        for (int32_t M : kBatches) {
          CAPTURE(int(activations), source_name(*first), source_name(*second), int(e), M);
          const std::vector<float> x = Random{uint32_t(M)}.normals(M * K);
          const std::vector<float> got = run(*cpu, {first, second}, x, M, e, 3.0f);
          CHECK(worst(got, run(*ref, {first, second}, x, M, e, 3.0f)) <= rounding(K));
          CHECK(worst(got, run(*ref, {second, first}, x, M, e, 3.0f)) > rounding(K));
          const int64_t width = int64_t(got.size()) / M;
          for (int64_t m : {0, M - 1}) {  // the row alone
            const std::vector<float> alone =
                run(*one, {first, second}, {&x[size_t(m * K)], &x[size_t(m * K)] + K}, 1, e, 3.0f);
            CHECK(std::memcmp(alone.data(), &got[size_t(m * width)], size_t(width) * 4) == 0);
          }
        }
  }
}

TEST_CASE("weights packed for a large linear grow by at most a tenth, and are counted exactly") {
  NANO_EACH_ISA;
  for (const FormatCase& f : all_formats()) {
    auto cpu = cpu_backend(ActivationDtype::int8, 1);
    QuantLinear w = random_matrix(f, 64, 768, 5);
    CAPTURE(source_name(w));
    const PackedLinear* packed = cpu->pack(std::vector<const QuantLinear*>{&w});
    CHECK(double(packed->bytes) <= 1.10 * double(w.file_bytes()));
    CHECK(packed->bytes >= w.file_bytes());
    CHECK(cpu->allocated(Memory::weights) == packed->bytes);
  }
}

TEST_CASE("rows of the file in another order (interleaved RoPE) are packed in the order of the matrix") {
  NANO_EACH_ISA;
  for (const FormatCase& f : all_formats()) {
    QuantLinear w = random_matrix(f, 48, 256, 6);
    w.rope_interleaved_dim = 16;
    CAPTURE(source_name(w));
    const std::vector<float> x = Random(8).normals(256);
    auto ref = make_ref_backend(ActivationDtype::float32),
         cpu = cpu_backend(ActivationDtype::float32, 1, limits(256));
    CHECK(outside(run(*cpu, {&w}, x, 1), run(*ref, {&w}, x, 1), linear_tolerance(w, x, 1)) == 0);
  }
}

TEST_CASE("int8 activations: extremes, zero rows, tiny values, and NaN shows") {
  NANO_EACH_ISA;
  const int64_t K = 64;
  QuantLinear w = random_matrix(format_of(Source::q4_1), 16, K, 9);
  auto ref = make_ref_backend(ActivationDtype::int8), cpu = cpu_backend(ActivationDtype::int8, 1, limits(K));
  std::vector<float> x(size_t(4 * K), 0.0f);
  for (int64_t k = 0; k < K; ++k) x[size_t(K + k)] = k % 2 ? -1e30f : 1e30f;
  for (int64_t k = 0; k < K; ++k) x[size_t(2 * K + k)] = 1e-36f;
  x[size_t(3 * K + 40)] = NAN;
  const std::vector<float> got = run(*cpu, {&w}, x, 4), expected = run(*ref, {&w}, x, 4);
  const std::vector<double> tolerance = linear_tolerance(w, x, 4);
  for (size_t i = 0; i < 16; ++i) {
    CHECK(got[i] == 0.0f);
    CHECK(std::fabs(double(got[16 + i]) - double(expected[16 + i])) <= tolerance[16 + i]);
    CHECK(std::fabs(got[32 + i]) <= 1e-30f);
    CHECK(std::isnan(got[48 + i]));
  }
}
