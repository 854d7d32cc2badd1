// The engine with a real (micro) model: what a request gets must not depend on its neighbours, on chunks, on what
// is cached or on what went wrong elsewhere.
#include "catch.h"

#include <cmath>
#include <limits>

#include "base/error.h"  // Error
#include "engine_fixture.h"

using namespace nano_test;
using nano::FinishReason;

namespace {

// Makes the sampler choose `id` (a bias of +100 beats everything these logits can do).
nano::SamplingParams forced(int32_t id, int32_t max_tokens) {
  nano::SamplingParams params = greedy(max_tokens);
  params.ignore_eos = false;
  params.logit_bias[id] = 100.0f;
  return params;
}

}  // namespace

TEST_CASE("P4 a seeded request gives the same tokens alone, in any company, twice, and after preemption") {
  const Request request{"seeded", make_prompt(20, 1), sampled(24, 77)};
  const std::vector<int32_t> alone = EngineUnderTest(small_blocks()).run({request}).at("seeded").ids;
  REQUIRE(alone.size() == 24);

  auto other = [](const char* id, uint32_t salt, std::optional<int64_t> seed) {
    Request r{id, make_prompt(15, salt), sampled(20, 0)};
    r.params.seed = seed;
    return r;
  };
  SECTION("with unseeded ones before and after it") {
    const Answers got = EngineUnderTest(small_blocks())
                            .run({other("a", 2, {}), request, other("b", 3, {}), other("c", 4, {})});
    CHECK(got.at("seeded").ids == alone);
    CHECK(got.at("a").ids != got.at("b").ids);
  }
  SECTION("with other seeds, and in another order") {
    const Answers got =
        EngineUnderTest(small_blocks()).run({other("a", 2, 1), other("b", 3, 2), other("c", 4, 3), request});
    CHECK(got.at("seeded").ids == alone);
  }
  SECTION("twice at once") {
    Request twin = request;
    twin.id = "twin";
    const Answers got = EngineUnderTest(small_blocks()).run({request, twin});
    CHECK(got.at("seeded").ids == alone);
    CHECK(got.at("twin").ids == alone);
  }
  SECTION("after preemption") {
    nano::EngineOptions options = small_blocks();
    options.num_gpu_blocks_override = 13;  // 44 tokens need 11
    EngineUnderTest run(options);
    const Answers got = run.run({other("a", 2, {}), other("b", 3, {}), request});
    CHECK(run.engine().scheduler().num_preemptions() > 0);
    CHECK(got.at("seeded").ids == alone);
  }
  SECTION("another seed gives other tokens") {
    Request changed = request;
    changed.params.seed = 78;
    CHECK(EngineUnderTest(small_blocks()).run({changed}).at("seeded").ids != alone);
  }
}

TEST_CASE("R1 greedy answers do not depend on batch size, slot or arrival") {
  const Request request{"x", make_prompt(23, 5), greedy(100)};
  for (const char* device : {"ref", "cpu"}) {
    nano::EngineOptions options = micro_options(device);
    INFO(device);
    const Answer alone = EngineUnderTest(options).run({request}).at("x");
    REQUIRE(alone.ids.size() == 100);
    EngineUnderTest run(options);
    for (int i = 0; i < 16; ++i) {  // a copy and a stranger in turn, a few steps apart
      Request r = request;
      if (i % 2 == 1) r.prompt = make_prompt(10 + i, uint32_t(50 + i));
      r.id = std::to_string(i);
      run.add(r);
      for (int step = 0; step < i % 4; ++step) run.step();
    }
    while (run.engine().has_work()) run.step();
    for (int i = 0; i < 16; i += 2) CHECK(run.answers.at(std::to_string(i)) == alone);
    CHECK_FALSE(run.answers.at("1") == alone);
  }
}

TEST_CASE("K1 chunks of any size give the same answer in ceil(29 / chunk) prefill steps") {
  const Request request{"x", make_prompt(29, 9), greedy(8)};
  const Answer whole = EngineUnderTest(small_blocks()).run({request}).at("x");
  for (int chunk : {1, 3, 4, 5, 28, 29, 64})
    for (bool caching : {true, false}) {
      INFO("chunk " << chunk << " caching " << caching);
      nano::EngineOptions options = small_blocks();
      options.max_num_batched_tokens = chunk;
      options.max_num_seqs = 1;
      options.enable_prefix_caching = caching;
      EngineUnderTest run(options);
      run.add(request);
      int steps = 0;
      int32_t most_used = 0;
      while (run.answers["x"].ids.empty()) {
        run.step(), ++steps;
        most_used =
            std::max(most_used, run.engine().blocks().num_blocks() - run.engine().blocks().num_free());
      }
      CHECK(steps == (29 + chunk - 1) / chunk);
      CHECK(most_used <= 8);  // 29 tokens in blocks of 4
      while (run.engine().has_work()) run.step();
      CHECK(run.answers.at("x") == whole);
      check_idle(run);
    }
}

TEST_CASE("B1 a prompt that is wholly cached still computes its last token") {
  for (int32_t length : {4, 8, 12}) {
    INFO(length);
    EngineUnderTest run(small_blocks());
    const Request request{"x", make_prompt(length, 3), greedy(5)};
    const Answer cold = run.run({request}).at("x");
    const Answer warm = run.run({request}).at("x");
    CHECK(cold.num_cached_tokens == 0);
    CHECK(warm.num_cached_tokens == length - 4);  // all blocks but the one with the last token
    CHECK(warm.ids == cold.ids);
    check_idle(run);
  }
  // Bits too: one engine's first answer against another's second.
  EngineUnderTest once(small_blocks()), twice(small_blocks());
  const Request request{"x", make_prompt(8, 3), greedy(5)};
  Request prime = request;
  prime.id = "prime";
  twice.run({prime});
  CHECK(twice.run({request}).at("x") == once.run({request}).at("x"));
}

TEST_CASE("B2 a hundred requests one after the other: references drop, content is evicted") {
  nano::EngineOptions options = small_blocks();
  options.num_gpu_blocks_override = 16;
  options.max_model_len = 60;
  EngineUnderTest run(options);
  for (int i = 0; i < 100; ++i) {
    const Request request{std::to_string(i), make_prompt(12 + i % 9, uint32_t(i % 40)), greedy(6)};
    CHECK(run.run({request}).at(request.id).ids.size() == 6);
    check_idle(run);
  }
  CHECK(run.engine().blocks().num_evictions() > 0);
  const double rate =
      double(run.engine().blocks().hit_tokens()) / double(run.engine().blocks().queried_tokens());
  CHECK((rate >= 0 && rate <= 1));
}

TEST_CASE("B2 abort in each state leaves nothing behind") {
  for (const char* scheduling : {"continuous", "static"}) {
    INFO(scheduling);
    nano::EngineOptions options = small_blocks();
    options.scheduling = scheduling;
    options.max_num_batched_tokens = 10;
    options.max_num_seqs = 2;
    EngineUnderTest run(options);
    const Request long_prompt{"a", make_prompt(29, 1), greedy(20)};
    run.add(long_prompt);
    run.engine().abort("a");  // while waiting
    while (run.engine().has_work()) run.step();
    check_idle(run);
    run.add(long_prompt);
    run.step();
    run.engine().abort("a");  // after chunk 1 of 3
    while (run.engine().has_work()) run.step();
    check_idle(run);
    run.add(long_prompt);
    for (int i = 0; i < 6; ++i) run.step();
    CHECK(run.answers.at("a").ids.size() >= 2);
    run.engine().abort("a");  // during decode
    run.engine().abort("a");  // twice
    run.engine().abort("nobody");
    while (run.engine().has_work()) run.step();
    check_idle(run);
    const Request good{"good", make_prompt(5, 2), greedy(3)};
    CHECK(run.run({good}).at("good").ids.size() == 3);
  }
}

TEST_CASE("B6 prompt log-probabilities do not read the prefix cache, whole or in chunks") {
  Request request{"x", make_prompt(21, 4), greedy(3)};
  request.params.prompt_logprobs = 2;
  auto values = [](const Answer& answer) {
    std::vector<float> list;
    for (const nano::SampledToken& token : answer.prompt_logprobs) {
      CHECK((token.logprobs.size() == 2 || token.logprobs.size() == 3));
      list.push_back(token.logprobs.at(0).logprob);
    }
    return list;
  };
  EngineUnderTest run(small_blocks());
  const Answer cold = run.run({request}).at("x");
  const Answer warm = run.run({request}).at("x");
  CHECK(cold.prompt_logprobs.size() == 20);  // the first token has none
  for (size_t i = 0; i < cold.prompt_logprobs.size(); ++i)
    CHECK(cold.prompt_logprobs[i].id == request.prompt[i + 1]);
  CHECK(values(warm) == values(cold));
  CHECK(warm.num_cached_tokens == 0);
  nano::EngineOptions chunks = small_blocks();
  chunks.max_num_batched_tokens = 5;
  chunks.max_num_seqs = 2;
  CHECK(values(EngineUnderTest(chunks).run({request}).at("x")) == values(cold));
  // After preemption the rows that were delivered are not delivered again.
  nano::EngineOptions tight = small_blocks();
  tight.num_gpu_blocks_override = 9;
  EngineUnderTest squeezed(tight);
  request.params.max_tokens = 10;
  const Answers both = squeezed.run({{"first", make_prompt(9, 8), greedy(15)}, request});
  CHECK(squeezed.engine().scheduler().num_preemptions() > 0);
  CHECK(values(both.at("x")) == values(cold));
}

TEST_CASE("F4 any EOS id ends an answer; ignore_eos ignores all of them") {
  nano::EngineOptions options = micro_options();
  auto loaded = nano::load_engine(options, 0, {1, 7, 9});
  auto run = [&](const nano::SamplingParams& params) {
    loaded->engine->add_request("x", make_prompt(5, 1), params);
    nano::SequenceOutput last;
    size_t tokens = 0;
    while (loaded->engine->has_work())
      for (auto& out : loaded->engine->step()) tokens += out.tokens.size(), last = out;
    CHECK(last.tokens.size() == 1);
    return std::pair(tokens, last);
  };
  for (int32_t id : {1, 7, 9}) {
    const auto [tokens, last] = run(forced(id, 5));
    CHECK(tokens == 1);
    CHECK(last.finish_reason == FinishReason::stop);
    CHECK(last.stop_token ==
          (id == 1 ? -1 : id));  // the first EOS has no stop_reason, the others have (vLLM)
    nano::SamplingParams ignoring = forced(id, 5);
    ignoring.ignore_eos = true;
    const auto [all, end] = run(ignoring);
    CHECK(all == 5);
    CHECK(end.finish_reason == FinishReason::length);
  }
  nano::SamplingParams stop_id = forced(20, 5);
  stop_id.stop_token_ids = {20};
  CHECK(run(stop_id).second.stop_token == 20);
  nano::SamplingParams minimum = forced(7, 5);
  minimum.min_tokens = 3;
  CHECK(run(minimum).first == 4);  // masked three times, then it wins
}

TEST_CASE("F6 bad requests are refused one by one and hurt nobody") {
  EngineUnderTest run(micro_options());
  const Request good{"good", make_prompt(5, 2), greedy(3)};
  auto refused = [&](const Request& bad) {
    CHECK_THROWS_AS(run.add(bad), nano::Error);
    CHECK(run.run({good}).at("good").ids.size() == 3);
    check_idle(run);
  };
  refused({"empty", {}, greedy(4)});
  refused({"too long", make_prompt(128, 1), greedy(4)});
  refused({"outside", {5, 320}, greedy(4)});
  refused({"negative", {5, -1}, greedy(4)});
  Request bad_range{"range", make_prompt(4, 1), greedy(4)};
  bad_range.params.top_p = 1.5f;
  refused(bad_range);
  run.add(good);
  CHECK_THROWS_AS(run.engine().add_request("good", good.prompt, good.params),
                  nano::Error);  // the id is in use
  while (run.engine().has_work()) run.step();
}

TEST_CASE("S1 a prompt that can never fit the pool is refused at once and blocks nobody") {
  nano::EngineOptions options = small_blocks();
  options.num_gpu_blocks_override = 6;
  EngineUnderTest run(options);
  CHECK(error_of([&] {
          run.add({"big", make_prompt(30, 1), greedy(4)});
        }).find("block") != std::string::npos);
  CHECK(run.run({{"small", make_prompt(4, 1), greedy(4)}}).at("small").ids.size() == 4);
}

TEST_CASE("NaN logits fail that request with a message; its neighbour goes on") {
  EngineUnderTest run(micro_options());
  auto hash_rows = run.engine().on_logits;
  run.engine().on_logits = [&](const nano::Sequence& seq, int32_t position, std::span<const float> row) {
    hash_rows(seq, position, row);
    if (seq.id == 0 && seq.num_output_tokens() == 2)  // the hook sees the very row that is sampled next
      const_cast<float&>(row[5]) = std::numeric_limits<float>::quiet_NaN();
  };
  const Answers got =
      run.run({{"sick", make_prompt(6, 1), greedy(8)}, {"well", make_prompt(6, 2), greedy(8)}});
  CHECK(got.at("sick").finish_reason == FinishReason::error);
  CHECK_FALSE(got.at("sick").error.empty());
  CHECK(got.at("sick").ids.size() == 2);
  CHECK(got.at("well").ids.size() == 8);
  check_idle(run);
}

TEST_CASE("n answers: child i is the request with seed + i, and starts from the prompt's blocks") {
  for (bool caching : {true, false}) {
    INFO(caching);
    nano::EngineOptions options = small_blocks();
    options.enable_prefix_caching = caching;
    Request request{"x", make_prompt(18, 6), sampled(10, 40)};
    request.params.n = 3;
    EngineUnderTest run(options);
    run.add(request);
    run.step();  // child 0's prompt
    run.step();  // the others join it
    const int32_t used = run.engine().blocks().num_blocks() - run.engine().blocks().num_free();
    CHECK(used == 4 + 3 * 1);  // 4 full blocks shared, a tail each (19 tokens need 5)
    while (run.engine().has_work()) run.step();
    for (int i = 0; i < 3; ++i) {
      const Request alone{"alone", request.prompt, sampled(10, 40 + i)};
      CHECK(run.answers.at(answer_key("x", i)).ids == EngineUnderTest(options).run({alone}).at("alone").ids);
    }
    check_idle(run);
    run.add(request);
    run.engine().abort("x");  // with children that have not started
    check_idle(run);
  }
}

TEST_CASE("--no-sampler takes the most likely token whatever the parameters say") {
  nano::EngineOptions options = micro_options();
  options.sampler = false;
  const Request request{"x", make_prompt(9, 3), sampled(8, 5)};
  Request plain = request;
  plain.params = greedy(8);
  CHECK(EngineUnderTest(options).run({request}).at("x").ids ==
        EngineUnderTest(micro_options()).run({plain}).at("x").ids);
}

TEST_CASE("M1 the bytes reported are the bytes allocated") {
  for (const char* device : {"ref", "cpu"}) {
    INFO(device);
    EngineUnderTest run(micro_options(device));
    const nano::MemoryPlan& plan = run.loaded().resolved.memory;
    const nano::Backend& backend = *run.loaded().backend;
    auto close = [](int64_t reported, int64_t allocated) {
      return std::fabs(double(reported - allocated)) <= 0.01 * double(allocated);
    };
    CHECK(close(plan.weights, backend.allocated(nano::Memory::weights)));
    CHECK(close(plan.kv_bytes, backend.allocated(nano::Memory::kv_cache)));
    CHECK(close(plan.scratch, backend.allocated(nano::Memory::scratch)));
  }
}
