// attention on cpu: against ref, and bit for bit independent of block size, chunks, neighbours, threads and of
// what lies in stale slots.
#include <algorithm>
#include <numeric>

#include "catch.h"
#include "ops_fixture.h"

using namespace nano;
using namespace nano_test;

namespace {

struct Case {
  int32_t H = 4, KVH = 2, D = 32, window = 0;
  DType dtype = DType::f32;
  int32_t B = 16;
  uint32_t seed = 1;
};

// Sequences with their whole K and V; the cache is filled through a shuffled block table.
struct Problem {
  Case c;
  std::vector<int32_t> lengths;             // positions per sequence
  std::vector<std::vector<float>> q, k, v;  // per sequence [length, heads · D]
  std::vector<uint8_t> cache;
  std::vector<int32_t> table;
  KvLayer kv;
  int32_t max_blocks = 0;

  // Sequence i is the same whatever else is in the problem, if ids[i] is.
  Problem(Case c, std::vector<int32_t> lengths, std::vector<uint32_t> ids, bool stale_nan = true)
      : c(c), lengths(lengths) {
    for (size_t s = 0; s < lengths.size(); ++s) {
      Random random(c.seed * 1000 + ids[s]);
      q.push_back(random.normals(int64_t(lengths[s]) * c.H * c.D));
      k.push_back(random.normals(int64_t(lengths[s]) * c.KVH * c.D));
      v.push_back(random.normals(int64_t(lengths[s]) * c.KVH * c.D));
      max_blocks = std::max(max_blocks, (lengths[s] + c.B - 1) / c.B);
    }
    const int32_t S = int32_t(lengths.size()), blocks = S * max_blocks + 1;
    const int64_t row = int64_t(c.KVH) * c.D, elements = blocks * int64_t(c.B) * row;
    cache.resize(size_t(2 * elements * dtype_bytes(c.dtype)));
    kv = {cache.data(), cache.data() + elements * dtype_bytes(c.dtype), c.dtype, 1, 1, c.B};
    for (int64_t i = 0; stale_nan && i < 2 * elements; ++i) store_f32(cache.data(), c.dtype, i, NAN);
    table.resize(size_t(S * max_blocks));
    std::iota(table.begin(), table.end(), 1);
    std::shuffle(table.begin(), table.end(), std::mt19937(c.seed));
    for (size_t s = 0; s < lengths.size(); ++s)
      for (int64_t t = 0; t < lengths[s]; ++t)
        for (int64_t i = 0; i < row; ++i) {
          const int64_t slot = int64_t(table[s * size_t(max_blocks) + size_t(t / c.B)]) * c.B + t % c.B;
          store_f32(kv.k, c.dtype, slot * row + i, k[s][size_t(t * row + i)]);
          store_f32(kv.v, c.dtype, slot * row + i, v[s][size_t(t * row + i)]);
        }
  }

  Limits limits() const {
    Limits l;
    l.max_tokens = 2048, l.max_model_len = max_blocks * c.B;
    l.H = c.H, l.KVH = c.KVH, l.D = c.D, l.max_K = 64;
    return l;
  }

  // The last `rows[s]` of the first `upto[s]` positions of each sequence as queries; rows of all, one after another.
  std::vector<float> run(Backend& b, std::vector<int32_t> rows, std::vector<int32_t> upto = {}) {
    if (upto.empty()) upto = lengths;
    std::vector<int32_t> start = {0};
    for (int32_t r : rows) start.push_back(start.back() + r);
    const int64_t width = int64_t(c.H + 2 * c.KVH) * c.D, out_width = int64_t(c.H) * c.D;
    std::vector<float> qkv(size_t(start.back() * width), 0.0f), out(size_t(start.back() * out_width), -1.0f);
    for (size_t s = 0; s < rows.size(); ++s)
      for (int32_t r = 0; r < rows[s]; ++r)
        std::copy_n(&q[s][size_t((upto[s] - rows[s] + r) * out_width)], out_width,
                    &qkv[size_t((start[s] + r) * width)]);
    Batch batch;
    batch.T = start.back(), batch.S = int32_t(rows.size());
    batch.query_start = start.data(), batch.seq_len = upto.data();
    batch.block_table = table.data(), batch.max_blocks = max_blocks;
    AttentionShape shape{c.H, c.KVH, c.D, 1.0f / std::sqrt(float(c.D)), c.window};
    b.step(1, [&] { b.attention(act(out), act(qkv), kv, batch, shape); });
    return out;
  }
};

std::unique_ptr<Backend> cpu_for(const Problem& p, int32_t workers) {
  return cpu_backend(ActivationDtype::float32, workers, p.limits());
}

// Values are averages of N(0,1) numbers: errors are eps times the sums behind them, √D for the dot and √t for the rest.
double worst(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double error = std::fabs(double(a[i]) - double(b[i]));
    if (!std::isnan(most) && !(error <= most)) most = error;
  }
  return most;
}
constexpr double kBound = 4 * 1.2e-7 * 32;  // 4 · eps · √1024

}  // namespace

TEST_CASE("attention equals ref: heads, head sizes, windows, cache types, prefill and decode together") {
  NANO_EACH_ISA;
  const std::vector<Case> cases = {
      {4, 2, 32, 0, DType::f32, 16, 1},    {9, 3, 64, 0, DType::f16, 16, 2},
      {4, 4, 8, 0, DType::f32, 4, 3},      {6, 1, 80, 100, DType::bf16, 8, 4},
      {2, 1, 128, 300, DType::f16, 64, 5}, {3, 3, 17, 1, DType::f32, 1, 6},
      {40, 1, 16, 0, DType::f16, 16, 7},
  };
  for (const Case& c : cases) {
    Problem p(c, {300, 1, 520, 257}, {0, 1, 2, 3});
    auto ref = make_ref_backend(ActivationDtype::float32), cpu = cpu_for(p, 3);
    const std::vector<int32_t> rows = {1, 1, 9, 33};
    CAPTURE(c.H, c.KVH, c.D, c.window, dtype_name(c.dtype), c.B);
    const std::vector<float> expected = p.run(*ref, rows), got = p.run(*cpu, rows);
    CHECK(worst(got, expected) <= kBound);
    // One V that the last query sees, changed a little, is noticed.
    const int64_t slot = int64_t(p.table[size_t(3 * p.max_blocks + 256 / c.B)]) * c.B + 256 % c.B;
    store_f32(p.kv.v, c.dtype, slot * c.KVH * c.D, 4.0f + load_f32(p.kv.v, c.dtype, slot * c.KVH * c.D));
    CHECK(worst(p.run(*ref, rows), got) > kBound);
  }
}

TEST_CASE("attention has the same bits for every block size and one contiguous block") {
  NANO_EACH_ISA;
  for (int32_t window : {0, 70}) {
    std::vector<float> first;
    for (int32_t B : {1, 4, 16, 64, 600}) {
      Case c;
      c.B = B, c.window = window, c.dtype = DType::f16;
      Problem p(c, {600, 77}, {0, 1});
      CAPTURE(B, window);
      const std::vector<float> got = p.run(*cpu_for(p, 1), {40, 77});
      if (first.empty()) first = got;
      CHECK(differing(got, first) == 0);
    }
  }
}

TEST_CASE("attention has the same bits alone and among neighbours, whatever the number of workers") {
  NANO_EACH_ISA;
  Case c;
  c.dtype = DType::f16;
  Problem alone(c, {900}, {7}), crowd(c, {3, 900, 260, 515}, {1, 7, 2, 3});
  const std::vector<float> expected = alone.run(*cpu_for(alone, 1), {1});
  for (std::vector<int32_t> rows : {std::vector<int32_t>{1, 1, 1, 1}, {3, 1, 100, 7}, {1, 1, 200, 300}}) {
    const std::vector<float> all = crowd.run(*cpu_for(crowd, 1), rows);
    for (int32_t workers : kWorkers) {
      CAPTURE(workers, rows[0], rows[2], rows[3]);
      CHECK(differing(alone.run(*cpu_for(alone, workers), {1}), expected) == 0);
      const std::vector<float> got = crowd.run(*cpu_for(crowd, workers), rows);
      CHECK(differing(got, all) == 0);
      const auto mine = got.begin() + rows[0] * c.H * c.D;
      CHECK(differing({mine, mine + c.H * c.D}, expected) == 0);
    }
  }
}

TEST_CASE("attention has the same bits in chunks and whole") {
  NANO_EACH_ISA;
  Case c;
  for (int32_t window : {0, 200}) {
    c.window = window;
    Problem p(c, {700}, {5});
    auto one = cpu_for(p, 1), three = cpu_for(p, 3);
    const std::vector<float> whole = p.run(*three, {700});
    for (int32_t chunk : {1, 7, 64, 256, 300}) {
      std::vector<float> joined;
      for (int32_t done = 0; done < 700; done += chunk) {
        const int32_t rows = std::min(chunk, 700 - done);
        const std::vector<float> part = p.run(chunk % 2 ? *one : *three, {rows}, {done + rows});
        joined.insert(joined.end(), part.begin(), part.end());
      }
      CAPTURE(chunk, window);
      CHECK(differing(joined, whole) == 0);
    }
  }
}

TEST_CASE("stale slots may hold anything: NaN or zero give the same bits") {
  NANO_EACH_ISA;
  Case c;
  Problem nan(c, {300, 10}, {0, 1}, true), zero(c, {300, 10}, {0, 1}, false);
  const std::vector<float> a = nan.run(*cpu_for(nan, 3), {20, 10}), b = zero.run(*cpu_for(zero, 3), {20, 10});
  CHECK(differing(a, b) == 0);
  CHECK(std::none_of(a.begin(), a.end(), [](float x) { return std::isnan(x); }));
}

TEST_CASE("many workers share long sequences without changing a bit") {
  NANO_EACH_ISA;
  struct Shared {
    int32_t H, KVH, window;
    std::vector<int32_t> lengths, rows;
  };
  // Units are spans of 256 positions, an item is the spans of one kv head and tile of rows. Three workers that share
  // one item of 8 have units 0-1, 2-4 and 5-7: the middle one begins and ends inside the item.
  const std::vector<Shared> cases = {
      {2, 1, 0, {2048}, {1}},    // one item of 8 units
      {2, 1, 900, {2048}, {1}},  // of 4, from the fifth span on: the first of 5 workers has none
      {6, 3, 0, {2048, 1, 700, 1300}, {1, 1, 1, 1}},  // 12 items of 8, 1, 3 and 6
      {4, 2, 0, {2000}, {40}},                        // three tiles of rows
      {2, 1, 0, {100}, {1}},                          // one unit
  };
  for (const Shared& shared : cases) {
    Case c;
    c.H = shared.H, c.KVH = shared.KVH, c.window = shared.window;
    Problem p(c, shared.lengths, {3, 4, 5, 6});
    const std::vector<float> one = p.run(*cpu_for(p, 1), shared.rows);
    CAPTURE(c.H, c.window, shared.lengths[0], shared.rows[0]);
    CHECK(worst(one, p.run(*make_ref_backend(ActivationDtype::float32), shared.rows)) <= kBound);
    for (int32_t workers : kWorkers) {
      CAPTURE(workers);
      CHECK(differing(p.run(*cpu_for(p, workers), shared.rows), one) == 0);
    }
  }
}

TEST_CASE("scores of hundreds do not overflow, whichever span has the largest") {
  NANO_EACH_ISA;
  Case c;
  for (int32_t big : {5, 300}) {  // in the first span, in the second
    Problem p(c, {700}, {4});
    const int64_t width = int64_t(c.KVH) * c.D, slot = int64_t(p.table[size_t(big / c.B)]) * c.B + big % c.B;
    for (int64_t i = 0; i < width; ++i)
      store_f32(p.kv.k, c.dtype, slot * width + i, 300 * load_f32(p.kv.k, c.dtype, slot * width + i));
    auto ref = make_ref_backend(ActivationDtype::float32), cpu = cpu_for(p, 3);
    const std::vector<float> got = p.run(*cpu, {200});
    CAPTURE(big);
    // A score s is known to about eps · |s|, and so is the weight e^s relative to 1.
    CHECK(worst(got, p.run(*ref, {200})) <= 1000 * kBound);
  }
}
