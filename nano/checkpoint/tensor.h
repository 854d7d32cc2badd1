// A view of somebody else's bytes: pointer, element type, shape, name. Owns nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"  // DType, dtype_bytes

namespace nano {

struct Tensor {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;  // row-major, the last dimension is contiguous
  std::string name;            // as the file calls it

  int64_t numel() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
  int64_t bytes() const { return numel() * dtype_bytes(dtype); }
};

}  // namespace nano
