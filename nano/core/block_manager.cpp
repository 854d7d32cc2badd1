// Example: blocks of 4, a pool of 8, prefix caching on. A prompt of 10 tokens takes blocks 0, 1 and 2; after its
// step 0 and 1 are full and findable, 2 holds two tokens. A second prompt with the same first 9 tokens finds 0 and 1
// (both now have two owners) and takes 3 for the rest. When the first ends, its table is given back from the tail:
// 2, which nobody can find, becomes the next block to be reused; 1 and 0 only lose an owner. When the second ends, 3
// goes to the front of the free list too, 1 and then 0 to its end, where a third prompt may still find them.
// vLLM's counterpart: vllm/v1/core/block_pool.py (BlockPool, FreeKVCacheBlockQueue) and kv_cache_manager.py.
#include "core/block_manager.h"

#include <algorithm>
#include <string>

#include "base/error.h"  // NANO_CHECK

namespace nano {

BlockManager::BlockManager(int32_t num_blocks, int32_t block_size, bool enable_prefix_caching,
                           HashFunction hash, BlockHash cache_salt)
    : num_blocks_(num_blocks),
      block_size_(block_size),
      enable_prefix_caching_(enable_prefix_caching),
      cache_(block_size, hash, cache_salt),
      blocks_(size_t(num_blocks) + 1),
      num_free_(num_blocks) {
  NANO_CHECK(num_blocks > 0, "an empty pool");
  blocks_[size_t(num_blocks)] = Block{0, num_blocks, num_blocks};
  for (BlockId block = 0; block < num_blocks; ++block) link_before(num_blocks, block);
}

int32_t BlockManager::num_blocks() const { return num_blocks_; }
int32_t BlockManager::block_size() const { return block_size_; }
int32_t BlockManager::num_free() const { return num_free_; }
int64_t BlockManager::num_evictions() const { return num_evictions_; }
int64_t BlockManager::queried_tokens() const { return queried_tokens_; }
int64_t BlockManager::hit_tokens() const { return hit_tokens_; }
void BlockManager::record_events(std::vector<BlockEvent>* sink) { events_ = sink; }

int32_t BlockManager::blocks_for(int32_t num_tokens) const {
  return num_tokens / block_size_ + (num_tokens % block_size_ != 0);
}

std::vector<BlockId> BlockManager::match_prefix(const Sequence& seq) const {
  if (!enable_prefix_caching_) return {};
  return cache_.match_prefix(seq.tokens);
}

void BlockManager::take_cached(Sequence& seq, std::span<const BlockId> blocks) {
  NANO_CHECK(seq.block_table.empty(), "take_cached needs an empty table");
  for (BlockId block : blocks) {
    NANO_CHECK(cache_.contains(block), "the block was reused since match_prefix");
    hold(seq, block, BlockEvent::Kind::hit);
  }
  seq.num_computed_tokens = int32_t(blocks.size()) * block_size_;
  if (!enable_prefix_caching_) return;
  queried_tokens_ += seq.num_tokens();
  hit_tokens_ += seq.num_computed_tokens;
}

// Cached blocks that nobody owns are in the free list as well: taking them leaves fewer for growing.
bool BlockManager::can_grow(const Sequence& seq, int32_t num_tokens, std::span<const BlockId> cached) const {
  int64_t missing =
      int64_t(blocks_for(num_tokens)) - int64_t(seq.block_table.size()) - int64_t(cached.size());
  auto cached_and_free = std::count_if(cached.begin(), cached.end(),
                                       [&](BlockId block) { return blocks_[size_t(block)].ref_count == 0; });
  return missing <= num_free_ - cached_and_free;
}

bool BlockManager::grow(Sequence& seq, int32_t num_tokens) {
  if (!can_grow(seq, num_tokens)) return false;
  const size_t wanted = size_t(blocks_for(num_tokens));
  while (seq.block_table.size() < wanted) {
    BlockId block = blocks_[size_t(num_blocks_)].next;  // the least recently freed
    if (cache_.contains(block)) {
      cache_.erase(block);
      ++num_evictions_;
      record(BlockEvent::Kind::evicted, -1, block);
    }
    hold(seq, block, BlockEvent::Kind::allocated);
  }
  return true;
}

// A sibling's tokens part from ours where the answers begin, so what can be shared ends at the last block before
// that; and our last token has to be computed here, for its logits.
std::vector<BlockId> BlockManager::match_fork(const Sequence& parent, const Sequence& child) const {
  int32_t limit = std::min(parent.num_computed_tokens, child.num_tokens() - 1), same = 0;
  while (same < limit && parent.tokens[size_t(same)] == child.tokens[size_t(same)]) ++same;
  auto begin = parent.block_table.begin();
  return {begin, begin + same / block_size_};
}

void BlockManager::fork(const Sequence& parent, Sequence& child) {
  NANO_CHECK(child.block_table.empty(), "fork needs an empty table");
  for (BlockId block : match_fork(parent, child)) hold(child, block, BlockEvent::Kind::shared);
  child.num_computed_tokens = int32_t(child.block_table.size()) * block_size_;
}

void BlockManager::cache_computed(const Sequence& seq) {
  if (!enable_prefix_caching_) return;
  int32_t added = cache_.insert(seq.tokens, seq.num_computed_tokens, seq.block_table);
  const int32_t full_blocks = seq.num_computed_tokens / block_size_;
  for (int32_t i = full_blocks - added; i < full_blocks; ++i)
    record(BlockEvent::Kind::cached, seq.id, seq.block_table[size_t(i)]);
}

void BlockManager::release(Sequence& seq) {
  while (!seq.block_table.empty()) {
    BlockId block = seq.block_table.back();
    seq.block_table.pop_back();
    record(BlockEvent::Kind::freed, seq.id, block);
    if (--blocks_[size_t(block)].ref_count > 0) continue;
    // Nobody can find what an unknown block holds, so it is the next to be reused; a known one is the last.
    BlockId end = num_blocks_, front = blocks_[size_t(end)].next;
    link_before(cache_.contains(block) ? end : front, block);
    ++num_free_;
  }
}

void BlockManager::link_before(BlockId next, BlockId block) {
  BlockId prev = blocks_[size_t(next)].prev;
  blocks_[size_t(block)].prev = prev;
  blocks_[size_t(block)].next = next;
  blocks_[size_t(prev)].next = block;
  blocks_[size_t(next)].prev = block;
}

void BlockManager::unlink(BlockId block) {
  Block& b = blocks_[size_t(block)];
  blocks_[size_t(b.prev)].next = b.next;
  blocks_[size_t(b.next)].prev = b.prev;
  b.prev = b.next = -1;
}

void BlockManager::hold(Sequence& seq, BlockId block, BlockEvent::Kind kind) {
  if (blocks_[size_t(block)].ref_count++ == 0) {
    unlink(block);
    --num_free_;
  }
  seq.block_table.push_back(block);
  record(kind, seq.id, block);
}

void BlockManager::record(BlockEvent::Kind kind, SeqId seq, BlockId block) {
  if (events_) events_->push_back({kind, seq, block});
}

void BlockManager::check_integrity(std::span<const Sequence* const> live) const {
  auto name = [](BlockId block) { return "block " + std::to_string(block); };
  std::vector<int32_t> owners(size_t(num_blocks_), 0), last_owner(size_t(num_blocks_), -1);
  for (size_t s = 0; s < live.size(); ++s) {
    const Sequence& seq = *live[s];
    for (size_t i = 0; i < seq.block_table.size(); ++i) {
      BlockId block = seq.block_table[i];
      NANO_CHECK(block >= 0 && block < num_blocks_, name(block) + " is outside the pool");
      NANO_CHECK(last_owner[size_t(block)] != int32_t(s), name(block) + " is twice in one table");
      last_owner[size_t(block)] = int32_t(s);
      ++owners[size_t(block)];
      bool full = (int64_t(i) + 1) * block_size_ <= seq.num_computed_tokens;
      NANO_CHECK(full || blocks_[size_t(block)].ref_count == 1, name(block) + " is shared but not full");
    }
  }
  std::vector<bool> free(size_t(num_blocks_), false);
  int32_t listed = 0;
  for (BlockId b = blocks_[size_t(num_blocks_)].next; b != num_blocks_;
       b = blocks_[size_t(b)].next, ++listed) {
    NANO_CHECK(b >= 0 && !free[size_t(b)], name(b) + " is twice in the free list, or the list is broken");
    NANO_CHECK(blocks_[size_t(blocks_[size_t(b)].prev)].next == b, name(b) + ": the free list is broken");
    free[size_t(b)] = true;
  }
  NANO_CHECK(listed == num_free_, "the number of free blocks");
  for (BlockId block = 0; block < num_blocks_; ++block) {
    int32_t ref_count = blocks_[size_t(block)].ref_count;
    NANO_CHECK(ref_count == owners[size_t(block)], name(block) + ": reference count and owners differ");
    NANO_CHECK(free[size_t(block)] == (ref_count == 0), name(block) + " is both free and owned, or neither");
  }
}

}  // namespace nano
