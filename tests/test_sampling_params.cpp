// core/sampling_params: the range of every field, and what validate changes.
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "base/error.h"            // Error
#include "catch.h"                 // Catch2, version 2 or 3
#include "core/sampling_params.h"  // SamplingParams, validate

using namespace nano;

namespace {

constexpr int32_t kVocab = 100;

// "" when valid, else the Error's `where`.
std::string refused_at(SamplingParams p, int32_t max_logprobs = 20) {
  try {
    validate(p, kVocab, max_logprobs);
  } catch (const Error& e) {
    CHECK(!e.problem.empty());
    CHECK(!e.hint.empty());
    return e.where;
  }
  return "";
}

using Change = std::function<void(SamplingParams&)>;
SamplingParams with(const Change& change) {
  SamplingParams p;
  change(p);
  return p;
}

void check_float(const char* field, float SamplingParams::*member, std::initializer_list<float> good,
                 std::initializer_list<float> bad) {
  INFO(field);
  for (float x : good) {
    CAPTURE(x);
    CHECK(refused_at(with([&](SamplingParams& p) { p.*member = x; })) == "");
  }
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> all_bad(bad);
  all_bad.insert(all_bad.end(), {NAN, inf, -inf});
  for (float x : all_bad) {
    CAPTURE(x);
    CHECK(refused_at(with([&](SamplingParams& p) { p.*member = x; })) ==
          std::string("SamplingParams.") + field);
  }
}

void check_int(const char* field, int32_t SamplingParams::*member, std::initializer_list<int32_t> good,
               std::initializer_list<int32_t> bad) {
  INFO(field);
  for (int32_t x : good) {
    CAPTURE(x);
    CHECK(refused_at(with([&](SamplingParams& p) { p.*member = x; })) == "");
  }
  for (int32_t x : bad) {
    CAPTURE(x);
    CHECK(refused_at(with([&](SamplingParams& p) { p.*member = x; })) ==
          std::string("SamplingParams.") + field);
  }
}

const int32_t kMin = std::numeric_limits<int32_t>::min(), kMax = std::numeric_limits<int32_t>::max();

}  // namespace

TEST_CASE("validate: the defaults are vLLM's and are valid") {
  const SamplingParams p;
  CHECK(refused_at(p) == "");
  CHECK(p.n == 1);
  CHECK(p.temperature == 1.0f);
  CHECK(p.top_p == 1.0f);
  CHECK(p.top_k == 0);
  CHECK(p.max_tokens == 16);
  CHECK(!p.seed);
  CHECK(!p.logprobs);
}

TEST_CASE("validate: ranges of the floats; NaN and infinities are refused") {
  check_float("temperature", &SamplingParams::temperature, {0.0f, 1e-9f, 1e-4f, 1.0f, 2.0f}, {-0.1f, 2.1f});
  check_float("top_p", &SamplingParams::top_p, {1e-30f, 0.5f, 1.0f}, {0.0f, -0.5f, 1.01f});
  check_float("min_p", &SamplingParams::min_p, {0.0f, 0.5f, 1.0f}, {-0.01f, 1.01f});
  check_float("repetition_penalty", &SamplingParams::repetition_penalty, {0.01f, 1.0f, 5.0f}, {0.0f, -1.0f});
  check_float("frequency_penalty", &SamplingParams::frequency_penalty, {-2.0f, 0.0f, 2.0f}, {-2.1f, 2.1f});
  check_float("presence_penalty", &SamplingParams::presence_penalty, {-2.0f, 0.0f, 2.0f}, {-2.1f, 2.1f});
}

TEST_CASE("validate: ranges of the integers") {
  check_int("n", &SamplingParams::n, {1, 2, 16384}, {0, -1, 16385, 1000000, kMin, kMax});
  check_int("top_k", &SamplingParams::top_k, {-1, 0, 1, 1000, kMax}, {-2, kMin});
  check_int("min_tokens", &SamplingParams::min_tokens, {0, 1, 16}, {-1, 17, kMin, kMax});
  for (int32_t x : {0, -1, kMin}) {
    CAPTURE(x);
    CHECK(refused_at(with([&](SamplingParams& p) { p.max_tokens = x; })) == "SamplingParams.max_tokens");
  }
  CHECK(refused_at(with([](SamplingParams& p) { p.max_tokens = 1; })) == "");
  // No max_tokens: any min_tokens.
  CHECK(refused_at(with([](SamplingParams& p) { p.max_tokens.reset(), p.min_tokens = kMax; })) == "");
}

TEST_CASE("validate: several answers of a greedy request would all be the same") {
  SamplingParams p;
  p.n = 2;
  CHECK(refused_at(p) == "");
  p.temperature = 0;
  CHECK(refused_at(p) == "SamplingParams.n");
  for (float t : {1e-40f, 1e-9f, 9e-6f, 1e-4f}) {  // raised to 0.01 as in vLLM, so they are not greedy
    CAPTURE(t);
    p.temperature = t;
    CHECK(refused_at(p) == "");
  }
}

TEST_CASE("validate: an empty stop string is refused, and so are absurdly many") {
  CHECK(refused_at(with([](SamplingParams& p) { p.stop = {"a", "b"}; })) == "");
  CHECK(refused_at(with([](SamplingParams& p) { p.stop = {""}; })) == "SamplingParams.stop");
  CHECK(refused_at(with([](SamplingParams& p) { p.stop = {"a", ""}; })) == "SamplingParams.stop");
  CHECK(refused_at(with([](SamplingParams& p) { p.stop.assign(1024, "a"); })) == "");
  CHECK(refused_at(with([](SamplingParams& p) { p.stop.assign(100000, "a"); })) == "SamplingParams.stop");
}

TEST_CASE("validate: ids outside the vocabulary are refused, wherever they stand") {
  for (int32_t id : {0, 1, kVocab - 1}) {
    CAPTURE(id);
    CHECK(refused_at(with([&](SamplingParams& p) { p.stop_token_ids = {id}; })) == "");
    CHECK(refused_at(with([&](SamplingParams& p) { p.allowed_token_ids = {id}; })) == "");
    CHECK(refused_at(with([&](SamplingParams& p) { p.logit_bias = {{id, 1.0f}}; })) == "");
  }
  for (int32_t id : {-1, kVocab, 999999999, kMin, kMax}) {
    CAPTURE(id);
    CHECK(refused_at(with([&](SamplingParams& p) {
            p.stop_token_ids = {5, id};
          })) == "SamplingParams.stop_token_ids");
    CHECK(refused_at(with([&](SamplingParams& p) {
            p.allowed_token_ids = {5, id};
          })) == "SamplingParams.allowed_token_ids");
    CHECK(refused_at(with([&](SamplingParams& p) {
            p.logit_bias = {{5, 1.0f}, {id, 1.0f}};
          })) == "SamplingParams.logit_bias");
  }
  CHECK(refused_at(with([](SamplingParams& p) { p.allowed_token_ids.assign(1000000, 3); })) == "");
}

TEST_CASE("validate: logit_bias is clamped to 100, and must be finite") {
  SamplingParams p;
  p.logit_bias = {{1, 1000.0f}, {2, -1000.0f}, {3, 0.5f}, {4, -100.0f}};
  validate(p, kVocab);
  CHECK(p.logit_bias == std::map<int32_t, float>{{1, 100.0f}, {2, -100.0f}, {3, 0.5f}, {4, -100.0f}});
  for (float x : {NAN, INFINITY, -INFINITY})
    CHECK(refused_at(with([&](SamplingParams& q) {
            q.logit_bias = {{1, x}};
          })) == "SamplingParams.logit_bias");
}

TEST_CASE("validate: logprobs up to the cap; the whole vocabulary only without one") {
  struct Row {
    int32_t k, cap;
    bool good;
  };
  for (const Row& row : {Row{0, 20, true},
                         {20, 20, true},
                         {21, 20, false},
                         {2000000000, 20, false},
                         {-1, 20, false},
                         {-2, 20, false},
                         {-2, -1, false},
                         {0, 0, true},
                         {1, 0, false},
                         {-1, -1, true},
                         {kVocab, -1, true},
                         {kVocab + 1, -1, false},
                         {-1, kVocab, true}}) {
    CAPTURE(row.k, row.cap);
    CHECK(refused_at(with([&](SamplingParams& p) { p.logprobs = row.k; }), row.cap) ==
          (row.good ? "" : "SamplingParams.logprobs"));
    CHECK(refused_at(with([&](SamplingParams& p) { p.prompt_logprobs = row.k; }), row.cap) ==
          (row.good ? "" : "SamplingParams.prompt_logprobs"));
  }
}

TEST_CASE("validate: all log-probabilities are called all") {
  SamplingParams p;
  p.logprobs = -1;
  std::string message;
  try {
    validate(p, kVocab);
  } catch (const Error& e) {
    message = e.problem;
  }
  CHECK(message == "all log-probabilities a token are more than the limit of 20");
}

TEST_CASE("validate: raises a tiny temperature, leaves greedy alone, and drops seed -1") {
  auto validated = [](const Change& change) {
    SamplingParams p = with(change);
    validate(p, kVocab);
    return p;
  };
  for (float t : {1e-40f, 1e-9f, 1e-5f, 1e-4f, 0.009f}) {
    CAPTURE(t);
    CHECK(validated([&](SamplingParams& p) { p.temperature = t; }).temperature == 0.01f);
  }
  for (float t : {0.0f, 0.01f, 0.7f}) {
    CAPTURE(t);
    CHECK(validated([&](SamplingParams& p) { p.temperature = t; }).temperature == t);
  }
  CHECK(!validated([](SamplingParams& p) { p.seed = -1; }).seed);
  for (int64_t seed : {int64_t(0), int64_t(-2), std::numeric_limits<int64_t>::min()})
    CHECK(validated([&](SamplingParams& p) { p.seed = seed; }).seed == seed);
}

TEST_CASE("validate: the message says what, where and what to do") {
  std::string message;
  try {
    SamplingParams p;
    p.top_p = 1.5f;
    validate(p, kVocab);
  } catch (const Error& e) {
    message = e.what();
  }
  CHECK(message == "SamplingParams.top_p: 1.5 is out of range (use a value in (0, 1]; 1 = off)");
}
