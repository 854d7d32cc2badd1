#include "backend/ref_linear.h"

#include <algorithm>
#include <cmath>

namespace nano {

float ref_dot(const float* a, const float* b, int64_t n) {
  float lane[16] = {};
  int64_t k = 0;
  for (; k + 16 <= n; k += 16)
    for (int l = 0; l < 16; ++l) lane[l] += a[k + l] * b[k + l];
  for (int l = 0; k < n; ++k, ++l) lane[l] += a[k] * b[k];
  for (int width = 8; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
  return lane[0];
}

namespace {

// What int8 activations do to x: per row and 32 inputs, q = round(x / d) with d = max|x| / 127, back to d·q.
std::vector<float> rounded_to_int8(const float* x, int32_t M, int64_t K) {
  std::vector<float> out(size_t(M * K));
  for (int64_t row = 0; row < M; ++row) {
    for (int64_t begin = 0; begin < K; begin += 32) {
      const int64_t end = std::min(begin + 32, K);
      float largest = 0;
      for (int64_t k = begin; k < end; ++k) largest = std::max(largest, std::fabs(x[row * K + k]));
      const float d = largest / 127.0f, inverse = largest > 0 ? 127.0f / largest : 0.0f;
      for (int64_t k = begin; k < end; ++k)
        out[size_t(row * K + k)] = d * std::nearbyint(x[row * K + k] * inverse);
    }
  }
  return out;
}

}  // namespace

void ref_matmul(float* y, int64_t stride, const float* x, int32_t M, const QuantLinear& w,
                ActivationDtype activations) {
  std::vector<float> rounded, row(size_t(w.K));
  if (activations == ActivationDtype::int8 && w.source != Source::dense) {
    rounded = rounded_to_int8(x, M, w.K);
    x = rounded.data();
  }
  for (int64_t n = 0; n < w.N; ++n) {
    decode_rows(w, n, 1, row.data());
    const float bias = w.bias.empty() ? 0.0f : w.bias[size_t(n)];
    for (int64_t m = 0; m < M; ++m) y[m * stride + n] = ref_dot(x + m * w.K, row.data(), w.K) + bias;
  }
}

}  // namespace nano
