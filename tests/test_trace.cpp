// The trace, and the printed and checked forms of a step.
#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "aborts.h"        // aborts
#include "base/error.h"    // Error
#include "catch.h"         // Catch2, version 2 or 3
#include "engine/trace.h"  // TraceWriter
#include "fake_model.h"    // FakeEngine

using namespace nano;
using nano_test::aborts;
using nano_test::fake_prompt;
using nano_test::FakeEngine;
using Json = nlohmann::json;
using Tables = std::map<SeqId, std::vector<BlockId>>;

namespace {

struct TempFile {
  std::string path = "/tmp/nano_test_trace_" + std::to_string(getpid()) + ".jsonl";
  ~TempFile() { std::remove(path.c_str()); }
  std::vector<Json> lines() const {
    std::vector<Json> all;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) all.push_back(Json::parse(line));
    return all;
  }
};

// What a reader of the trace does: replay the events of a step.
void replay(const Json& step, Tables& tables) {
  for (const Json& event : step["events"]) {
    const std::string kind = event[0];
    std::vector<BlockId>& table = tables[event[1].get<SeqId>()];
    if (kind == "allocated" || kind == "hit" || kind == "shared") table.push_back(event[2]);
    if (kind == "freed") {
      REQUIRE(table.back() == event[2].get<BlockId>());
      table.pop_back();
    }
  }
}

Sequence client_sequence() {
  Sequence seq;
  seq.id = 1, seq.index = 2, seq.num_prompt_tokens = 4;
  return seq;
}

StepPlan two_seqs() {
  StepPlan plan;
  plan.step = 3;
  ScheduledSeq a, b;
  a.id = 1, a.first_pos = 4, a.tokens = {5, 6}, a.block_table = {0, 1}, a.first_logit_row = 1,
  a.samples = true;
  b.id = 2, b.first_pos = 4, b.tokens = {7}, b.block_table = {0, 2}, b.num_new_blocks = 1,
  b.first_logit_row = 1;
  plan.seqs = {a, b};
  plan.num_tokens = 3;
  return plan;
}

}  // namespace

TEST_CASE("trace: the tables can be rebuilt from the trace of a random run") {
  TempFile file;
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    std::mt19937 rng(seed);
    SchedulerConfig config;
    config.max_model_len = 40;
    config.max_num_seqs = 4;
    config.max_num_batched_tokens = 9;
    config.continuous = seed % 4 != 0;
    FakeEngine engine(config, 14, 4, seed % 2 == 0);
    std::vector<BlockEvent> events;
    engine.blocks.record_events(&events);
    std::vector<StepPlan> plans;
    std::vector<StepResult> results;
    std::vector<Tables> tables;  // after each step
    {
      TraceWriter trace(file.path, R"({"model":"fake","block_size":4})");
      for (uint64_t i = 0; i < 8; ++i)
        engine.add(fake_prompt(1 + int32_t(rng() % 20), i % 3), 1 + int32_t(rng() % 12));
      trace.request("arrived", "a", client_sequence(), 0.5);
      while (engine.scheduler.has_work()) {
        if (rng() % 16 == 0) engine.abort(1 + SeqId(rng() % 8));
        if (!engine.scheduler.has_work()) break;
        plans.push_back(engine.step());
        results.push_back(engine.result);
        tables.emplace_back();
        for (auto& [id, seq] : engine.seqs)
          if (!seq->block_table.empty()) tables.back()[id] = seq->block_table;
        trace.step(plans.back(), engine.result, events, 0.001 * double(plans.size()));
        events.clear();
      }
    }
    std::vector<Json> lines = file.lines();
    REQUIRE(lines.size() == plans.size() + 2);
    CHECK(lines[0]["trace"] == "nano");
    CHECK(lines[0]["version"] == 2);
    CHECK(lines[0]["model"] == "fake");
    CHECK(lines[1] == Json({{"request", "arrived"},
                            {"id", 1},
                            {"request_id", "a"},
                            {"index", 2},
                            {"prompt_tokens", 4},
                            {"time", 0.5}}));

    Tables rebuilt, by_new_blocks;
    for (size_t i = 0; i < plans.size(); ++i) {
      CAPTURE(i);
      const Json& line = lines[i + 2];
      REQUIRE(line["step"] == plans[i].step);
      REQUIRE(line["tokens"] == plans[i].num_tokens);
      REQUIRE(line["free_blocks"] == plans[i].num_free_blocks);
      REQUIRE(line["admitted"].size() == plans[i].admitted.size());
      for (size_t a = 0; a < plans[i].admitted.size(); ++a)
        REQUIRE(line["admitted"][a] == Json({plans[i].admitted[a].id, plans[i].admitted[a].num_cached}));
      REQUIRE(line["preempted"] == Json(plans[i].preempted));
      REQUIRE(line["seqs"].size() == plans[i].seqs.size());
      for (SeqId id : plans[i].preempted) by_new_blocks.erase(id);
      for (size_t s = 0; s < plans[i].seqs.size(); ++s) {
        const Json& seq = line["seqs"][s];
        const ScheduledSeq& planned = plans[i].seqs[s];
        REQUIRE(seq["id"] == planned.id);
        REQUIRE(seq["pos"] == planned.first_pos);
        REQUIRE(seq["n"] == planned.num_tokens());
        for (BlockId block : seq["new_blocks"]) by_new_blocks[planned.id].push_back(block);
        REQUIRE(by_new_blocks[planned.id] == planned.block_table);
        const SeqResult& result = results[i].seqs[s];
        REQUIRE(seq["sampled"].size() == result.sampled.size());
        if (!result.sampled.empty()) REQUIRE(seq["sampled"][0] == result.sampled[0].id);
        REQUIRE(seq.value("finish", "") == std::string(to_string(result.finish_reason)));
      }
      replay(line, rebuilt);
      Tables held;
      for (auto& [id, table] : rebuilt)
        if (!table.empty()) held[id] = table;
      REQUIRE(held == tables[i]);
    }
  }
}

TEST_CASE("trace: names and error texts are JSON and UTF-8 whatever they contain") {
  TempFile file;
  StepPlan plan = two_seqs();
  StepResult result;
  result.step = 3;
  result.schedule_seconds = 1.5e-6;
  result.forward_seconds = 0.25;
  result.seqs.push_back({1, 2, {}, {}, FinishReason::error, -1, "bad \"row\"\n \xff \xc3\xa9"});
  result.seqs.push_back({2, 1, {{17, {}, ""}, {18, {}, ""}}, {}, FinishReason::stop, -1, ""});
  {
    TraceWriter trace(file.path, R"({"model":"a \"b\" é","version":99})");
    trace.step(plan, result, {{BlockEvent::Kind::evicted, -1, 2}, {BlockEvent::Kind::cached, 2, 0}},
               12.3456784);
    trace.request("stop", "quote\" \xff", client_sequence(), 1e-7);
  }
  std::vector<Json> lines = file.lines();
  REQUIRE(lines.size() == 3);
  CHECK(lines[0]["model"] == "a \"b\" é");
  CHECK(lines[0]["version"] == 2);
  CHECK(lines[1]["time"] == 12.345678);
  CHECK(lines[1]["schedule"] == 0.000002);
  CHECK(lines[1]["forward"] == 0.25);
  CHECK(lines[1]["events"] == Json::parse(R"([["evicted",-1,2],["cached",2,0]])"));
  CHECK(lines[1]["seqs"][0]["error"] == "bad \"row\"\n \xef\xbf\xbd \xc3\xa9");
  CHECK(lines[1]["seqs"][0]["finish"] == "error");
  CHECK(lines[1]["seqs"][0]["new_blocks"] == Json::array());
  CHECK(lines[1]["seqs"][1]["new_blocks"] == Json::array({2}));
  CHECK(lines[1]["seqs"][1]["sampled"] == Json::array({17, 18}));
  CHECK(!lines[1]["seqs"][1].contains("error"));
  CHECK(!lines[1]["seqs"][1].contains("texts"));
  CHECK(lines[2]["request"] == "stop");
  CHECK(lines[2]["request_id"] == "quote\" \xef\xbf\xbd");
}

TEST_CASE("trace: with a function for them, every token has its text") {
  TempFile file;
  StepResult result;
  result.seqs.push_back({1, 2, {}, {}});
  result.seqs.push_back({2, 1, {{17, {}, ""}, {18, {}, ""}}, {}});
  TraceWriter trace(file.path, "{}");
  trace.text_of = [](int32_t id) { return id == 6 ? std::string("\xc3") : "t\"" + std::to_string(id); };
  trace.step(two_seqs(), result, {}, 0);
  CHECK(trace.close());
  const Json seqs = file.lines().at(1)["seqs"];
  CHECK(seqs[0]["texts"] == Json::array({"t\"5", "\xef\xbf\xbd"}));  // half a character
  CHECK(seqs[0]["sampled_texts"] == Json::array());
  CHECK(seqs[1]["texts"] == Json::array({"t\"7"}));
  CHECK(seqs[1]["sampled_texts"] == Json::array({"t\"17", "t\"18"}));
  CHECK(seqs[1]["sampled"] == Json::array({17, 18}));
}

TEST_CASE(
    "trace: a path that cannot be written and a header that is no object are errors, a full disk is none") {
  CHECK_THROWS_AS(TraceWriter("/no/such/directory/trace.jsonl", "{}"), Error);
  TempFile file;
  CHECK_THROWS_AS(TraceWriter(file.path, "[1]"), Error);
  CHECK_THROWS_AS(TraceWriter(file.path, "{"), Error);
  if (access("/dev/full", W_OK) != 0) return;
  TraceWriter full("/dev/full", "{}");
  for (int i = 0; i < 100000; ++i) full.request("arrived", "a", client_sequence(), 0);
  CHECK(!full.close());
  CHECK(!full.close());
  TraceWriter short_one("/dev/full", "{}");  // what stdio still buffers fails when it is closed
  CHECK(!short_one.close());
  TraceWriter good(file.path, "{}");
  CHECK(good.close());
  CHECK(good.close());
  CHECK(file.lines().size() == 1);
}

TEST_CASE("step: plans and results print what a reader looks for") {
  StepPlan plan = two_seqs();
  plan.admitted = {{2, 0}};
  plan.preempted = {4, 5};
  CHECK(to_string(plan) ==
        "step 3: 3 tokens, 0 running, 0 waiting, 0 blocks free admitted [2] preempted [4 5]\n"
        "  seq 1: positions 4..5 tokens [5 6] blocks [0 1] (0 new), 1 logit rows, samples\n"
        "  seq 2: positions 4..4 tokens [7] blocks [0 2] (1 new), 0 logit rows");
  StepResult result;
  result.step = 3;
  result.seqs.push_back({1, 2, {{17, {}, ""}}, {}, FinishReason::stop, -1, ""});
  result.seqs.push_back({2, 1, {}, {}, FinishReason::error, -1, "NaN"});
  CHECK(to_string(result) ==
        "step 3: schedule 0 s, forward 0 s, sample 0 s\n"
        "  seq 1: computed 2, token 17, finished: stop\n"
        "  seq 2: computed 1, finished: error: NaN");
  CHECK(std::string(to_string(FinishReason::none)).empty());
  CHECK(std::string(to_string(FinishReason::length)) == "length");
  CHECK(std::string(to_string(FinishReason::abort)) == "abort");
}

TEST_CASE("step: check_plan finds each broken invariant") {
  CHECK(!aborts([] { check_plan(two_seqs(), 3, 4); }));
  CHECK(aborts([] { check_plan(two_seqs(), 2, 4); }));  // 1: over the budget
  auto broken = [](auto change) {
    StepPlan plan = two_seqs();
    change(plan);
    return aborts([&] { check_plan(plan, 3, 4); });
  };
  CHECK(!broken([](StepPlan&) {}));
  CHECK(broken([](StepPlan& p) { p.num_tokens = 2; }));
  CHECK(broken([](StepPlan& p) { p.seqs[1].tokens.clear(), p.num_tokens = 2; }));  // 2
  CHECK(broken([](StepPlan& p) { p.seqs[0].block_table.pop_back(); }));            // 3
  CHECK(broken([](StepPlan& p) { p.seqs[0].first_pos = 7; }));                     // 3: the second token
  CHECK(broken([](StepPlan& p) { p.seqs[1].block_table[1] = 1; }));                // 4
  CHECK(broken([](StepPlan& p) { p.seqs[0].first_pos = 3; }));  // 4: writes into shared block 0
  CHECK(broken([](StepPlan& p) { p.seqs[1].id = 1; }));
  CHECK(broken([](StepPlan& p) { p.seqs[0].first_logit_row = 2; }));
}
