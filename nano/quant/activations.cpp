#include "quant/activations.h"

#include <algorithm>
#include <cmath>

#include "base/dtype.h"  // f32_to_e4m3, e4m3_to_f32
#include "base/error.h"  // Error

namespace nano {

namespace {

// The largest magnitude; NaN if there is one.
float largest_of(const float* x, int64_t n) {
  float most = 0;
  for (int64_t i = 0; i < n && !std::isnan(most); ++i)
    if (!(std::fabs(x[i]) <= most)) most = std::fabs(x[i]);
  return most;
}

void round_int8(float* x, int64_t n) {
  // Below 1e-30 the inverse would overflow: such inputs count as zero.
  const float most = largest_of(x, n), scale = most / 127.0f, inverse = most > 1e-30f ? 127.0f / most : 0.0f;
  for (int64_t i = 0; i < n; ++i) x[i] = scale * std::nearbyint(x[i] * inverse);
}

void round_fp8(float* x, int64_t n, float scale) {
  for (int64_t i = 0; i < n; ++i)
    x[i] = scale > 0 ? scale * e4m3_to_f32(f32_to_e4m3(x[i] / scale)) : scale * x[i];
}

}  // namespace

void check_scheme(const QuantLinear& w) {
  if (is_int8(w.activations) && (w.source == Source::dense || w.code == Code::e4m3))
    throw Error("int8 activations need weights with integer codes", w.name);
  if (w.activations != ActivationScheme::int8_static && w.activations != ActivationScheme::fp8_static) return;
  if (!(w.activation_scale > 0) || std::isinf(w.activation_scale))
    throw Error("the scale of its static activations is not a positive number", w.name);
  if (w.activation_zero < -128 || w.activation_zero > 127)
    throw Error("the zero point of its static activations is not an int8", w.name);
}

void round_activations(float* row, int64_t K, ActivationScheme scheme, float scale, int32_t zero) {
  switch (scheme) {
    case ActivationScheme::none: break;
    case ActivationScheme::int8_per32:
      for (int64_t k = 0; k < K; k += 32) round_int8(row + k, std::min<int64_t>(32, K - k));
      break;
    case ActivationScheme::int8_per_token: round_int8(row, K); break;
    case ActivationScheme::int8_static:
      for (int64_t k = 0; k < K; ++k) {
        const float q = std::nearbyint(row[k] / scale) + float(zero);
        row[k] = std::isnan(q) ? q : scale * (std::min(std::max(q, -128.0f), 127.0f) - float(zero));
      }
      break;
    case ActivationScheme::fp8_static: round_fp8(row, K, scale); break;
    case ActivationScheme::fp8_token: round_fp8(row, K, largest_of(row, K) / 448.0f); break;
    case ActivationScheme::fp8_group128:
      for (int64_t k = 0; k < K; k += 128) {
        const int64_t n = std::min<int64_t>(128, K - k);
        round_fp8(row + k, n, largest_of(row + k, n) / 448.0f);
      }
      break;
  }
}

}  // namespace nano
