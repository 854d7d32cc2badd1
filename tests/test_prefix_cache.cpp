#include <random>
#include <vector>

#include "catch.h"
#include "core/prefix_cache.h"
#include "naive.h"

using namespace nano;
using Tokens = std::vector<int32_t>;
using Blocks = std::vector<BlockId>;

namespace {

BlockHash constant_hash(BlockHash, std::span<const int32_t>) { return 7; }
// Shows the parent of the block: a salt is the parent of first blocks.
BlockHash parent_plus_one(BlockHash parent, std::span<const int32_t>) { return parent + 1; }

}  // namespace

TEST_CASE("prefix cache: an empty cache, an empty prompt and a short one match nothing") {
  PrefixCache cache(4);
  CHECK(cache.match_prefix(Tokens{1, 2, 3, 4, 5}).empty());
  cache.insert(Tokens{1, 2, 3, 4}, 4, Blocks{3});
  CHECK(cache.match_prefix(Tokens{}).empty());
  CHECK(cache.match_prefix(Tokens{1, 2, 3}).empty());
  CHECK(cache.match_prefix(Tokens{1, 2, 3, 4, 5}) == Blocks{3});
}

TEST_CASE("B1 prefix cache: a whole prompt in the cache still leaves its last token to compute") {
  for (int32_t blocks = 1; blocks <= 3; ++blocks) {
    PrefixCache cache(4);
    Tokens tokens;
    Blocks table, expected;
    for (int32_t i = 0; i < 4 * blocks; ++i) tokens.push_back(i);
    for (int32_t i = 0; i < blocks; ++i) table.push_back(10 + i);
    cache.insert(tokens, 4 * blocks, table);
    expected.assign(table.begin(), table.end() - 1);
    CHECK(cache.match_prefix(tokens) == expected);
    tokens.push_back(99);
    CHECK(cache.match_prefix(tokens) == table);
  }
}

TEST_CASE("prefix cache: only full computed blocks are registered, each once") {
  PrefixCache cache(2);
  Tokens tokens{1, 2, 3, 4, 5, 6, 7};
  CHECK(cache.insert(tokens, 1, Blocks{0}) == 0);
  CHECK(cache.insert(tokens, 3, Blocks{0, 1}) == 1);
  CHECK(cache.contains(0));
  CHECK(!cache.contains(1));
  CHECK(cache.insert(tokens, 3, Blocks{0, 1}) == 0);
  CHECK(cache.insert(tokens, 7, Blocks{0, 1, 2, 3}) == 2);
  CHECK(cache.size() == 3);
  CHECK(cache.match_prefix(tokens) == Blocks{0, 1, 2});
}

TEST_CASE("B4 same block content, different parent: no hit") {
  for (HashFunction hash : {&hash_block, &constant_hash}) {
    PrefixCache cache(4, hash);
    cache.insert(Tokens{1, 2, 3, 4, 5, 6, 7, 8}, 8, Blocks{0, 1});
    CHECK(cache.match_prefix(Tokens{9, 9, 9, 9, 5, 6, 7, 8, 0}).empty());
    cache.insert(Tokens{9, 9, 9, 9, 1, 1, 1, 1}, 8, Blocks{2, 3});
    CHECK(cache.match_prefix(Tokens{9, 9, 9, 9, 5, 6, 7, 8, 0}) == Blocks{2});
    CHECK(cache.match_prefix(Tokens{1, 2, 3, 4, 5, 6, 7, 8, 0}) == Blocks{0, 1});
  }
}

TEST_CASE("B4 forced hash collision: the stored tokens decide") {
  PrefixCache cache(4, constant_hash);
  cache.insert(Tokens{1, 2, 3, 4, 5}, 5, Blocks{0, 1});
  CHECK(cache.match_prefix(Tokens{6, 7, 8, 9, 5}).empty());
  CHECK(cache.match_prefix(Tokens{1, 2, 3, 4, 5}) == Blocks{0});
}

TEST_CASE(
    "prefix cache: two blocks with one content are both known; the content lives as long as one of them") {
  PrefixCache cache(2, constant_hash);
  cache.insert(Tokens{1, 2, 3, 4}, 4, Blocks{0, 1});
  CHECK(cache.insert(Tokens{1, 2, 3, 4}, 4, Blocks{5, 6}) == 2);
  CHECK(cache.size() == 4);
  CHECK(cache.match_prefix(Tokens{1, 2, 3, 4, 0}) == Blocks{0, 1});
  cache.erase(0);
  CHECK(cache.match_prefix(Tokens{1, 2, 3, 4, 0}) == Blocks{5, 1});
  cache.erase(1);
  CHECK(cache.match_prefix(Tokens{1, 2, 3, 4, 0}) == Blocks{5, 6});
  cache.erase(6);
  CHECK(cache.match_prefix(Tokens{1, 2, 3, 4, 0}) == Blocks{5});
}

TEST_CASE(
    "B4 stale after reuse: an erased block is not found, and what followed it is not found under another") {
  PrefixCache cache(2, constant_hash);
  cache.insert(Tokens{1, 2, 3, 4}, 4, Blocks{0, 1});
  cache.erase(0);
  cache.erase(0);   // unknown by now
  cache.erase(77);  // never known
  CHECK(cache.match_prefix(Tokens{1, 2, 3, 4, 5}).empty());
  cache.insert(Tokens{8, 8}, 2, Blocks{0});  // block 0 again, with other tokens
  CHECK(cache.match_prefix(Tokens{8, 8, 3, 4, 5}) == Blocks{0});
  CHECK(cache.match_prefix(Tokens{1, 2, 3, 4, 5}).empty());
}

TEST_CASE("prefix cache: the hash sees order, position and parent") {
  Tokens a{1, 2}, b{2, 1}, c{1, 2, 0};
  CHECK(hash_block(0, a) != hash_block(0, b));
  CHECK(hash_block(0, a) != hash_block(1, a));
  CHECK(hash_block(0, a) != hash_block(0, c));
  CHECK(hash_block(5, a) == hash_block(5, Tokens{1, 2}));
}

TEST_CASE("B4 cache key includes what changes KV: the salt is the parent of every first block") {
  static std::vector<BlockHash> parents;  // a plain function can't capture
  parents.clear();
  HashFunction spy = [](BlockHash parent, std::span<const int32_t> tokens) {
    parents.push_back(parent);
    return hash_block(parent, tokens);
  };
  PrefixCache one(2, spy, 111), other(2, spy, 222);
  one.insert(Tokens{1, 2, 3, 4}, 4, Blocks{0, 1});
  CHECK(other.match_prefix(Tokens{1, 2, 3, 4, 5}).empty());
  other.insert(Tokens{1, 2, 3, 4}, 4, Blocks{0, 1});
  CHECK(one.match_prefix(Tokens{1, 2, 9}) == Blocks{0});
  CHECK(parents[0] == 111);
  CHECK(parents[1] == hash_block(111, Tokens{1, 2}));
  CHECK(parents[2] == 222);
  CHECK(hash_block(111, Tokens{1, 2}) != hash_block(222, Tokens{1, 2}));
}

TEST_CASE("prefix cache: random inserts and erases never give a wrong block") {
  for (HashFunction hash : {&hash_block, &constant_hash, &parent_plus_one}) {
    for (uint32_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(seed);
      std::mt19937 rng(seed);
      PrefixCache cache(2, hash);
      nano_test::NaiveBlocks naive(64, 2, true);
      bool erased = false;
      auto random_tokens = [&] {
        Tokens tokens(1 + rng() % 12);
        for (int32_t& t : tokens) t = int32_t(rng() % 2);
        return tokens;
      };
      for (int32_t op = 0; op < 300; ++op) {
        Tokens tokens = random_tokens();
        Blocks hit = cache.match_prefix(tokens), expected = naive.match(tokens);
        REQUIRE(hit.size() <= expected.size());
        if (!erased) REQUIRE(hit == expected);
        for (size_t i = 0; i < hit.size(); ++i) {
          auto known = naive.find_known(hit[i]);
          REQUIRE(known != naive.known.end());
          REQUIRE(known->prefix == Tokens(tokens.begin(), tokens.begin() + int64_t(2 * (i + 1))));
        }
        if (rng() % 3 && naive.known.size() < 50) {
          Blocks table = hit;  // the known ones first, then blocks that are free
          for (BlockId b = 0; table.size() < (tokens.size() + 1) / 2; ++b)
            if (naive.find_known(b) == naive.known.end()) table.push_back(b);
          naive.tables[0] = table;
          naive.cache(0, tokens, int32_t(tokens.size()));
          cache.insert(tokens, int32_t(tokens.size()), table);
        } else if (op > 20 && !naive.known.empty()) {
          auto victim = naive.known.begin() + int64_t(rng() % naive.known.size());
          cache.erase(victim->block);
          naive.known.erase(victim);
          erased = true;
        }
        REQUIRE(cache.size() == naive.known.size());
      }
    }
  }
}
