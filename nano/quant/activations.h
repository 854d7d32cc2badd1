// Rounding of a linear's inputs: what a quantised matrix is multiplied with.
//
//   int8_per32      per row and 32 inputs   s = max|x| / 127,  q = round(x / s)            (what llama.cpp does)
//   int8_per_token  per row                 the same with one s                            (W8A8, vLLM)
//   int8_static     s and zero point z given by the checkpoint: q = clamp(round(x / s) + z, −128, 127), x ≈ s·(q − z)
//   fp8_static      s given: q = e4m3(x / s), saturating at ±448
//   fp8_token       s = max|x| / 448 per row;  fp8_group128: per row and 128 inputs
//
// Each is per row or static: a row's numbers never depend on the batch. Rounding is to nearest, ties to even.
// These are the plain loops, which ref runs and tests compare with; cpu has its own for int8 (backend/cpu/dot.cpp).
// Sources: SmoothQuant arXiv 2211.10438 (W8A8); FP8 arXiv 2209.05433.
#pragma once

#include <cstdint>

#include "quant/linear.h"  // QuantLinear, ActivationScheme

namespace nano {

// A checkpoint's own scheme wins; int8 is --activation-dtype int8, for matrices with integer codes.
inline ActivationScheme scheme_of(const QuantLinear& w, bool int8) {
  if (w.activations != ActivationScheme::none || !int8) return w.activations;
  return w.source == Source::dense || w.code == Code::e4m3 ? ActivationScheme::none
                                                           : ActivationScheme::int8_per32;
}
inline bool is_int8(ActivationScheme s) {
  return s == ActivationScheme::int8_per32 || s == ActivationScheme::int8_per_token ||
         s == ActivationScheme::int8_static;
}

// Error naming the matrix when its scheme does not fit its codes, or a static scale is not a positive number.
void check_scheme(const QuantLinear& w);

// row [K] rounded in place, back as float32: s·q or s·(q − z). scale and zero are for the static schemes.
void round_activations(float* row, int64_t K, ActivationScheme scheme, float scale, int32_t zero);

}  // namespace nano
