// linear on cpu with numbers at the edge of float32: denormal weights, scales and inputs.
#include <algorithm>
#include <cstring>
#include <vector>

#include "catch.h"
#include "ops_fixture.h"  // random_matrix, synthetic, cpu_backend, kWorkers

using namespace nano;
using namespace nano_test;

namespace {

// Every third of n values becomes a denormal float32, or zero.
void make_denormal(uint8_t* values, DType dtype, int64_t n, bool zero) {
  for (int64_t i = 0; i < n; i += 3)
    store_f32(values, dtype, i, zero ? 0.0f : (i % 2 ? -1e-39f : 3e-40f) * float(1 + i % 7));
}

// A matrix with denormals among its scales, or its weights if it is dense (no field); or zeros in their place.
QuantLinear denormal_matrix(const Field* field, DType dtype, bool zero) {
  const int64_t N = 33, K = 96;
  Random random(8);
  QuantLinear w = field == nullptr ? random_matrix(format_of(Source::dense, dtype), N, K, 8)
                                   : synthetic(*field, N, K, 32, dtype, 1, random);
  uint8_t* bytes = w.owned->data();
  if (field == nullptr)
    make_denormal(bytes, dtype, N * K, zero);
  else
    make_denormal(bytes + N * K, dtype, N * w.num_groups(), zero);
  return w;
}

}  // namespace

TEST_CASE("denormal weights, scales and inputs count as zero, for every M and worker") {
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
