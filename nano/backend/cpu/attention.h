// Paged attention on the cpu: one op for prefill, decode and verification.
//
// The context is cut into spans of 256 positions (contract (b) of backend.h). A unit of work is one span for one
// kv head and a tile of query rows with all query heads that share it, so K and V are read once for the tile. The
// team takes contiguous ranges of units. An item (tile, kv head) that one worker has alone is merged on the spot;
// one that is cut leaves its spans as partial results, merged in order afterwards. The arithmetic of a row is the
// same either way: only rows, spans and positions decide it.
#pragma once

#include <cstdint>

#include "backend/backend.h"     // KvLayer, Batch, AttentionShape, Limits
#include "backend/cpu/memory.h"  // Arena
#include "base/team.h"           // Team

namespace nano::NANO_ISA {

struct AttentionTile {  // rows row0 … row0+rows−1 of x, all of one sequence
  int32_t sequence = 0, row0 = 0, rows = 0;
  int32_t position0 = 0;  // of row0 in its sequence
  int32_t first_span = 0, spans = 0;
  int64_t first_unit = 0;  // units: kv heads · spans
};

struct AttentionScratch {
  AttentionTile* tiles = nullptr;  // [max_tokens]
  uint8_t* worker = nullptr;
  int64_t worker_bytes = 0, max_tokens = 0, max_spans = 0, queries = 0, padded_D = 0;
};
int64_t attention_scratch_bytes(const Limits& limits, int32_t workers);
AttentionScratch attention_scratch(const Limits& limits, uint8_t* memory);

// Backend::attention: out [T, H·D] from the queries of qkv [T, (H + 2·KVH)·D]. REQUIRES: sizes within the scratch's
// limits, D equal to theirs (the padding behind a row is zero because nobody writes it).
void attention_cpu(float* out, const float* qkv, const KvLayer& kv, const Batch& batch,
                   const AttentionShape& shape, const AttentionScratch& scratch, Team& team);

}  // namespace nano::NANO_ISA
