// ref's matrices: nothing is repacked. A row is decoded from the file's bytes when it is needed.
#pragma once

#include <vector>

#include "backend/backend.h"  // PackedLinear, Epilogue, ActivationDtype

namespace nano {

struct RefLinear : PackedLinear {
  std::vector<QuantLinear> parts;
};

// A dot product in 16 explicit lanes and a fixed tree, so that its rounding never depends on the compiler.
float ref_dot(const float* a, const float* b, int64_t n);

// y [M, N] = x [M, K] · Wᵀ + bias for one matrix; row r of y starts at y + r·stride.
void ref_matmul(float* y, int64_t stride, const float* x, int32_t M, const QuantLinear& w,
                ActivationDtype activations);

}  // namespace nano
