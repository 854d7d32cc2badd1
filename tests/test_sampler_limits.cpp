// core/sampler at the edges of what validate() accepts, on good and broken rows, with denormals as numbers and as zero
// (the engine's threads have it so): a token that can be, or a reason. And the example in sampler.h.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "base/error.h"        // Error
#include "base/vector_math.h"  // max_of, index_of, sum_of, kth_largest, index_at_share
#include "catch.h"
#include "core/sampler.h"

using namespace nano;

namespace {

const float kInf = std::numeric_limits<float>::infinity(), kMax = std::numeric_limits<float>::max();
constexpr float kDenormal = 1e-40f, kTiny = std::numeric_limits<float>::min();

template <class T>
T one_of(std::mt19937& rng, std::initializer_list<T> choices) {
  return choices.begin()[rng() % choices.size()];
}

SamplingParams random_params(std::mt19937& rng, int32_t V) {
  SamplingParams p;
  auto rare = [&] { return rng() % 3 == 0; };
  p.temperature = one_of(rng, {0.0f, kDenormal, kTiny, 1e-6f, 0.01f, 0.5f, 1.0f, 2.0f});
  p.top_p = one_of(rng, {kDenormal, 1e-45f, kTiny, 1e-20f, 0.3f, 0.999999f, 1.0f});
  p.top_k = one_of(rng, {-1, 0, 1, 2, V - 1, V, V + 1, std::numeric_limits<int32_t>::max()});
  p.min_p = one_of(rng, {0.0f, kDenormal, kTiny, 0.3f, 0.9999999f, 1.0f});
  if (rare()) p.repetition_penalty = one_of(rng, {1e-45f, kDenormal, kTiny, 0.5f, 1.5f, 1e30f, kMax});
  if (rare()) p.frequency_penalty = one_of(rng, {-2.0f, kDenormal, 2.0f});
  if (rare()) p.presence_penalty = one_of(rng, {-2.0f, kDenormal, 2.0f});
  if (rare()) p.min_tokens = one_of(rng, {1, 3, std::numeric_limits<int32_t>::max()});
  if (rare()) p.logprobs = one_of(rng, {-1, 0, 1, V});
  p.max_tokens.reset();
  for (int i = 0; rare() && i < 5; ++i)
    p.logit_bias[int32_t(rng() % V)] = one_of(rng, {-1e30f, -100.0f, kDenormal, 100.0f, kMax});
  const int32_t allowed = rare() ? int32_t(1 + rng() % 3) : 0;
  for (int32_t i = 0; i < allowed; ++i) p.allowed_token_ids.push_back(int32_t(rng() % V));
  return p;
}

std::vector<float> random_row(std::mt19937& rng, int32_t V) {
  std::normal_distribution<float> normal(0.0f, 4.0f);
  std::vector<float> row(V);
  const int kind = int(rng() % 8);
  for (float& x : row) {
    x = normal(rng);
    if (kind == 1) x = 3;                                                   // all equal
    if (kind == 2) x = rng() % 4 == 0 ? x : -kInf;                          // nearly all masked
    if (kind == 3) x = one_of(rng, {-kMax, kMax, 0.0f, -0.0f});             // huge
    if (kind == 4) x = one_of(rng, {kDenormal, -kDenormal, 1e-45f});        // denormal
    if (kind == 5) x = one_of(rng, {-kInf, -kMax, -88.0f, -104.5f, x});     // weights that vanish
    if (kind == 6 && rng() % 50 == 0) x = one_of(rng, {NAN, kInf, -kInf});  // broken
    if (kind == 7) x *= 1e30f;
  }
  if (rng() % 100 == 0) row.assign(size_t(V), -kInf);
  return row;
}

struct Past {
  std::vector<int32_t> prompt, output, stop_ids;
};

// What is wrong with the answer, or "".
std::string fault(const SampledToken& token, const std::vector<float>& row, const SamplingParams& p,
                  const Past& past) {
  std::vector<float> changed = row;
  apply_masks_and_bias(changed, p, {past.prompt, past.output, past.stop_ids, {}});
  apply_penalties(changed, p, {past.prompt, past.output, past.stop_ids, {}});
  if (token.id < 0 && argmax(row) >= 0 && argmax(changed) >= 0) return "no token, though there is a best one";
  const auto V = int32_t(row.size());
  if (token.id < 0) return token.error.empty() ? "no token and no reason" : "";
  if (!token.error.empty()) return "a token and a reason";
  if (token.id >= V) return "a token outside the row";
  if (!std::isfinite(row[token.id])) return "a token without a finite logit";
  for (float x : row)
    if (std::isnan(x) || x == kInf) return "a token of a broken row";
  const auto has = [](const std::vector<int32_t>& list, int32_t id) {
    return std::find(list.begin(), list.end(), id) != list.end();
  };
  if (!p.allowed_token_ids.empty() && !has(p.allowed_token_ids, token.id))
    return "a token that is not allowed";
  if (int64_t(past.output.size()) < p.min_tokens && has(past.stop_ids, token.id))
    return "a stop id too early";
  if (p.logprobs.has_value() == token.logprobs.empty())
    return "log-probabilities asked for and not given, or given";
  if (!p.logprobs) return "";
  if (token.logprobs[0].id != token.id) return "the sampled token is not first";
  const double below_best = double(row[token.id]) - *std::max_element(row.begin(), row.end());
  if (!std::isfinite(token.logprobs[0].logprob) && below_best > -kMax) return "not finite";
  for (size_t i = 0; i < token.logprobs.size(); ++i) {
    const TokenLogprob& t = token.logprobs[i];
    if (!(t.logprob <= 0)) return "a log-probability above 0, or NaN";
    if (i > 1 && (t.logprob > token.logprobs[i - 1].logprob || t.rank <= token.logprobs[i - 1].rank))
      return "log-probabilities out of order";
  }
  return "";
}

// The property over `count` seeds; returns how many gave a token, of how many with a row in order.
void check_property(unsigned count) {
  int tokens = 0, reasons = 0;
  for (unsigned seed = 0; seed < count; ++seed) {
    std::mt19937 rng(seed);
    const int32_t V = one_of(rng, {1, 2, 7, 300, 1000});
    SamplingParams params = random_params(rng, V);
    const std::vector<float> row = random_row(rng, V);
    Past past;
    for (auto* list : {&past.prompt, &past.output, &past.stop_ids})
      for (size_t n = rng() % 6; n > 0; --n) list->push_back(int32_t(rng() % V));
    std::string problem;
    try {
      validate(params, V, -1);
      std::vector<float> logits = row;
      const SampledToken token =
          sample(logits, params, {past.prompt, past.output, past.stop_ids, {seed, uint32_t(rng() % 9)}});
      problem = fault(token, row, params, past);
      ++(token.id < 0 ? reasons : tokens);
    } catch (const Error&) {  // with denormals as zero, repetition_penalty 1e-40 is refused
    }
    if (problem.empty()) continue;
    INFO("seed " << seed << ", V " << V << ", temperature " << params.temperature << ", top_p "
                 << params.top_p << ", top_k " << params.top_k << ", min_p " << params.min_p
                 << ", repetition_penalty " << params.repetition_penalty);
    CHECK(problem == "");
  }
  CHECK(tokens > int(count) / 2);
  CHECK(reasons > int(count) / 50);
}

}  // namespace

TEST_CASE("sampler: whatever validate() accepts gives a token that can be, or a reason") {
  check_property(20000);
}

TEST_CASE("sampler: the same with denormals as zero") {
#if defined(__SSE2__)
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // FTZ | DAZ
  check_property(20000);
  _mm_setcsr(before);
#endif
}

// validate() runs where denormals are numbers, sample() where they are zero: as in the engine.
TEST_CASE("A1 top_p 1e-40 keeps the best token, with log-probabilities and without") {
  SamplingParams p;
  p.top_p = kDenormal;
  p.logprobs = 2;
  validate(p, 4);
  auto check = [&] {
    for (uint32_t position = 0; position < 20; ++position) {
      std::vector<float> row = {1, 2, 5, 5}, probs = row;
      filter_to_probs(probs, p);
      CHECK(probs == std::vector<float>{0, 0, 1, 0});
      const SampledToken token = sample(row, p, {{}, {}, {}, {3, position}});
      CHECK(token.id == 2);
      CHECK(token.logprobs.size() == 2);
    }
  };
  check();
#if defined(__SSE2__)
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);
  check();
  _mm_setcsr(before);
#endif
}

TEST_CASE("the example in sampler.h") {
  const std::vector<float> logits = {2, 1, 0, -1};
  auto probs = [&](int32_t top_k, float top_p) {
    SamplingParams p;
    p.temperature = 0.5f, p.top_k = top_k, p.top_p = top_p;
    std::vector<float> row = logits;
    filter_to_probs(row, p);
    for (float& x : row) x = std::round(x * 1000) / 1000;
    return row;
  };
  CHECK(probs(0, 1) == std::vector<float>{0.865f, 0.117f, 0.016f, 0.002f});
  CHECK(probs(3, 1) == std::vector<float>{0.867f, 0.117f, 0.016f, 0});
  CHECK(probs(3, 0.9f) == std::vector<float>{0.881f, 0.119f, 0, 0});
  CHECK(index_at_share(probs(3, 0.9f), 0.9) == 1);
  CHECK(index_at_share(probs(3, 0.9f), 0.88) == 0);
}

TEST_CASE("rows of floats: largest, index, k-th largest and sum, wherever the element lies") {
  for (size_t V : {1, 255, 256, 257, 1000}) {
    std::vector<float> row(V);
    std::iota(row.begin(), row.end(), -5.0f);
    std::shuffle(row.begin(), row.end(), std::mt19937(unsigned(V)));
    std::vector<float> sorted = row;
    std::sort(sorted.rbegin(), sorted.rend());
    for (size_t k = 1; k <= V; k += 1 + V / 9) CHECK(kth_largest(row, k) == sorted[k - 1]);
    CHECK(kth_largest(row, V) == -5);
    CHECK(max_of(row) == sorted[0]);
    CHECK(sum_of(row) == double(V) * (double(V) - 1) / 2 - 5.0 * double(V));
    for (size_t at : {size_t(0), V / 2, V - 1}) {
      CAPTURE(V, at);
      CHECK(index_of(row, row[at]) == at);
      std::vector<float> broken = row;
      broken[at] = NAN;
      CHECK(std::isnan(max_of(broken)));
      broken[at] = kInf;
      CHECK(max_of(broken) == kInf);
    }
    CHECK(index_of(row, 1e9f) == V);
  }
  CHECK(max_of({}) == -kInf);
  CHECK(index_at_share({}, 0.5) == 0);
}
