// The block manager: which block of the KV cache belongs to whom. Pure bookkeeping on ints.
// Flag: --[no-]paged-kv. Off = the same code with one block of max-model-len a sequence.
// Source: Kwon et al. 2023, "Efficient memory management for large language model serving with PagedAttention",
// §4; reuse of freed blocks as in vLLM V1 (least recently freed first, a sequence's tail before its head).
//
// Invariants (check_integrity):
//  1. free + used = num_blocks; every block is in exactly one of them; a free block has reference count 0.
//  2. The reference count of a block is the number of live tables that hold it.
//  3. A block with two owners is full and is never written: only full blocks are shared.
//  4. A free block may still be known to the prefix cache: its content lives until the block is taken again.
// It touches no K or V (model/kv_cache.h has the bytes) and never chooses whom to preempt (the scheduler does).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/prefix_cache.h"  // PrefixCache, HashFunction
#include "core/sequence.h"      // Sequence, BlockId

namespace nano {

struct BlockEvent {  // for the trace: enough to animate the table
  enum class Kind : uint8_t { allocated, hit, shared, cached, freed, evicted } kind;
  SeqId seq;  // -1 where no sequence is meant (evicted)
  BlockId block;
};

class BlockManager {
 public:
  BlockManager(int32_t num_blocks, int32_t block_size, bool enable_prefix_caching,
               HashFunction hash = hash_block, BlockHash cache_salt = 0);

  int32_t num_blocks() const;
  int32_t block_size() const;
  int32_t num_free() const;                      // cached-but-unreferenced blocks count as free
  int32_t blocks_for(int32_t num_tokens) const;  // ceil(num_tokens / block_size)

  // Cached blocks for a prefix of the sequence's tokens (never its last token); empty when caching is off.
  std::vector<BlockId> match_prefix(const Sequence& seq) const;
  // Puts `blocks` (from match_prefix, in this step) into the empty table of seq. num_computed_tokens becomes
  // blocks.size() * block_size. Call it for an empty match too: it counts the hit rate.
  void take_cached(Sequence& seq, std::span<const BlockId> blocks);
  // Can seq's table be made to cover num_tokens, given that `cached` will be taken from the free ones first?
  bool can_grow(const Sequence& seq, int32_t num_tokens, std::span<const BlockId> cached = {}) const;
  // Allocates until the table covers num_tokens. False: not enough free blocks, and nothing has changed.
  bool grow(Sequence& seq, int32_t num_tokens);
  // The full blocks of the parent's computed prefix that child can share: same tokens there, and never the
  // child's last token. Changes nothing; can_grow takes them as `cached`.
  std::vector<BlockId> match_fork(const Sequence& parent, const Sequence& child) const;
  // Puts them into the empty table of child; num_computed_tokens becomes what they hold. The partial tail is not
  // shared: the child computes it again into a block of its own.
  void fork(const Sequence& parent, Sequence& child);
  // Full, computed blocks become findable (no-op when caching is off). REQUIRES: called after each step in which
  // num_computed_tokens grew, before release, so that what is shared and what is findable stay the same thing.
  void cache_computed(const Sequence& seq);
  // Gives back every block of the table, tail first, and empties it (num_computed_tokens is the caller's).
  // Content stays findable until reused; blocks without findable content are reused first.
  void release(Sequence& seq);

  // Aborts with a message when an invariant is broken. `live` = every sequence with a non-empty table.
  void check_integrity(std::span<const Sequence* const> live) const;

  int64_t num_evictions() const;
  int64_t queried_tokens() const, hit_tokens() const;  // prefix-cache hit rate, in tokens (by take_cached)
  void record_events(std::vector<BlockEvent>* sink);   // nullptr = off

 private:
  // The free blocks are a doubly linked list in order of reuse, threaded through the blocks themselves, so that a
  // hit takes a block out of its middle in O(1). Entry num_blocks is the list's head and tail.
  struct Block {
    int32_t ref_count = 0;
    BlockId prev = -1, next = -1;  // while free
  };

  void link_before(BlockId next, BlockId block);
  void unlink(BlockId block);
  void hold(Sequence& seq, BlockId block, BlockEvent::Kind kind);  // one more owner, at the end of the table
  void record(BlockEvent::Kind kind, SeqId seq, BlockId block);

  int32_t num_blocks_, block_size_;
  bool enable_prefix_caching_;
  PrefixCache cache_;
  std::vector<Block> blocks_;
  int32_t num_free_;
  int64_t num_evictions_ = 0, queried_tokens_ = 0, hit_tokens_ = 0;
  std::vector<BlockEvent>* events_ = nullptr;
};

}  // namespace nano
