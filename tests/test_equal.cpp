// R5: off is the simplest code, and on equals off. Every lossless feature leaves the token ids and the bits of the
// logits as they were. A covering array of pairs of settings runs on a micro model, a smaller set on `tiny`.
#include "catch.h"

#include <array>
#include <cstdio>
#include <filesystem>
#include <set>
#include <tuple>
#include <unistd.h>

#include <fmt/format.h>

#include "base/rng.h"  // random_bits
#include "engine_fixture.h"

using namespace nano_test;

namespace {

// One setting of each feature, as an index into its values.
enum Factor {
  kBlock,
  kPaged,
  kChunk,
  kScheduling,
  kPrefix,
  kSeqs,
  kPreempt,
  kKv,
  kThreads,
  kTrace,
  kFactors
};
constexpr std::array<int, kFactors> kLevels = {4, 2, 4, 2, 2, 3, 2, 2, 2, 2};
using Row = std::array<int, kFactors>;

std::string describe(const Row& row) {
  static const char* const names[] = {"block", "contiguous", "chunk", "static",  "no-prefix",
                                      "seqs",  "preempt",    "no-kv", "threads", "trace"};
  std::string text;
  for (int f = 0; f < kFactors; ++f)
    text += std::string(names[f]) + "=" + std::to_string(row[size_t(f)]) + " ";
  return text;
}

// Rows that cover every pair of levels of every two factors: of 40 random rows, keep the one that covers most new
// pairs, until none is left. Seeded, so always the same.
std::vector<Row> covering_array() {
  std::set<std::tuple<int, int, int, int>> open;
  for (int a = 0; a < kFactors; ++a)
    for (int b = a + 1; b < kFactors; ++b)
      for (int i = 0; i < kLevels[size_t(a)]; ++i)
        for (int j = 0; j < kLevels[size_t(b)]; ++j) open.insert({a, i, b, j});
  std::vector<Row> rows;
  uint64_t draw = 0;
  while (!open.empty()) {
    Row best{};
    size_t best_count = 0;
    while (best_count == 0)
      for (int candidate = 0; candidate < 40; ++candidate) {
        Row row{};
        size_t count = 0;
        for (int f = 0; f < kFactors; ++f)
          row[size_t(f)] = int(nano::random_bits({2026, 0}, draw++) % uint64_t(kLevels[size_t(f)]));
        for (int a = 0; a < kFactors; ++a)
          for (int b = a + 1; b < kFactors; ++b) count += open.count({a, row[size_t(a)], b, row[size_t(b)]});
        if (count > best_count) best = row, best_count = count;
      }
    for (int a = 0; a < kFactors; ++a)
      for (int b = a + 1; b < kFactors; ++b) open.erase({a, best[size_t(a)], b, best[size_t(b)]});
    rows.push_back(best);
  }
  return rows;
}

struct Setup {
  nano::EngineOptions options;
  bool expects_preemption = false;
  std::string trace;
};

// `longest`: prompt + output of the longest request.
Setup apply(const nano::EngineOptions& base, const Row& row, int32_t longest) {
  Setup setup{base, false, ""};
  nano::EngineOptions& o = setup.options;
  const bool kv = row[kKv] == 0, paged = row[kPaged] == 0, chunked = row[kChunk] != 3 && kv;
  o.block_size = std::array{1, 4, 16, 64}[size_t(row[kBlock])];
  o.paged_kv = paged;
  o.kv_cache = kv;
  o.enable_chunked_prefill = chunked;
  o.max_num_batched_tokens = chunked ? std::array{16, 64, 4096}[size_t(row[kChunk])] : 4096;
  o.scheduling = row[kScheduling] == 0 ? "continuous" : "static";
  o.enable_prefix_caching = row[kPrefix] == 0 && kv && paged;
  o.max_num_seqs = std::min<int64_t>(std::array{32, 3, 1}[size_t(row[kSeqs])], *o.max_num_batched_tokens);
  o.threads = row[kThreads] + 1;
  if (row[kPreempt] == 1) {  // just enough for the longest request, so that neighbours push each other out
    o.num_gpu_blocks_override = paged ? (longest + o.block_size - 1) / o.block_size + 1 : 2;
    setup.expects_preemption = paged && row[kScheduling] == 0 && *o.max_num_seqs > 1;
  }
  if (row[kTrace] == 1)
    o.trace = setup.trace =
        (std::filesystem::temp_directory_path() / ("nano-equal-" + std::to_string(getpid()) + ".jsonl"))
            .string();
  return setup;
}

// 12 mixed prompts: lengths around block and chunk borders, a shared prefix, the same prompt twice, sampled ones.
std::vector<Request> mixed_requests(int32_t vocab, int32_t max_tokens) {
  const auto shared = make_prompt(48, 7, vocab);
  auto with_tail = [&](int32_t n, uint32_t salt) {
    std::vector<int32_t> ids = shared;
    const auto tail = make_prompt(n, salt, vocab);
    ids.insert(ids.end(), tail.begin(), tail.end());
    return ids;
  };
  std::vector<Request> requests;
  for (int32_t n : {1, 2, 15, 16, 17, 31, 64})
    requests.push_back({"", make_prompt(n, uint32_t(n), vocab), {}});
  requests.push_back({"", with_tail(3, 11), {}});
  requests.push_back({"", with_tail(17, 12), {}});
  requests.push_back({"", shared, {}});
  requests.push_back({"", shared, {}});
  requests.push_back({"", make_prompt(29, 13, vocab), {}});
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].id = fmt::format("r{}", i);
    requests[i].params = greedy(max_tokens - int32_t(i % 4));
    if (i % 3 == 2) {  // sampled, with everything that looks back at the past
      requests[i].params.temperature = 0.9f;
      requests[i].params.top_p = 0.9f;
      requests[i].params.repetition_penalty = 1.2f;
      requests[i].params.seed = int64_t(100 + i);
    }
  }
  return requests;
}

void check_rows(const nano::EngineOptions& base, const std::vector<Row>& rows,
                const std::vector<Request>& requests, int32_t longest) {
  EngineUnderTest baseline(apply(base, Row{}, longest).options);
  const Answers expected = baseline.run(requests);
  REQUIRE(expected.size() == requests.size());
  // The hash must be able to tell answers apart: two prompts, two hashes; the same prompt, the same hash.
  CHECK(expected.at("r0").logits_hash != expected.at("r1").logits_hash);
  int preempted_rows = 0, expecting = 0;
  for (const Row& row : rows) {
    const Setup setup = apply(base, row, longest);
    INFO(base.device << " " << base.cpu_isa << " " << base.activation_dtype << ": " << describe(row));
    EngineUnderTest run(setup.options);
    const Answers got = run.run(requests);
    for (const Request& request : requests) {
      INFO(request.id);
      CHECK(got.at(request.id) == expected.at(request.id));
    }
    expecting += setup.expects_preemption;
    preempted_rows += run.engine().scheduler().num_preemptions() > 0;
    if (!setup.trace.empty()) {
      CHECK(std::filesystem::file_size(setup.trace) > 1000);
      std::filesystem::remove(setup.trace);
    }
  }
  CHECK(expecting > 0);
  CHECK(preempted_rows >= expecting / 2);  // the forced ones really were
}

}  // namespace

namespace {

// ref, and cpu at each of tested_isas(), with both kinds of activations.
std::vector<nano::EngineOptions> places(const nano::EngineOptions& base) {
  std::vector<nano::EngineOptions> all;
  for (const char* activations : {"float32", "int8"}) {
    nano::EngineOptions o = base;
    o.activation_dtype = activations;
    o.device = "ref";
    all.push_back(o);
    o.device = "cpu";
    for (const std::string& isa : tested_isas()) {
      o.cpu_isa = isa;
      all.push_back(o);
    }
  }
  return all;
}

}  // namespace

TEST_CASE("the covering array covers every pair of settings") {
  const std::vector<Row> rows = covering_array();
  std::set<std::tuple<int, int, int, int>> pairs;
  for (const Row& row : rows)
    for (int a = 0; a < kFactors; ++a)
      for (int b = a + 1; b < kFactors; ++b) pairs.insert({a, row[size_t(a)], b, row[size_t(b)]});
  size_t wanted = 0;
  for (int a = 0; a < kFactors; ++a)
    for (int b = a + 1; b < kFactors; ++b) wanted += size_t(kLevels[size_t(a)] * kLevels[size_t(b)]);
  CHECK(pairs.size() == wanted);
  CHECK(rows.size() < 60);
}

TEST_CASE("on equals off bit for bit: micro model and every pair of settings") {
  const std::vector<Request> requests = mixed_requests(320, 12);
  nano::EngineOptions base = micro_options("ref");
  base.kv_cache_memory_bytes = 16 << 20;
  for (const nano::EngineOptions& place : places(base))
    check_rows(place, covering_array(), requests, 65 + 12);
}

TEST_CASE("on equals off bit for bit: tiny") {
  const std::vector<Request> requests = mixed_requests(1900, 6);
  std::vector<Row> rows = covering_array();
  rows.resize(std::min<size_t>(rows.size(), 20));
  nano::EngineOptions base;
  base.model = "lessons/models/tiny-Q8_0.gguf";
  base.threads = 1;
  base.max_model_len = 128;
  base.kv_cache_memory_bytes = 64 << 20;
  const std::string best = nano::cpu_isas().back();
  for (const nano::EngineOptions& place : places(base)) {
    const bool all =
        place.device == "cpu" && place.cpu_isa == best;  // the others are slow, and of the same sources
    check_rows(place, all ? rows : std::vector<Row>(rows.begin(), rows.begin() + 5), requests, 65 + 6);
  }
}
