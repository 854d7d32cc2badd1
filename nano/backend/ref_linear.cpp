#include "backend/ref_linear.h"

#include <vector>

#include "quant/activations.h"  // scheme_of, round_activations

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

// The rows as the matrix takes them: inputs in its order, rounded as its scheme says.
std::vector<float> prepared(const float* x, int32_t M, const QuantLinear& w, ActivationScheme scheme) {
  std::vector<float> out(x, x + int64_t(M) * w.K);
  for (int64_t m = 0; m < M; ++m) {
    float* row = out.data() + m * w.K;
    for (size_t k = 0; k < w.permutation.size(); ++k) row[k] = x[m * w.K + w.permutation[k]];
    round_activations(row, w.K, scheme, w.activation_scale, w.activation_zero);
  }
  return out;
}

}  // namespace

void ref_matmul(float* y, int64_t stride, const float* x, int32_t M, const QuantLinear& w,
                ActivationDtype activations) {
  std::vector<float> rows, row(size_t(w.K));
  const ActivationScheme scheme = scheme_of(w, activations == ActivationDtype::int8);
  if (scheme != ActivationScheme::none || !w.permutation.empty()) {
    rows = prepared(x, M, w, scheme);
    x = rows.data();
  }
  for (int64_t n = 0; n < w.N; ++n) {
    decode_rows(w, n, 1, row.data());
    const float bias = w.bias.empty() ? 0.0f : w.bias[size_t(n)];
    for (int64_t m = 0; m < M; ++m) y[m * stride + n] = ref_dot(x + m * w.K, row.data(), w.K) + bias;
  }
}

}  // namespace nano
