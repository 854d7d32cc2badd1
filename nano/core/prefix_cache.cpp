// Example: blocks of 2. After the tokens 5 6 7 8 9 were computed in blocks 3, 0 and 4, two contents are known:
//
//   node 1  parent 0 (the root)  tokens 5 6  block 3
//   node 2  parent 1             tokens 7 8  block 0
//
// The prompt 5 6 7 8 1 finds both. 7 8 1 finds nothing, though a block with 7 8 exists: its K and V were computed
// behind 5 6, and attention makes each of them depend on all that came before. That is why a node knows its parent.
// vLLM's counterpart: hash_block_tokens in vllm/v1/core/kv_cache_utils.py, and BlockPool's map from hash to block.
#include "core/prefix_cache.h"

#include <algorithm>

#include "base/error.h"  // NANO_CHECK

namespace nano {

// A multiplicative hash with the high bits folded down after each token, so that order and position count.
BlockHash hash_block(BlockHash parent, std::span<const int32_t> tokens) {
  BlockHash h = parent + 0x9e3779b97f4a7c15u;
  for (int32_t token : tokens) {
    h = (h ^ uint32_t(token)) * 0xd6e8feb86659fd93u;
    h ^= h >> 32;
  }
  return h;
}

PrefixCache::PrefixCache(int32_t block_size, HashFunction hash, BlockHash salt)
    : block_size_(block_size), hash_(hash), salt_(salt) {
  NANO_CHECK(block_size > 0, "block size");
}

std::vector<BlockId> PrefixCache::match_prefix(std::span<const int32_t> tokens) const {
  std::vector<BlockId> blocks;
  if (nodes_.empty() || tokens.empty()) return blocks;
  const size_t size = size_t(block_size_);
  const size_t full_blocks = (tokens.size() - 1) / size;  // the last token is always computed
  NodeId node = 0;
  for (size_t i = 0; i < full_blocks; ++i) {
    auto content = tokens.subspan(i * size, size);
    node = find(node, hash_(hash_of(node), content), content);
    if (node < 0) break;
    blocks.push_back(nodes_.at(node).blocks.front());
  }
  return blocks;
}

// Walks back to the last known block and registers forward from there: in most steps that is one look-up.
int32_t PrefixCache::insert(std::span<const int32_t> tokens, int32_t num_computed,
                            std::span<const BlockId> block_table) {
  const size_t size = size_t(block_size_), full_blocks = size_t(num_computed) / size;
  NANO_CHECK(size_t(num_computed) <= tokens.size() && full_blocks <= block_table.size(), "computed tokens");
  size_t first = full_blocks;  // the first block that is not known
  while (first > 0 && !contains(block_table[first - 1])) --first;

  NodeId node = first > 0 ? node_of_.at(block_table[first - 1]) : 0;
  for (size_t i = first; i < full_blocks; ++i) {
    auto content = tokens.subspan(i * size, size);
    BlockHash hash = hash_(hash_of(node), content);
    NodeId child = find(node, hash, content);
    if (child < 0) {
      child = next_id_++;
      nodes_[child] = Node{node, hash, {content.begin(), content.end()}, {}};
      by_hash_.emplace(hash, child);
    }
    nodes_[child].blocks.push_back(block_table[i]);
    node_of_[block_table[i]] = child;
    node = child;
  }
  return int32_t(full_blocks - first);
}

bool PrefixCache::contains(BlockId block) const { return node_of_.count(block) != 0; }

void PrefixCache::erase(BlockId block) {
  auto known = node_of_.find(block);
  if (known == node_of_.end()) return;
  auto node = nodes_.find(known->second);
  node_of_.erase(known);
  std::vector<BlockId>& blocks = node->second.blocks;
  blocks.erase(std::find(blocks.begin(), blocks.end(), block));
  if (!blocks.empty()) return;
  auto [begin, end] = by_hash_.equal_range(node->second.hash);
  by_hash_.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == node->first; }));
  nodes_.erase(node);
}

size_t PrefixCache::size() const { return node_of_.size(); }

PrefixCache::NodeId PrefixCache::find(NodeId parent, BlockHash hash, std::span<const int32_t> tokens) const {
  auto [begin, end] = by_hash_.equal_range(hash);
  for (auto entry = begin; entry != end; ++entry) {
    const Node& node = nodes_.at(entry->second);
    if (node.parent == parent &&
        std::equal(tokens.begin(), tokens.end(), node.tokens.begin(), node.tokens.end()))
      return entry->second;
  }
  return -1;
}

BlockHash PrefixCache::hash_of(NodeId node) const { return node == 0 ? salt_ : nodes_.at(node).hash; }

}  // namespace nano
