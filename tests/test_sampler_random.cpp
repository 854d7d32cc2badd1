// core/sampler against a naive sampler on random rows, and the statistics of the draw.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <set>

#include "catch.h"
#include "core/sampler.h"

using namespace nano;

namespace {

const float kInf = std::numeric_limits<float>::infinity();

void normalise(std::vector<double>& p) {
  double sum = 0;
  for (double x : p) sum += x;
  for (double& x : p) x /= sum;
}

// The rules as they are written down, one after the other, in double, with full sorts.
std::vector<double> naive_probs(const std::vector<float>& logits, const SamplingParams& params) {
  const size_t V = logits.size();
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p(V);
  for (size_t i = 0; i < V; ++i) p[i] = std::exp((logits[i] - largest) / params.temperature);
  normalise(p);

  const double p_max = *std::max_element(p.begin(), p.end());
  for (double& x : p)
    if (x < params.min_p * p_max) x = 0;
  normalise(p);

  if (params.top_k > 0 && size_t(params.top_k) < V) {
    std::vector<double> sorted = p;
    std::sort(sorted.rbegin(), sorted.rend());
    for (double& x : p)
      if (x < sorted[params.top_k - 1]) x = 0;
    normalise(p);
  }

  std::vector<size_t> ascending(V);
  for (size_t i = 0; i < V; ++i) ascending[i] = V - 1 - i;  // among equals the higher id goes first
  std::stable_sort(ascending.begin(), ascending.end(), [&](size_t a, size_t b) { return p[a] < p[b]; });
  double cumulative = 0;
  const std::vector<double> before = p;
  for (size_t i = 0; i + 1 < V; ++i) {
    cumulative += before[ascending[i]];
    if (params.top_p < 1.0f && cumulative <= 1.0 - params.top_p) p[ascending[i]] = 0;
  }
  normalise(p);
  return p;
}

// Half of the rows have few distinct logits (ties everywhere), some have masked tokens.
std::vector<float> random_logits(std::mt19937& rng) {
  const size_t V = 1 + rng() % 60;
  const bool ties = rng() % 2, masks = rng() % 3 == 0;
  std::vector<float> logits(V);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  for (float& x : logits) {
    x = ties ? float(int(rng() % 7)) * 0.5f : normal(rng);
    if (masks && rng() % 4 == 0) x = -kInf;
  }
  logits[rng() % V] = 2.5f;  // at least one token stays
  return logits;
}

SamplingParams random_filters(std::mt19937& rng) {
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  SamplingParams p;
  p.temperature = 0.05f + 1.9f * uniform(rng);
  if (rng() % 2) p.top_k = int32_t(rng() % 70) - 1;
  if (rng() % 2) p.top_p = 0.01f + 0.98f * uniform(rng);
  if (rng() % 3 == 0) p.min_p = uniform(rng);
  return p;
}

// Chi-square of counted tokens against p, over the tokens with p > 0.
double chi_square(const std::vector<int>& count, const std::vector<float>& p, int n) {
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i)
    if (p[i] > 0) sum += (count[i] - n * double(p[i])) * (count[i] - n * double(p[i])) / (n * double(p[i]));
  return sum;
}

std::vector<int> count_tokens(size_t V, int n, const std::function<int32_t(int)>& token) {
  std::vector<int> count(V);
  for (int i = 0; i < n; ++i) ++count.at(size_t(token(i)));
  return count;
}

const std::vector<float> kProbs = {0.05f, 0.1f, 0.2f,
                                   0,     0.3f, 0.35f};  // five tokens: four degrees of freedom
constexpr double kBound = 23.5;  // chi-square with four degrees of freedom exceeds it once in 10,000
constexpr int kDraws = 20000;

}  // namespace

TEST_CASE("filter_to_probs equals the naive sampler on random rows with ties and masks") {
  for (unsigned seed = 0; seed < 4000; ++seed) {
    std::mt19937 rng(seed);
    const std::vector<float> logits = random_logits(rng);
    const SamplingParams params = random_filters(rng);
    std::vector<float> probs = logits;
    filter_to_probs(probs, params);
    const std::vector<double> expected = naive_probs(logits, params);
    REQUIRE(probs.size() == expected.size());
    double worst = 0, sum = 0;
    bool same_cut = true;
    for (size_t i = 0; i < probs.size(); ++i) {
      // Relative: a few roundings of the exponent, which is up to 80 here.
      const double error = std::abs(probs[i] - expected[i]) / std::max(expected[i], 1e-30);
      if (!(error <= worst)) worst = error;
      const bool too_small_for_float = expected[i] > 0 && expected[i] < 1e-37;
      same_cut = same_cut && (too_small_for_float || (probs[i] > 0) == (expected[i] > 0));
      sum += probs[i];
    }
    if (worst <= 4e-5 && same_cut && std::abs(sum - 1) <= 1e-5) continue;
    INFO("seed " << seed << ", temperature " << params.temperature << ", top_k " << params.top_k << ", top_p "
                 << params.top_p << ", min_p " << params.min_p);
    CHECK(worst <= 4e-5);
    CHECK(same_cut);
    CHECK(std::abs(sum - 1) <= 1e-5);
  }
}

TEST_CASE("filter_to_probs on a row as long as a real vocabulary") {
  std::mt19937 rng(7);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> logits(20000);
  for (float& x : logits) x = std::round(normal(rng) * 64) / 64;  // ties
  SamplingParams params;
  params.top_k = 3000;
  params.top_p = 0.83f;
  std::vector<float> probs = logits;
  filter_to_probs(probs, params);
  const std::vector<double> expected = naive_probs(logits, params);
  int kept = 0, different = 0;
  for (size_t i = 0; i < probs.size(); ++i) {
    kept += probs[i] > 0;
    different += !(std::abs(probs[i] - expected[i]) <= 1e-5 * expected[i]);
  }
  CHECK(kept > 500);
  CHECK(different == 0);
}

TEST_CASE("penalties equal counting token by token on random pasts") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 rng(seed);
    std::vector<float> logits = random_logits(rng), expected = logits;
    const int32_t V = int32_t(logits.size());
    std::vector<int32_t> prompt(rng() % 40), output(rng() % 40);
    for (int32_t& id : prompt) id = int32_t(rng() % V);
    for (int32_t& id : output) id = int32_t(rng() % V);
    SamplingParams p;
    p.repetition_penalty = rng() % 2 ? 1.3f : 0.8f;
    p.frequency_penalty = rng() % 2 ? 0.4f : -0.3f;
    p.presence_penalty = rng() % 2 ? 0.7f : 0.0f;
    for (int32_t id = 0; id < V; ++id) {
      const auto in_output = std::count(output.begin(), output.end(), id);
      const bool seen = in_output > 0 || std::count(prompt.begin(), prompt.end(), id) > 0;
      float& x = expected[id];
      if (seen && x > 0)
        x /= p.repetition_penalty;
      else if (seen)
        x *= p.repetition_penalty;
      x -= p.frequency_penalty * float(in_output);
      x -= in_output > 0 ? p.presence_penalty : 0.0f;
    }
    SamplerContext context;
    context.prompt = prompt;
    context.output = output;
    apply_penalties(logits, p, context);
    INFO("seed " << seed);
    CHECK(logits == expected);
  }
}

TEST_CASE("draw follows the probabilities, over positions and over seeds") {
  const auto by_position = count_tokens(6, kDraws, [](int i) { return draw(kProbs, {11, uint32_t(i)}); });
  const auto by_seed = count_tokens(6, kDraws, [](int i) { return draw(kProbs, {uint64_t(i), 3}); });
  for (const auto& count : {by_position, by_seed}) {
    CHECK(count[3] == 0);
    CHECK(chi_square(count, kProbs, kDraws) <= kBound);
  }
}

TEST_CASE("the chi-square bound refuses draws with a fault") {
  auto inverted = [](const std::function<double(double)>& weight) {
    return count_tokens(6, kDraws, [&](int i) {
      double sum = 0, passed = 0;
      for (float p : kProbs) sum += weight(p);
      const double target = random_uniform({11, uint32_t(i)}, 0) * sum;
      int32_t id = 0;
      while (id < 5 && (passed += weight(kProbs[size_t(id)])) <= target) ++id;
      return id;
    });
  };
  CHECK(chi_square(inverted([](double p) { return p; }), kProbs, kDraws) <= kBound);
  CHECK(chi_square(inverted([](double p) { return p * p; }), kProbs, kDraws) > kBound);
  CHECK(chi_square(inverted([](double p) { return std::sqrt(p); }), kProbs, kDraws) > kBound);
  CHECK(chi_square(inverted([](double p) { return p > 0 ? p + 0.02 : 0; }), kProbs, kDraws) > kBound);
}

TEST_CASE("sample follows the filtered probabilities") {
  const std::vector<float> logits = {0.5f, -1, 2, 1.5f, 1, 0.9f, -3};
  SamplingParams params;
  params.temperature = 0.8f;
  params.top_k = 5;
  std::vector<float> probs = logits;
  filter_to_probs(probs, params);
  const auto count = count_tokens(7, kDraws, [&](int i) {
    std::vector<float> row = logits;
    SamplerContext context;
    context.key = {99, uint32_t(i)};
    return sample(row, params, context).id;
  });
  CHECK(count[1] + count[6] == 0);
  CHECK(chi_square(count, probs, kDraws) <= kBound);
}

TEST_CASE("P4 a key gives its token whatever was drawn before, and whatever the vocabulary's tail") {
  const int n = 200;
  std::vector<int32_t> forward(n), backward(n);
  for (int i = 0; i < n; ++i) forward[i] = draw(kProbs, {uint64_t(i % 3), uint32_t(i)});
  for (int i = n - 1; i >= 0; --i) backward[i] = draw(kProbs, {uint64_t(i % 3), uint32_t(i)});
  CHECK(forward == backward);
  std::vector<float> padded = kProbs;
  padded.resize(1000, 0.0f);
  for (int i = 0; i < n; ++i) CHECK(draw(padded, {uint64_t(i % 3), uint32_t(i)}) == forward[i]);
}

TEST_CASE("draw finds its token in a long row as by a walk from the front") {
  std::mt19937 rng(3);
  std::vector<float> probs(20000);
  for (float& p : probs) p = rng() % 3 == 0 ? float(rng() % 1000) : 0.0f;
  std::fill(probs.begin() + 15000, probs.end(), 0.0f);
  for (uint32_t i = 0; i < 300; ++i) {
    double sum = 0, passed = 0;
    for (float p : probs) sum += p;  // whole numbers: exact in any order
    const double target = random_uniform({8, i}, 0) * sum;
    size_t at = 0;
    while ((passed += probs[at]) <= target) ++at;
    CHECK(draw(probs, {8, i}) == int32_t(at));
  }
  CHECK(draw(std::vector<float>(9000, 0.0f), {1, 1}) == -1);
}

TEST_CASE("draws differ between positions and between seeds") {
  const std::vector<float> flat(1000, 0.001f);
  std::set<int32_t> positions, seeds, children;
  for (uint32_t i = 0; i < 100; ++i) {
    positions.insert(draw(flat, {5, i}));
    seeds.insert(draw(flat, {uint64_t(i) << 32, 0}));
    children.insert(draw(flat, {5 + uint64_t(i), 0}));
  }
  // 100 draws of 1000 give 95 distinct on average; below 80 is beyond six standard deviations.
  CHECK(positions.size() > 80);
  CHECK(seeds.size() > 80);
  CHECK(children.size() > 80);
}

TEST_CASE("draw: only tokens above 0; none is -1") {
  CHECK(draw(std::vector<float>{0, 0, 1e-45f, 0}, {1, 1}) == 2);
  CHECK(draw(std::vector<float>{0, 0}, {1, 1}) == -1);
  CHECK(draw(std::vector<float>{}, {1, 1}) == -1);
  CHECK(draw(std::vector<float>{NAN, 0.5f, NAN}, {1, 1}) == 1);
}
