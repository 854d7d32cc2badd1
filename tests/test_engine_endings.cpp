// How sequences end when something goes wrong: rows of NaN, aborts, errors in every state. Whatever happens, each answer
// is told its end once, and nothing is left in any of the engine's maps.
#include <cstdio>
#include <fstream>
#include <functional>
#include <limits>

#include <nlohmann/json.hpp>

#include "aborts.h"
#include "catch.h"
#include "engine_fixture.h"
#include "subprocess.h"  // temporary_file

using namespace nano_test;
using nano::FinishReason;

namespace {

// Overwrites the rows of one position with NaN, of the sequences that `of` picks.
void poison(EngineUnderTest& run, std::function<bool(const nano::Sequence&, int32_t position)> of) {
  auto hash_rows = run.engine().on_logits;
  run.engine().on_logits = [=](const nano::Sequence& seq, int32_t position, std::span<const float> row) {
    hash_rows(seq, position, row);
    if (of(seq, position)) const_cast<float&>(row[5]) = std::numeric_limits<float>::quiet_NaN();
  };
}

}  // namespace

TEST_CASE(
    "n answers whose prompt fails in its first chunk all end with that error, and their id is free again") {
  nano::EngineOptions options = small_blocks();
  options.max_num_batched_tokens = options.max_num_seqs.emplace(6);
  EngineUnderTest run(options);
  poison(run, [](const nano::Sequence& seq, int32_t position) { return seq.id == 0 && position == 2; });
  Request request{"x", make_prompt(18, 6), sampled(10, 40)};
  request.params.n = 3;
  request.params.prompt_logprobs = 0;
  const Answers got = run.run({request});
  REQUIRE(got.size() == 3);
  for (int i = 0; i < 3; ++i) {
    CHECK(got.at(answer_key("x", i)).finish_reason == FinishReason::error);
    CHECK(got.at(answer_key("x", i)).error == "the logits of prompt token 3 are not finite");
    CHECK(got.at(answer_key("x", i)).ids.empty());
  }
  check_idle(run);
  CHECK(run.run({request}).at("x").finish_reason == FinishReason::length);  // sequence 0 was the sick one
}

TEST_CASE(
    "a prompt row that fails in the step that samples ends the request with the error, and without a token") {
  EngineUnderTest run(micro_options());
  poison(run, [](const nano::Sequence&, int32_t position) { return position == 2; });
  Request request{"x", make_prompt(6, 1), greedy(8)};
  request.params.prompt_logprobs = 0;
  const Answer got = run.run({request}).at("x");
  CHECK(got.finish_reason == FinishReason::error);
  CHECK(got.error == "the logits of prompt token 3 are not finite");
  CHECK(got.ids.empty());
  CHECK(got.prompt_logprobs.empty());
  check_idle(run);
  CHECK(run.run({{"next", make_prompt(6, 1), greedy(8)}}).at("next").ids.size() == 8);
}

TEST_CASE("who looks at a step may not change its requests") {
  auto dies = [](auto during) {
    return nano_test::aborts([&] {
      EngineUnderTest run(micro_options());
      run.add({"x", make_prompt(6, 1), greedy(3)});
      during(run.engine());
      run.engine().step();
    });
  };
  auto on_step = [](auto change) {
    return [=](nano::Engine& e) { e.on_step = [&e, change](const auto&, const auto&) { change(e); }; };
  };
  CHECK(dies(on_step([](nano::Engine& e) { e.abort("x"); })));
  CHECK(dies(on_step([](nano::Engine& e) { e.finish("x", 0, FinishReason::stop); })));
  CHECK(dies(on_step([](nano::Engine& e) { e.add_request("y", {5}, greedy(1)); })));
  CHECK(dies([](nano::Engine& e) { e.on_logits = [&e](const auto&, int32_t, auto) { e.abort("x"); }; }));
  CHECK(dies(on_step([](nano::Engine& e) {
    e.on_step = {};  // else it would have no end, and die of that
    e.step();
  })));
  CHECK_FALSE(dies([](nano::Engine&) {}));
  CHECK_FALSE(dies(on_step([](nano::Engine&) {})));
}

TEST_CASE("finish of an answer that has not started, is over or is unknown changes nothing") {
  for (const char* scheduling : {"continuous", "static"}) {
    nano::EngineOptions options = micro_options();
    options.scheduling = scheduling;
    options.max_num_batched_tokens = options.max_num_seqs.emplace(6);
    EngineUnderTest run(options);
    Request request{"x", make_prompt(12, 1), sampled(5, 40)};
    request.params.n = 2;
    const Answers want = run.run({request});
    CAPTURE(scheduling);
    run.answers.clear();
    EngineUnderTest other(options);
    other.add(request);
    other.step();  // half of the prompt
    other.engine().finish("x", 1, FinishReason::stop);
    other.engine().finish("y", 0, FinishReason::stop);
    CHECK(other.engine().num_live_sequences() == 1);  // the second still waits for the prompt
    while (other.engine().has_work()) other.step();
    CHECK(other.answers == want);
    other.engine().finish("x", 0, FinishReason::stop);
    check_idle(other);
  }
}

TEST_CASE("static: the trace tells of an end in its step, not when the batch is over") {
  const std::string path = nano_test::temporary_file("");
  nano::EngineOptions options = micro_options();
  options.scheduling = "static";
  options.trace = path;
  {
    EngineUnderTest run(options);
    run.run({{"short", make_prompt(6, 1), greedy(2)}, {"long", make_prompt(6, 2), greedy(6)}});
  }
  std::vector<std::string> order;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json j = nlohmann::json::parse(line);
    if (j.contains("step")) order.push_back("step");
    if (j.contains("request") && j["request"] == "length") order.push_back(j["request_id"]);
  }
  std::remove(path.c_str());
  CHECK(order == std::vector<std::string>{"step", "step", "short", "step", "step", "step", "step", "long"});
}

TEST_CASE("an id is free as soon as its request is over, also where a static batch holds its slot") {
  for (const char* scheduling : {"continuous", "static"}) {
    CAPTURE(scheduling);
    nano::EngineOptions options = micro_options();
    options.scheduling = scheduling;
    EngineUnderTest run(options);
    const Request brief{"short", make_prompt(6, 1), greedy(2)}, other{"gone", make_prompt(6, 2), greedy(9)};
    run.add(brief);
    run.add(other);
    run.add({"long", make_prompt(6, 3), greedy(9)});
    for (int i = 0; i < 4; ++i) run.step();
    run.engine().abort("gone");
    CHECK(run.engine().num_live_requests() == 1);
    CHECK(run.engine().num_live_sequences() == (options.scheduling == "static" ? 3 : 1));
    run.add(brief);
    run.add(other);
    while (run.engine().has_work()) run.step();
    CHECK(run.answers.at("short").ids.size() == 2 + 2);
    CHECK(run.answers.at("gone").ids.size() == 4 + 9);
    check_idle(run);
  }
}

// Aborts and failures at random moments, under every scheduling: nothing is left in any of the engine's maps.
TEST_CASE("random aborts and failures in every state leave nothing behind") {
  int64_t aborted = 0, failed = 0, unstarted = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    uint32_t state = seed * 2654435761u + 7;
    auto random = [&](uint32_t below) { return (state = state * 1664525u + 1013904223u) / 65536 % below; };
    nano::EngineOptions options = small_blocks();
    options.scheduling = seed % 2 ? "static" : "continuous";
    options.kv_cache = seed % 5 != 0;
    options.max_num_batched_tokens = options.kv_cache ? 10 : 128;
    options.max_num_seqs = 3;
    options.num_gpu_blocks_override = 40;
    EngineUnderTest run(options);
    poison(run, [&](const nano::Sequence&, int32_t) { return random(25) == 0; });
    for (uint32_t i = 0; i < 8; ++i) {
      Request request{std::to_string(i), make_prompt(int32_t(1 + random(25)), i),
                      sampled(int32_t(1 + random(8)), i)};
      request.params.n = int32_t(1 + random(3));
      if (random(2)) request.params.prompt_logprobs = 0;
      run.add(request);
      for (uint32_t steps = random(4); steps > 0 && run.engine().has_work(); --steps) run.step();
      if (random(3) == 0) {
        const std::string victim = std::to_string(random(i + 1));
        unstarted += run.answers.count(victim) == 0;
        run.engine().abort(victim), ++aborted;
      }
      if (random(5) == 0) run.engine().finish(std::to_string(random(i + 1)), 0, FinishReason::stop);
    }
    while (run.engine().has_work()) run.step();
    for (const auto& [id, answer] : run.answers) failed += answer.finish_reason == FinishReason::error;
    check_idle(run);
  }
  CHECK(aborted > 50);
  CHECK(failed > 50);
  CHECK(unstarted > 10);
}
