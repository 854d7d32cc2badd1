// The small ops on cpu against ref, and the functions they are made of against double.
#include <algorithm>

#include "base/exp.h"
#include "base/error.h"
#include "catch.h"
#include "ops_fixture.h"

using namespace nano;
using namespace nano_test;

namespace {

constexpr double kEps = 1.2e-7;

struct Both {
  std::unique_ptr<Backend> ref = make_ref_backend(ActivationDtype::float32);
  std::unique_ptr<Backend> cpu = cpu_backend(ActivationDtype::float32, 3);
};

// Largest |a − b| / (|b| + size); NaN if there is one.
double worst(const std::vector<float>& a, const std::vector<float>& b, double size = 1) {
  double most = a.size() == b.size() ? 0 : NAN;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const double error = std::fabs(double(a[i]) - double(b[i])) / (std::fabs(double(b[i])) + size);
    if (!std::isnan(most) && !(error <= most)) most = error;  // NaN stays
  }
  return most;
}

void note(double& most, double error) {  // the larger; NaN stays
  if (!std::isnan(most) && !(error <= most)) most = error;
}

double ulps(float got, double exact) {
  int exponent;
  std::frexp(float(exact), &exponent);
  return std::fabs(double(got) - exact) / std::ldexp(1.0, exponent - 24);
}

}  // namespace

TEST_CASE("exp, silu and gelu against double over the whole range") {
  NANO_EACH_ISA;
  double exp_error = 0, silu_error = 0, gelu_error = 0;
  for (double x = -87; x < 88.7; x += 0.00123) {
    const float f = float(x);
    note(exp_error, ulps(exp_approx(f), std::exp(double(f))));
  }
  for (double x = -60; x < 60; x += 0.00123) {
    const float f = float(x);
    const double d = f, u = std::sqrt(2 / M_PI) * (d + 0.044715 * d * d * d);
    note(silu_error, std::fabs(math::silu_of(f) - d / (1 + std::exp(-d))) / std::max(1e-3, std::fabs(d)));
    note(gelu_error,
         std::fabs(math::gelu_of(f) - 0.5 * d * (1 + std::tanh(u))) / std::max(1e-3, std::fabs(d)));
  }
  CHECK(exp_error <= 1.25);
  CHECK(silu_error <= 1.2 * kEps);
  CHECK(gelu_error <= 1.2 * kEps);
  CHECK(exp_approx(0.0f) == 1.0f);
  CHECK(exp_approx(-INFINITY) == 0.0f);
  CHECK(exp_approx(-200.0f) == 0.0f);
  CHECK(exp_approx(89.5f) == INFINITY);
  CHECK(exp_approx(88.5f) < INFINITY);
  CHECK(std::isnan(exp_approx(NAN)));
}

TEST_CASE("rmsnorm equals ref, with and without adding, at odd sizes") {
  NANO_EACH_ISA;
  Both b;
  for (int32_t C : {1, 15, 33, 576}) {
    for (int32_t M : {1, 3, 8}) {
      Random random{uint32_t(C * 10 + M)};
      const std::vector<float> x = random.normals(M * C), weight = random.normals(C),
                               before = random.normals(M * C);
      for (bool add : {false, true}) {
        CAPTURE(C, M, add);
        std::vector<float> expected = before, got = before, wrong = before;
        b.ref->rmsnorm(act(expected), act(x), weight.data(), 1e-5f, M, C, add);
        b.cpu->rmsnorm(act(got), act(x), weight.data(), 1e-5f, M, C, add);
        CHECK(worst(got, expected, 0.1) <= 8 * kEps * std::sqrt(double(C)));
        std::vector<float> other = x;
        other[size_t(M * C - 1)] += 0.5f;
        b.cpu->rmsnorm(act(wrong), act(other), weight.data(), 1e-5f, M, C, add);
        if (C > 1) CHECK(worst(wrong, expected, 0.1) > 8 * kEps * std::sqrt(double(C)));
      }
    }
  }
}

TEST_CASE("embed decodes rows of every format, scaled") {
  NANO_EACH_ISA;
  Both b;
  for (const FormatCase& f : all_formats()) {
    const int64_t C = f.block == 1 ? 33 : f.block;
    QuantLinear table = random_matrix(f, 10, C, 11);
    CAPTURE(source_name(table));
    const std::vector<int32_t> ids = {9, 0, 3, 3};
    std::vector<float> expected(size_t(4 * C)), got(expected), rows(size_t(10 * C));
    b.ref->embed(act(expected), ids.data(), 4, *b.ref->pack_embedding(table), 1.5f);
    b.cpu->embed(act(got), ids.data(), 4, *b.cpu->pack_embedding(table), 1.5f);
    decode_rows(table, 0, 10, rows.data());
    CHECK(differing(got, expected) == 0);
    CHECK(got[size_t(C)] == rows[0] * 1.5f);
    CHECK(got[0] == rows[size_t(9 * C)] * 1.5f);
  }
}

TEST_CASE("rope_table, rope_kv_write with and without qk-norm, gather_rows") {
  NANO_EACH_ISA;
  Both b;
  for (int32_t D : {8, 64, 80}) {
    for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (bool norm : {false, true}) {
        CAPTURE(D, dtype_name(dtype), norm);
        const int32_t T = 5, H = 4, KVH = 2, slots = 12;
        Random random{uint32_t(D)};
        std::vector<float> inv_freq, x = random.normals(T * (H + 2 * KVH) * D), q_norm = random.normals(D),
                                     k_norm = random.normals(D);
        for (int32_t i = 0; i < D / 2; ++i)
          inv_freq.push_back(std::pow(10000.0f, -2.0f * float(i) / float(D)));
        const std::vector<int64_t> slot_mapping = {3, 4, 11, 0, 7};
        AttentionShape shape{H, KVH, D, 1.0f, 0};
        std::vector<std::vector<float>> results;
        for (int run = 0; run < 3; ++run) {  // ref, cpu, and cpu with one position wrong
          Backend* backend = run == 0 ? b.ref.get() : b.cpu.get();
          const std::vector<int32_t> at = {0, 1, run == 2 ? 3 : 2, 4000, 131071};
          std::vector<float> table(size_t(T * D)), qkv = x, cache(size_t(2 * slots * KVH * D), -7.0f);
          KvLayer kv{cache.data(), cache.data() + slots * KVH * D, dtype, 1, 1, 4};
          backend->rope_table(table.data(), at.data(), inv_freq.data(), T, D);
          backend->rope_kv_write(act(qkv), table.data(), norm ? q_norm.data() : nullptr,
                                 norm ? k_norm.data() : nullptr, 1e-6f, kv, slot_mapping.data(), T, shape);
          std::vector<float> all = table;
          all.insert(all.end(), qkv.begin(), qkv.end());
          if (norm) {  // the norm's sum has an order of its own: compare values, not the cache's bits
            for (int64_t i = 0; i < slots * KVH * D; ++i)
              all.push_back(slot_mapping[2] == i / (KVH * D) ? load_f32(kv.k, dtype, i) : 0.0f);
          } else {
            all.insert(all.end(), cache.begin(), cache.end());
          }
          results.push_back(all);
        }
        const double bound = norm && dtype != DType::f32 ? 1.0 / 128 : 8 * kEps * std::sqrt(double(D));
        if (!norm) CHECK(differing(results[0], results[1]) == 0);
        CHECK(worst(results[1], results[0]) <= bound);
        CHECK(worst(results[2], results[0]) > bound);
      }
    }
  }
  std::vector<float> x = Random(3).normals(12), got(8);
  const std::vector<int32_t> rows = {2, 0};
  b.cpu->gather_rows(act(got), act(x), rows.data(), 2, 4);
  CHECK(std::equal(got.begin(), got.begin() + 4, x.begin() + 8));
  CHECK(std::equal(got.begin() + 4, got.end(), x.begin()));
}

TEST_CASE("padding tokens (slot -1) leave the cache alone") {
  NANO_EACH_ISA;
  Both b;
  std::vector<float> qkv = Random(1).normals(3 * 8), cs(8, 1.0f), cache(16, 5.0f);
  KvLayer kv{cache.data(), cache.data() + 8, DType::f32, 1, 1, 1};
  const int64_t slot = -1;
  b.cpu->rope_kv_write(act(qkv), cs.data(), nullptr, nullptr, 0, kv, &slot, 1, {1, 1, 8, 1.0f, 0});
  CHECK(std::count(cache.begin(), cache.end(), 5.0f) == 16);
}

TEST_CASE("memory: zeroed, aligned, counted exactly; scratch is what was announced") {
  NANO_EACH_ISA;
  auto cpu = cpu_backend(ActivationDtype::int8, 2);
  for (int64_t bytes : {int64_t(1), int64_t(100), int64_t(80) << 20}) {
    const int64_t before = cpu->allocated(Memory::kv_cache);
    auto* p = static_cast<uint8_t*>(cpu->allocate(bytes, Memory::kv_cache));
    CHECK(uintptr_t(p) % 64 == 0);
    CHECK(int(p[0]) + p[bytes - 1] == 0);
    p[0] = p[bytes - 1] = 255;
    CHECK(cpu->allocated(Memory::kv_cache) - before == bytes);
  }
  Limits l;
  l.max_tokens = 32, l.max_model_len = 1000, l.H = 9, l.KVH = 3, l.D = 64, l.max_K = 1536, l.max_N = 3072;
  cpu->reserve(l);
  CHECK(cpu->allocated(Memory::scratch) == cpu->scratch_bytes(l));
  CHECK(cpu->allocated(Memory::weights) == 0);
}

TEST_CASE("describe names threads, instruction set and activations; host work runs once each") {
  NANO_EACH_ISA;
  auto cpu = cpu_backend(ActivationDtype::int8, 1);
  CHECK(cpu->describe().find("cpu: 1 thread, ") == 0);
  CHECK(cpu->describe().find(", int8 activations") != std::string::npos);
  CHECK(std::string(cpu->name()) == "cpu");
  Both b;
  std::vector<int> hits(100, 0);
  b.cpu->step(1, [&] { b.cpu->parallel_for(100, [&](int32_t i) { ++hits[size_t(i)]; }); });
  CHECK(std::count(hits.begin(), hits.end(), 1) == 100);
  auto fail = [](int32_t i) {
    if (i == 99) throw Error("bad row");
  };
  CHECK_THROWS_AS(b.cpu->parallel_for(100, fail), Error);
}
