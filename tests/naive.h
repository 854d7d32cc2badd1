// Naive models: the same behaviour as the real modules in the plainest words, slow and obviously right.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "core/sequence.h"  // SeqId, BlockId

namespace nano_test {

// The block pool with a prefix cache: lists that are searched from the front. It predicts the very block ids.
struct NaiveBlocks {
  struct Known {
    nano::BlockId block;
    std::vector<int32_t> prefix;  // every token from position 0 to the end of the block
  };

  int32_t block_size;
  bool caching;
  std::vector<nano::BlockId> free;  // in order of reuse
  std::map<nano::SeqId, std::vector<nano::BlockId>> tables;
  std::vector<Known> known;  // the oldest registration first
  int64_t evictions = 0;

  NaiveBlocks(int32_t num_blocks, int32_t block_size_, bool caching_)
      : block_size(block_size_), caching(caching_) {
    for (nano::BlockId block = 0; block < num_blocks; ++block) free.push_back(block);
  }

  std::vector<Known>::iterator find_known(nano::BlockId block) {
    return std::find_if(known.begin(), known.end(), [&](const Known& k) { return k.block == block; });
  }

  std::vector<nano::BlockId> match(const std::vector<int32_t>& tokens) const {
    std::vector<nano::BlockId> hit;
    for (size_t end = size_t(block_size); end < tokens.size(); end += size_t(block_size)) {
      std::vector<int32_t> prefix(tokens.begin(), tokens.begin() + int64_t(end));
      auto k =
          std::find_if(known.begin(), known.end(), [&](const Known& each) { return each.prefix == prefix; });
      if (k == known.end()) break;
      hit.push_back(k->block);
    }
    return hit;
  }

  void hold(nano::SeqId seq, const std::vector<nano::BlockId>& blocks) {
    for (nano::BlockId block : blocks) {
      free.erase(std::remove(free.begin(), free.end(), block), free.end());
      tables[seq].push_back(block);
    }
  }

  bool grow(nano::SeqId seq, int32_t num_tokens) {
    size_t wanted = size_t((num_tokens + block_size - 1) / block_size), have = tables[seq].size();
    if (wanted > have && wanted - have > free.size()) return false;
    while (tables[seq].size() < wanted) {
      nano::BlockId block = free.front();
      auto k = find_known(block);
      if (k != known.end()) known.erase(k), ++evictions;
      hold(seq, {block});
    }
    return true;
  }

  void cache(nano::SeqId seq, const std::vector<int32_t>& tokens, int32_t num_computed) {
    for (int32_t i = 0; caching && i < num_computed / block_size; ++i) {
      nano::BlockId block = tables[seq][size_t(i)];
      if (find_known(block) == known.end())
        known.push_back({block, {tokens.begin(), tokens.begin() + (i + 1) * block_size}});
    }
  }

  int32_t owners(nano::BlockId block) const {
    int32_t n = 0;
    for (const auto& [seq, table] : tables) n += int32_t(std::count(table.begin(), table.end(), block));
    return n;
  }

  void release(nano::SeqId seq) {
    for (auto& table = tables[seq]; !table.empty();) {
      nano::BlockId block = table.back();
      table.pop_back();
      if (owners(block) > 0) continue;
      free.insert(find_known(block) == known.end() ? free.begin() : free.end(), block);
    }
    tables.erase(seq);
  }
};

}  // namespace nano_test
