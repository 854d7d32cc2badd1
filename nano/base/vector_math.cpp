#include "base/vector_math.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "base/exp.h"  // exp_approx

// The compiler makes a function for each of these, and the loader takes the best that the machine has. All do the same
// operations in the same order (exp without fma), so all give the same bits.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define NANO_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define NANO_CLONES
#endif
// What they call becomes a part of them.
#define NANO_INLINE __attribute__((always_inline)) inline

namespace nano {

namespace {

// Element i goes to lane i mod kLanes, so a result does not depend on how many of them one instruction takes. A
// compiler unrolls a short inner loop before it looks for vectors in it; one of 256 turns it leaves whole.
constexpr size_t kLanes = 256;

template <class Use>  // use(lane, element)
NANO_INLINE void for_lanes(std::span<const float> x, Use use) {
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) use(lane, x[i + lane]);
  for (; i < x.size(); ++i) use(i % kLanes, x[i]);
}

// The start of the first stretch of kLanes elements at or after `i` in which `test` holds for some element, or where
// whole stretches end. Testing all of a stretch without a branch is several times faster than stopping early.
template <class Test>
NANO_INLINE size_t skip_stretches(std::span<const float> x, size_t i, Test test) {
  for (; i + kLanes <= x.size(); i += kLanes) {
    uint32_t any = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) any |= uint32_t(test(x[i + lane]));
    if (any) break;
  }
  return i;
}

}  // namespace

NANO_CLONES float max_of(std::span<const float> x) {
  float largest[kLanes];
  uint32_t nan[kLanes] = {};
  std::fill_n(largest, kLanes, -std::numeric_limits<float>::infinity());
  for_lanes(x, [&](size_t lane, float v) {
    largest[lane] = v > largest[lane] ? v : largest[lane];
    nan[lane] |= uint32_t(v != v);
  });
  if (std::count(nan, nan + kLanes, 0u) < int64_t(kLanes)) return std::numeric_limits<float>::quiet_NaN();
  return *std::max_element(largest, largest + kLanes);
}

NANO_CLONES size_t index_of(std::span<const float> x, float value) {
  const size_t near = skip_stretches(x, 0, [&](float v) { return v == value; });
  return size_t(std::find(x.begin() + int64_t(near), x.end(), value) - x.begin());
}

NANO_CLONES double sum_of(std::span<const float> x) {
  double sum[kLanes] = {};
  for_lanes(x, [&](size_t lane, float v) { sum[lane] += v; });
  return std::accumulate(sum, sum + kLanes, 0.0);
}

// A heap of the k largest so far, the least of them on top. For a small k hardly an element gets in after the first
// thousands, so most stretches are only looked at.
NANO_CLONES float kth_largest(std::span<const float> x, size_t k) {
  const std::greater<float> least_on_top;
  std::vector<float> heap(x.begin(), x.begin() + int64_t(k));
  std::make_heap(heap.begin(), heap.end(), least_on_top);
  for (size_t i = k; i < x.size();) {
    i = skip_stretches(x, i, [least = heap.front()](float v) { return v > least; });
    for (const size_t end = std::min(i + kLanes, x.size()); i < end; ++i) {
      if (!(x[i] > heap.front())) continue;
      std::pop_heap(heap.begin(), heap.end(), least_on_top);
      heap.back() = x[i];
      std::push_heap(heap.begin(), heap.end(), least_on_top);
    }
  }
  return heap.front();
}

NANO_CLONES void exp_relative(std::span<float> x, float to, float scale) {
  for (float& v : x) v = exp_approx((v - to) * scale);
}

size_t index_at_share(std::span<const float> x, double share) {
  constexpr size_t kPiece = 4096;  // is added up first, and walked through only if the end is in it
  auto piece = [&](size_t at) { return x.subspan(at, std::min(kPiece, x.size() - at)); };
  double sum = 0;
  for (size_t at = 0; at < x.size(); at += kPiece) sum += sum_of(piece(at));

  double left = share * sum;
  for (size_t at = 0; at < x.size(); at += kPiece) {
    if (const double weight = sum_of(piece(at)); weight <= left) {
      left -= weight;
      continue;
    }
    for (size_t i = at; i < at + piece(at).size(); ++i) {
      if (x[i] > left) return i;
      left -= x[i];
    }
  }
  return x.size();
}

}  // namespace nano
