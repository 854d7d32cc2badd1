// `bench gemm`: the linear alone. One matrix in five formats and 1 … 512 rows: with one row the time is that of
// reading the weights, so GB/s stays and fewer bits are faster (storage); with many rows it is that of multiplying,
// so GMAC/s stays and only int8 activations are faster (arithmetic).
#pragma once

#include "bench/measure.h"  // Watch

namespace nano {

struct GemmOptions {
  EngineOptions engine;  // --threads; activation_dtype float32: each format says its own
  int64_t k = 4096, n = 4096;
  std::vector<int32_t> m = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};

  int32_t most_rows() const;
};

// Error: it does not fit half of the memory.
nlohmann::ordered_json measure_gemm(const GemmOptions& options, const Watch& watch);
std::string gemm_text(const GemmOptions& options, const nlohmann::ordered_json& result);

}  // namespace nano
