// core/sampler: the cases P1, P2 and P5 from bug reports, masks, penalties, failures, log-probabilities.
// The statistics and the comparison with a naive sampler are in test_sampler_random.cpp.
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "catch.h"
#include "core/sampler.h"
#include "data.h"

using namespace nano;
using nlohmann::json;

namespace {

const float kInf = std::numeric_limits<float>::infinity();

json cases() { return json::parse(std::ifstream(nano_test::data_path("golden/give-p-sampler.json"))); }

SamplingParams params_of(const json& j) {
  SamplingParams p;
  p.temperature = j.value("temp", p.temperature);
  p.top_k = j.value("top_k", p.top_k);
  p.top_p = j.value("top_p", p.top_p);
  p.repetition_penalty = j.value("repetition_penalty", p.repetition_penalty);
  p.presence_penalty = j.value("presence_penalty", p.presence_penalty);
  p.frequency_penalty = j.value("frequency_penalty", p.frequency_penalty);
  return p;
}

SamplingParams greedy() {
  SamplingParams p;
  p.temperature = 0;
  return p;
}

std::vector<float> probs_of(std::vector<float> row, const SamplingParams& p) {
  filter_to_probs(row, p);
  return row;
}

SampledToken sample_copy(std::vector<float> logits, const SamplingParams& p, const SamplerContext& c = {}) {
  return sample(logits, p, c);
}

}  // namespace

TEST_CASE("P1 temperature 0 or tiny: argmax with a fixed tie rule, no inf, no NaN") {
  int rows = 0;
  const json all = cases();
  for (const json& row : all["vectors"]) {
    if (!row.contains("expected_token")) continue;
    ++rows;
    INFO(row["name"].get<std::string>());
    SamplingParams raw = params_of(row["params"]), validated = raw;
    validate(validated, 100);
    const auto logits = row["logits"].get<std::vector<float>>();
    for (const SamplingParams& p : {raw, validated})
      for (uint32_t position = 0; position < 50; ++position) {
        SamplerContext context;
        context.key = {1, position};
        CHECK(sample_copy(logits, p, context).id == row["expected_token"].get<int32_t>());
      }
  }
  CHECK(rows == 4);
  // The same with the winner elsewhere: an answer of token 0 by accident must not pass.
  for (float t : {0.0f, 1e-9f, 1e-4f}) {
    SamplingParams p;
    p.temperature = t;
    CHECK(sample_copy({-30000, 29990, -30000, 30000, 29990}, p).id == 3);
  }
}

TEST_CASE("P2 temperature, top_k and top_p give the stated probabilities; top_k 0 and -1 are off") {
  int rows = 0;
  const json all = cases();
  for (const json& row : all["vectors"]) {
    if (!row.contains("expected_probs")) continue;
    ++rows;
    INFO(row["name"].get<std::string>());
    const auto probs = probs_of(row["logits"].get<std::vector<float>>(), params_of(row["params"]));
    for (size_t id = 0; id < probs.size(); ++id) {
      CAPTURE(id);
      const double expected = row["expected_probs"].value(std::to_string(id), 0.0);
      CHECK(std::abs(probs[id] - expected) <= 6e-7);  // the file rounds to six decimals
      CHECK((probs[id] == 0) == (expected == 0));
    }
  }
  CHECK(rows == 9);
}

TEST_CASE("P2 2000 draws with top_k off hit more than one token, and seldom token 0") {
  for (int32_t top_k : {0, -1}) {
    CAPTURE(top_k);
    SamplingParams p;
    p.top_k = top_k;
    std::vector<int> count(5);
    for (uint32_t position = 0; position < 2000; ++position) {
      SamplerContext context;
      context.key = {42, position};
      const int32_t id = sample_copy({-3, 1, 2, 0.5f, -1}, p, context).id;
      REQUIRE(id >= 0);
      ++count[id];
    }
    CHECK(std::set<int>(count.begin(), count.end()).count(0) == 0);  // all five tokens came up
    CHECK(count[2] > count[1]);
    CHECK(count[0] < 30);  // p = 0.0041
  }
}

TEST_CASE("P5 presence and frequency count the output only, repetition the prompt too") {
  const json block = cases()["penalties"];
  const auto prompt = block["prompt"].get<std::vector<int32_t>>();
  int rows = 0;
  for (const json& row : block["cases"]) {
    ++rows;
    INFO(row.dump());
    const auto output = row.value("output", block["output"].get<std::vector<int32_t>>());
    auto logits = block["logits"].get<std::vector<float>>();
    SamplerContext context;
    context.prompt = prompt;
    context.output = output;
    apply_penalties(logits, params_of(row["params"]), context);
    CHECK(logits == row["expected"].get<std::vector<float>>());  // all exact in float
  }
  CHECK(rows == 4);
}

TEST_CASE("penalties: repetition, then frequency, then presence; after the bias; ids without a logit pass") {
  SamplingParams p = greedy();
  p.repetition_penalty = 2;
  p.frequency_penalty = 0.5f;
  p.presence_penalty = 0.25f;
  const std::vector<int32_t> prompt = {1, 1, 900, -1}, output = {0, 1, 0, 900};
  SamplerContext context;
  context.prompt = prompt;
  context.output = output;
  std::vector<float> logits = {1, -1, 3};
  apply_penalties(logits, p, context);
  CHECK(logits == std::vector<float>{0.5f - 1.0f - 0.25f, -2.0f - 0.5f - 0.25f, 3});

  SamplingParams biased = greedy();  // (-1 + 2) / 2 = 0.5 beats 0.25; the other order, -1·2 + 2 = 0, does not
  biased.repetition_penalty = 2;
  biased.logit_bias = {{0, 2.0f}};
  const std::vector<int32_t> zero = {0};
  context.prompt = zero;
  context.output = {};
  CHECK(sample_copy({-1, 0.25f}, biased, context).id == 0);
}

TEST_CASE("masks: allowed ids, min_tokens and bias; a bias cannot bring back a masked token") {
  SamplingParams p = greedy();
  const std::vector<int32_t> stop_ids = {3, 77}, output = {1, 1};
  SamplerContext context;
  context.stop_ids = stop_ids;
  context.output = output;
  auto masked = [&](const SamplingParams& q) {
    std::vector<float> logits = {0, 1, 2, 3};
    apply_masks_and_bias(logits, q, context);
    return logits;
  };
  CHECK(masked(p) == std::vector<float>{0, 1, 2, 3});
  p.allowed_token_ids = {2, 0, 2};
  CHECK(masked(p) == std::vector<float>{0, -kInf, 2, -kInf});
  p.logit_bias = {{0, 5.0f}, {1, 100.0f}};
  CHECK(masked(p) == std::vector<float>{5, -kInf, 2, -kInf});
  p = greedy();
  p.min_tokens = 2;  // two tokens are out: reached
  CHECK(masked(p) == std::vector<float>{0, 1, 2, 3});
  p.min_tokens = 3;
  CHECK(masked(p) == std::vector<float>{0, 1, 2, -kInf});
  p.logit_bias = {{3, 100.0f}};
  CHECK(masked(p) == std::vector<float>{0, 1, 2, -kInf});
  CHECK(sample_copy({0, 1, 2, 3}, p, context).id == 2);
}

TEST_CASE("top_k keeps ties, top_p keeps the lower id among equals and always the best") {
  SamplingParams p;
  p.top_k = 2;
  CHECK(probs_of({1, 3, 1, 0, 1}, p)[3] == 0);
  for (int id : {0, 2, 4}) CHECK(probs_of({1, 3, 1, 0, 1}, p)[id] > 0);
  p = SamplingParams();
  p.top_p = 0.5f;
  CHECK(probs_of({2, 2, 2, 2, 2, 2, 2, 2}, p) == std::vector<float>{0.25f, 0.25f, 0.25f, 0.25f, 0, 0, 0, 0});
  p.top_p = 1e-30f;
  CHECK(probs_of({2, 2, 2, 2}, p) == std::vector<float>{1, 0, 0, 0});
  CHECK(probs_of({1, 2, 3, 2}, p) == std::vector<float>{0, 0, 1, 0});
  p = SamplingParams();
  p.min_p = 1;
  CHECK(probs_of({1, 2, 2, 0}, p) == std::vector<float>{0, 0.5f, 0.5f, 0});
  p = greedy();
  CHECK(probs_of({1, 2, 2, 0}, p) == std::vector<float>{0, 1, 0, 0});
}

TEST_CASE("a row of NaN, +infinity or only -infinity fails with a reason, and is never token 0") {
  struct Row {
    std::vector<float> logits;
    const char* reason;
  };
  const std::vector<Row> rows = {{{NAN, 1, 2}, "NaN"},       {{1, NAN, 2}, "token 1 is NaN"},
                                 {{1, 2, NAN}, "NaN"},       {{-kInf, NAN, -kInf}, "NaN"},
                                 {{NAN, NAN, NAN}, "NaN"},   {{1, kInf, 2}, "token 1 is +infinity"},
                                 {{kInf, kInf, NAN}, "inf"}, {{-kInf, -kInf, -kInf}, "every logit"},
                                 {{}, "every logit"}};
  for (const Row& row : rows) {
    INFO(row.reason);
    CHECK(argmax(row.logits) == -1);
    for (float temperature : {0.0f, 1.0f}) {
      SamplingParams p;
      p.temperature = temperature;
      p.logprobs = 2;
      p.top_k = 2;
      p.top_p = 0.5f;
      for (const SampledToken& token : {sample_copy(row.logits, p), sample_argmax(row.logits, p)}) {
        CHECK(token.id == -1);
        CHECK(token.error.find(row.reason) != std::string::npos);
        CHECK(token.logprobs.empty());
      }
    }
  }
  SamplingParams p = greedy();  // a mask does not hide that the model is broken
  p.allowed_token_ids = {0};
  CHECK(sample_copy({1, NAN}, p).id == -1);
}

TEST_CASE("a row in which masks or penalties leave nothing fails with a reason") {
  const std::vector<int32_t> eos = {2};
  SamplerContext context;
  context.stop_ids = eos;
  context.prompt = eos;
  for (float temperature : {0.0f, 1.0f}) {
    SamplingParams p;
    p.temperature = temperature;
    p.allowed_token_ids = {2};
    p.min_tokens = 1;
    const SampledToken masked = sample_copy({0, 1, 2}, p, context);
    CHECK(masked.id == -1);
    CHECK(masked.error.find("allowed_token_ids") != std::string::npos);
    p = SamplingParams();
    p.temperature = temperature;
    p.repetition_penalty = 1e-38f;  // 30 / 1e-38 overflows
    const SampledToken overflow = sample_copy({0, 1, 30}, p, context);
    CHECK(overflow.id == -1);
    CHECK(overflow.error.find("+infinity") != std::string::npos);
  }
}

TEST_CASE("argmax of long rows: the largest, NaN and infinity are found wherever they are") {
  for (size_t V : {255, 256, 257, 1000})
    for (size_t at : {size_t(0), size_t(254), V / 2, V - 1}) {
      CAPTURE(V, at);
      std::vector<float> row(V, -2.0f);
      row[at] = 3;
      CHECK(argmax(row) == int32_t(at));
      row[V - 1] = 3;
      CHECK(argmax(row) == int32_t(at));
      for (float bad : {NAN, kInf}) {
        std::vector<float> broken(V, -2.0f);
        broken[at] = bad;
        CHECK(argmax(broken) == -1);
      }
      row.assign(V, -kInf);
      CHECK(argmax(row) == -1);
      row[at] = -1e30f;
      CHECK(argmax(row) == int32_t(at));
    }
}

TEST_CASE("each mask and penalty alone changes a greedy token") {
  const std::vector<int32_t> stop = {3}, output = {3};
  SamplerContext context;
  auto chosen = [&](const SamplingParams& p) { return sample_copy({0, 1, 2, 3}, p, context).id; };
  SamplingParams p = greedy();
  CHECK(chosen(p) == 3);
  p.min_tokens = 3;
  CHECK(chosen(p) == 3);
  context.stop_ids = stop;
  CHECK(chosen(p) == 2);
  p = greedy(), p.allowed_token_ids = {0, 1};
  CHECK(chosen(p) == 1);
  p = greedy(), p.logit_bias[0] = 10;
  CHECK(chosen(p) == 0);
  context.output = output;
  p = greedy(), p.presence_penalty = 1.5f;
  CHECK(chosen(p) == 2);
  p = greedy(), p.frequency_penalty = 1.5f;
  CHECK(chosen(p) == 2);
  p = greedy(), p.repetition_penalty = 3;
  CHECK(chosen(p) == 2);
}

TEST_CASE("argmax: lowest id among equals, also with -infinity and zeros of both signs") {
  CHECK(argmax(std::vector<float>{1, 3, 3, 0}) == 1);
  CHECK(argmax(std::vector<float>{-kInf, -5, -kInf}) == 1);
  CHECK(argmax(std::vector<float>{-1, -0.0f, 0.0f}) == 1);
  CHECK(argmax(std::vector<float>{std::numeric_limits<float>::lowest()}) == 0);
  CHECK(argmax(std::vector<float>{0, std::numeric_limits<float>::max()}) == 1);
}

TEST_CASE("log-probabilities: k or k + 1 entries, the sampled token first, ranks with ties by id") {
  const std::vector<float> logits = {1, 3, 3, -2, 2};
  double sum = 0;
  for (float x : logits) sum += std::exp(double(x));
  auto ids = [](const std::vector<TokenLogprob>& list) {
    std::vector<int32_t> out;
    for (const TokenLogprob& t : list) out.push_back(t.id);
    return out;
  };
  using Ids = std::vector<int32_t>;
  CHECK(ids(top_logprobs(logits, 3, 0)) == Ids{3});
  CHECK(ids(top_logprobs(logits, 3, 2)) == Ids{3, 1, 2});
  CHECK(ids(top_logprobs(logits, 2, 2)) == Ids{2, 1});
  CHECK(ids(top_logprobs(logits, 4, -1)) == Ids{4, 1, 2, 0, 3});
  CHECK(ids(top_logprobs(logits, 1, 2000000000)) == Ids{1, 2, 4, 0, 3});
  const std::vector<int32_t> rank_of = {4, 1, 2, 5, 3};
  for (int32_t id = 0; id < 5; ++id)
    for (const TokenLogprob& t : top_logprobs(logits, id, 3)) {
      CAPTURE(id, t.id);
      CHECK(t.rank == rank_of[t.id]);
      CHECK(std::abs(t.logprob - (logits[t.id] - std::log(sum))) <= 1e-6);
    }
  const std::vector<float> large = {30000, 29999};  // no overflow
  CHECK(std::abs(top_logprobs(large, 1, 1)[0].logprob + 1.3132617) <= 1e-6);
  CHECK(top_logprobs(std::vector<float>{1, NAN}, 0, 2).empty());
}

TEST_CASE("log-probabilities are of the raw logits, whatever masks, penalties and temperature did") {
  const std::vector<float> logits = {1, 3, 0, -2};
  const auto expected = top_logprobs(logits, 3, 2);
  REQUIRE(expected.size() == 3);
  for (float temperature : {0.0f, 0.7f}) {
    SamplingParams p;
    p.temperature = temperature;
    p.allowed_token_ids = {3};
    p.logit_bias = {{3, 50.0f}};
    p.logprobs = 2;
    const SampledToken token = sample_copy(logits, p);
    CHECK(token.id == 3);
    CHECK(token.error.empty());
    REQUIRE(token.logprobs.size() == 3);
    for (int i = 0; i < 3; ++i) {
      CHECK(token.logprobs[i].id == expected[i].id);
      CHECK(token.logprobs[i].logprob == expected[i].logprob);
      CHECK(token.logprobs[i].rank == expected[i].rank);
    }
    p.logprobs.reset();
    CHECK(sample_copy(logits, p).logprobs.empty());
  }
  SamplingParams p;
  p.logprobs = 0;
  CHECK(sample_argmax(logits, p).id == 1);
  CHECK(sample_argmax(logits, p).logprobs.size() == 1);
}
