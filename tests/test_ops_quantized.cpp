// linear on cpu against ref over synthetic matrices that cross every field of QuantLinear: codes, groups, scales,
// offsets, permutations and roundings of the inputs, also those that no file format of today combines.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "backend/backend.h"  // make_ref_backend, make_cpu_backend
#include "base/error.h"       // Error
#include "catch.h"
#include "ops_fixture.h"        // Random, linear_tolerance, cpu_backend, act
#include "quant/activations.h"  // scheme_of, round_activations

using namespace nano;
using namespace nano_test;

namespace {

constexpr DType kScales[] = {DType::f16, DType::bf16, DType::f32};
constexpr ActivationScheme kSchemes[] = {ActivationScheme::none,           ActivationScheme::int8_per32,
                                         ActivationScheme::int8_per_token, ActivationScheme::int8_static,
                                         ActivationScheme::fp8_static,     ActivationScheme::fp8_token,
                                         ActivationScheme::fp8_group128};

bool fits(const Field& f, ActivationScheme scheme) { return !(f.code == Code::e4m3 && is_int8(scheme)); }

// The rows that the products see, for the bound on rounding: with a zero point s·q and s·z are added apart.
std::vector<float> seen_rows(const QuantLinear& w, const std::vector<float>& x, int64_t M, bool int8) {
  std::vector<float> out(x);
  for (int64_t m = 0; m < M; ++m) {
    for (size_t k = 0; k < w.permutation.size(); ++k)
      out[size_t(m * w.K) + k] = x[size_t(m * w.K + w.permutation[k])];
    round_activations(&out[size_t(m * w.K)], w.K, scheme_of(w, int8), w.activation_scale, w.activation_zero);
  }
  for (float& v : out) v = std::fabs(v) + w.activation_scale * std::fabs(float(w.activation_zero));
  return out;
}

}  // namespace

TEST_CASE("linear equals ref: codes × groups × scales × offsets × permutations × activations") {
  NANO_EACH_ISA;
  constexpr int32_t M = 5;
  uint32_t seed = 0;
  int64_t cases = 0, wrong = 0, unseen_faults = 0;
  for (ActivationDtype flag : {ActivationDtype::float32, ActivationDtype::int8}) {
    for (int64_t K : {96, 100, 330}) {
      auto ref = make_ref_backend(flag), cpu = cpu_backend(flag, 1, limits(K));  // alone: it is many cases
      for (const Field& field : kFields)
        for (int64_t group : {int64_t(16), int64_t(32), int64_t(48), int64_t(128), K})
          for (DType scale : kScales)
            for (bool permuted : {false, true})
              for (ActivationScheme scheme : kSchemes) {
                if (!fits(field, scheme)) continue;
                Random random(++seed);
                const int64_t N = 17, rows_per_scale = seed % 5 == 0 ? 8 : seed % 7 == 0 ? N : 1;
                QuantLinear w = synthetic(field, N, K, group, scale, rows_per_scale, random);
                if (permuted) w.permutation = shuffled(K, random);
                w.activations = scheme;
                w.activation_scale = 0.02f;  // of ±2.5: some inputs saturate
                if (scheme == ActivationScheme::int8_static) w.activation_zero = int32_t(seed % 21) - 10;
                if (seed % 3 == 0) w.bias = random.normals(N);
                const std::vector<float> x = random.normals(M * K);
                const bool int8 = flag == ActivationDtype::int8;
                const std::vector<double> tolerance = linear_tolerance(w, seen_rows(w, x, M, int8), M);
                const std::vector<float> got = run(*cpu, {&w}, x, M);
                const int64_t bad = outside(got, run(*ref, {&w}, x, M), tolerance);
                if (bad != 0) {
                  CAPTURE(seed, source_name(w), K, group, int(scale), int(scheme), int(flag), permuted,
                          int(field.offset), field.zeros);
                  CHECK(bad == 0);
                }
                ++cases;
                wrong += bad;
                // A changed code of the last input is seen.
                uint8_t& code = (*w.owned)[size_t(K - 1)];
                code = field.code == Code::e4m3 ? ((code ^ 0x80) & 0xfe) | 0x40
                                                : code ^ (1u << (field.bits - 1));
                unseen_faults += outside(got, run(*ref, {&w}, x, M), tolerance) == 0;
              }
    }
  }
  CHECK(cases == 2 * 3 * 5 * 3 * 2 * (15 * 7 + 4));
  CHECK(wrong == 0);
  // Where the last input is rounded to 0, or its scale is next to nothing, the fault has no effect.
  CAPTURE(unseen_faults, cases);
  CHECK(unseen_faults < cases / 50);
}

TEST_CASE("scales that lie apart, when a panel is unpacked for many rows") {
  NANO_EACH_ISA;
  const int64_t K = 100, N = 17;
  uint32_t seed = 30000;
  for (ActivationDtype flag : {ActivationDtype::float32, ActivationDtype::int8}) {
    auto ref = make_ref_backend(flag), cpu = cpu_backend(flag, 3, limits(K));
    for (const Field& field : kFields)
      for (int64_t group : {int64_t(32), int64_t(48), K})
        for (ActivationScheme scheme : kSchemes) {
          if (!fits(field, scheme)) continue;
          Random random(++seed);
          QuantLinear w = synthetic(field, N, K, group, kScales[seed % 3], 1, random);
          w.activations = scheme;
          w.activation_scale = 0.02f;
          if (scheme == ActivationScheme::int8_static) w.activation_zero = -7;
          const int32_t M = std::vector<int32_t>{24, 39, 40, 63}[seed % 4];
          const std::vector<float> x = random.normals(M * K);
          const std::vector<double> tolerance =
              linear_tolerance(w, seen_rows(w, x, M, flag == ActivationDtype::int8), M);
          CAPTURE(seed, source_name(w), group, int(scheme), int(flag), M);
          CHECK(outside(run(*cpu, {&w}, x, M), run(*ref, {&w}, x, M), tolerance) == 0);
        }
  }
}

TEST_CASE("a row of a synthetic matrix has the same bits for every M and number of workers") {
  NANO_EACH_ISA;
  constexpr int32_t kRows = 70;
  const int64_t K = 100, N = 33;
  std::vector<std::unique_ptr<Backend>> cpus;
  for (int32_t workers : kWorkers) cpus.push_back(cpu_backend(ActivationDtype::float32, workers, limits(K)));
  uint32_t seed = 40000;
  for (const Field& field : kFields)
    for (ActivationScheme scheme : kSchemes) {
      if (!fits(field, scheme)) continue;
      Random random(++seed);
      QuantLinear w = synthetic(field, N, K, 48, DType::bf16, 1, random);
      w.permutation = shuffled(K, random);
      w.activations = scheme;
      w.activation_scale = 0.02f;
      const std::vector<float> x = random.normals(kRows * K), all = run(*cpus[0], {&w}, x, kRows);
      int64_t wrong = 0;
      size_t i = 0;
      for (int32_t M : {1, 2, 3, 4, 5, 6, 7, 8, 9, 24, 40, 63, 64, 66}) {
        // The last rows, and the first.
        const std::vector<float> last(x.end() - M * K, x.end()), first(x.begin(), x.begin() + M * K);
        const std::vector<float> a = run(*cpus[++i % cpus.size()], {&w}, last, M),
                                 b = run(*cpus[++i % cpus.size()], {&w}, first, M);
        wrong += std::memcmp(a.data(), all.data() + (kRows - M) * N, a.size() * 4) != 0;
        wrong += std::memcmp(b.data(), all.data(), b.size() * 4) != 0;
      }
      CAPTURE(seed, source_name(w), int(scheme));
      CHECK(wrong == 0);
    }
}

TEST_CASE("q, k and v may have formats, permutations and roundings of their own") {
  NANO_EACH_ISA;
  const int64_t K = 96;
  const int32_t M = 70;  // more than one chunk of rows
  Random random(9);
  QuantLinear q = synthetic(kInt4, 20, K, 32, DType::f16, 1, random),
              k = synthetic(kInt8, 16, K, K, DType::f32, 1, random),
              v = synthetic(kE4m3, 17, K, 32, DType::bf16, 17, random);
  q.permutation = shuffled(K, random);
  k.activations = ActivationScheme::int8_per_token;
  v.activations = ActivationScheme::fp8_token;
  const std::vector<float> x = random.normals(M * K);
  for (ActivationDtype flag : {ActivationDtype::float32, ActivationDtype::int8}) {
    auto ref = make_ref_backend(flag), cpu = cpu_backend(flag, 3, limits(K));
    const std::vector<float> together = run(*cpu, {&q, &k, &v}, x, M), oracle = run(*ref, {&q, &k, &v}, x, M);
    double largest = 0, error = 0;
    for (size_t i = 0; i < oracle.size(); ++i) {
      largest = std::max(largest, std::fabs(double(oracle[i])));
      const double e = std::fabs(double(oracle[i]) - double(together[i]));
      if (!(e <= error)) error = e;
    }
    CHECK(error <= 4 * 1.2e-7 * std::sqrt(double(K)) * largest);
    // Each part alone gives the bits of the part among others.
    const std::vector<float> alone = run(*cpu, {&k}, x, M);
    int64_t differing = 0;
    for (int64_t m = 0; m < M; ++m)
      differing += std::memcmp(&alone[size_t(m * 16)], &together[size_t(m * 53 + 20)], 16 * 4) != 0;
    CHECK(differing == 0);
  }
}

TEST_CASE("synthetic weights are packed at their own width") {
  NANO_EACH_ISA;
  Random random(3);
  for (const Field& field : kFields)
    for (int64_t group : {32, 128, 1536}) {
      auto cpu = cpu_backend(ActivationDtype::int8, 1);
      const QuantLinear w = synthetic(field, 64, 1536, group, DType::f16, 1, random);
      const PackedLinear* packed = cpu->pack(std::vector<const QuantLinear*>{&w});
      const double own = 64.0 * (1536.0 * field.bits / 8 +
                                 double(w.num_groups()) * ((field.offset == Offset::minimum ? 4 : 2) +
                                                           (field.zeros ? field.bits / 8.0 : 0)));
      CAPTURE(source_name(w), group, packed->bytes, own);
      CHECK(double(packed->bytes) <= 1.10 * own);
      CHECK(packed->bytes >= int64_t(own * 0.99));
    }
}

TEST_CASE("descriptions that contradict themselves are refused by name") {
  NANO_EACH_ISA;
  Random random(4);
  const QuantLinear good = synthetic(kInt4, 16, 64, 32, DType::f16, 1, random);
  auto message = [&](auto change) -> std::string {
    QuantLinear w = good;
    change(w);
    std::string cpu_says = "packed", ref_says = "packed";
    auto pack = [&](std::unique_ptr<Backend> b, std::string& says) {
      try {
        b->pack(std::vector<const QuantLinear*>{&w});
      } catch (const Error& e) {
        says = e.what();
      }
    };
    pack(cpu_backend(ActivationDtype::int8, 1), cpu_says);
    pack(make_ref_backend(ActivationDtype::int8), ref_says);
    CHECK(cpu_says == ref_says);
    return cpu_says;
  };
  auto refused = [&](const char* part, auto change) {
    const std::string text = message(change);
    CAPTURE(text, part);
    CHECK(text.find(part) != std::string::npos);
    CHECK(text.find("test.weight") != std::string::npos);
  };
  CHECK(message([](QuantLinear&) {}) == "packed");
  refused("7 bits", [](QuantLinear& w) { w.bits = 7; });
  refused("groups of 24", [](QuantLinear& w) { w.group = 24; });
  refused("no scales", [](QuantLinear& w) { w.scales = nullptr; });
  refused("another order", [](QuantLinear& w) { w.rope_interleaved_dim = 8; });
  refused("two-level", [](QuantLinear& w) { w.super_group = 256; });
  refused("offsets", [](QuantLinear& w) { w.offset = Offset::minimum; });
  refused("offsets", [](QuantLinear& w) { w.offset = Offset::none, w.zeros = nullptr, w.zero = 8; });
  refused("offsets", [](QuantLinear& w) {
    w.offset = Offset::minimum, w.minima = w.scales, w.zeros = nullptr, w.zero = 8;
  });
  refused("scales of type int8", [](QuantLinear& w) { w.dtype = DType::i8; });
  refused("another length", [](QuantLinear& w) { w.permutation = {1, 0}; });
  refused("repeats", [](QuantLinear& w) { w.permutation.assign(64, 0); });
  refused("not a positive number", [](QuantLinear& w) { w.activations = ActivationScheme::int8_static; });
  std::vector<uint8_t> codes;
  auto last_code = [&](QuantLinear& w, uint8_t code) {
    codes.assign(size_t(w.N * w.K), 1);
    codes.back() = code;
    w.data = codes.data();
  };
  refused("a code of more than 4 bits", [&](QuantLinear& w) { last_code(w, 16); });
  refused("a weight is NaN", [&](QuantLinear& w) {
    w.code = Code::e4m3, w.bits = 8, w.offset = Offset::none, w.zeros = nullptr;
    last_code(w, 0xff);
  });
  refused("integer codes", [](QuantLinear& w) {
    w.code = Code::e4m3, w.bits = 8, w.offset = Offset::none, w.zeros = nullptr;
    w.activations = ActivationScheme::int8_per_token;
  });
}
