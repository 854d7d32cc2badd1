// The prefix cache: which block already holds the K and V of "these tokens after that prefix".
// Flag: --[no-]enable-prefix-caching. It owns no block and counts no reference: the block manager does.
//
// A full block is known by the chain (parent block's content, its own token ids), as in vLLM. The hash finds
// candidates; the tokens and the parent are then compared, so a hash collision costs time, never a wrong answer.
// Each distinct content is a node with an id that is never used again: "same parent" is "same parent id".
//
// Invariants:
//  1. A block is registered at most once; erase() forgets it, and a later match cannot find it.
//  2. match_prefix never covers the last token: at least one token is always computed, because its logits are
//     needed.
//  3. Two blocks with the same content are both registered under one node: the content can be found until the
//     last of them is erased. What came after it is then out of reach, until its own blocks are erased in turn
//     (the block manager reuses tails before heads, so that order is rare).
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/sequence.h"  // BlockId

namespace nano {

using BlockHash = uint64_t;
using HashFunction = BlockHash (*)(BlockHash parent, std::span<const int32_t> tokens);

BlockHash hash_block(BlockHash parent, std::span<const int32_t> tokens);

class PrefixCache {
 public:
  // `salt` stands for the parent of first blocks: what changes K and V besides the tokens (model, cache dtype,
  // RoPE) goes in there if hashes ever leave this cache. Within one engine 0 will do.
  explicit PrefixCache(int32_t block_size, HashFunction hash = hash_block, BlockHash salt = 0);

  // The blocks that hold the longest cached prefix of `tokens`, in order. Changes nothing.
  std::vector<BlockId> match_prefix(std::span<const int32_t> tokens) const;
  // Registers block_table[i] for each full block i of the first num_computed tokens that is not yet known, and
  // returns how many those were (always the last ones). Costs one look-up when there is nothing new.
  // REQUIRES: the known blocks of the table come first, and were registered with these tokens.
  int32_t insert(std::span<const int32_t> tokens, int32_t num_computed, std::span<const BlockId> block_table);
  bool contains(BlockId block) const;
  void erase(BlockId block);  // the block is about to be overwritten; no-op if unknown
  size_t size() const;        // blocks registered

 private:
  using NodeId = int64_t;  // 0 = the root, the parent of first blocks
  struct Node {
    NodeId parent;
    BlockHash hash;  // of the whole chain up to here
    std::vector<int32_t> tokens;
    std::vector<BlockId> blocks;  // that hold this content, the oldest registration first; never empty
  };

  NodeId find(NodeId parent, BlockHash hash, std::span<const int32_t> tokens) const;  // -1 = unknown
  BlockHash hash_of(NodeId node) const;

  int32_t block_size_;
  HashFunction hash_;
  BlockHash salt_;
  NodeId next_id_ = 1;
  std::unordered_map<NodeId, Node> nodes_;
  std::unordered_multimap<BlockHash, NodeId> by_hash_;
  std::unordered_map<BlockId, NodeId> node_of_;
};

}  // namespace nano
