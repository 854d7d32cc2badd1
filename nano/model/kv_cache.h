// The KV cache's memory: one allocation, [L][K|V][block][B][KVH][D]. Who owns which block is the block manager's
// business (core/block_manager.h); here are only bytes. Debugger printers and KV handover rely on this layout.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"     // Backend, KvLayer
#include "model/model_config.h"  // ModelConfig

namespace nano {

struct KvCache {
  std::vector<KvLayer> layers;  // [L]
  int32_t num_blocks = 0, B = 0;
  int64_t bytes = 0;
};

// Bytes of K and V of one token over all layers: 2 · L · KVH · D · sizeof(dtype).
int64_t kv_bytes_per_token(const ModelConfig& config, DType dtype);
KvCache allocate_kv_cache(Backend& backend, const ModelConfig& config, DType dtype, int32_t num_blocks,
                          int32_t block_size);

}  // namespace nano
