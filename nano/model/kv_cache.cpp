#include "model/kv_cache.h"

namespace nano {

int64_t kv_bytes_per_token(const ModelConfig& config, DType dtype) {
  return int64_t(2) * config.L * config.KVH * config.D * dtype_bytes(dtype);
}

KvCache allocate_kv_cache(Backend& backend, const ModelConfig& config, DType dtype, int32_t num_blocks,
                          int32_t block_size) {
  KvCache kv;
  kv.num_blocks = num_blocks;
  kv.B = block_size;
  kv.bytes = kv_bytes_per_token(config, dtype) * num_blocks * block_size;
  auto* base = static_cast<char*>(backend.allocate(kv.bytes, Memory::kv_cache));
  const int64_t half = kv.bytes / (2 * config.L);  // K or V of one layer
  for (int32_t i = 0; i < config.L; ++i) {
    KvLayer layer;
    layer.k = base + (2 * i) * half;
    layer.v = base + (2 * i + 1) * half;
    layer.dtype = dtype;
    layer.B = block_size;
    kv.layers.push_back(layer);
  }
  return kv;
}

}  // namespace nano
