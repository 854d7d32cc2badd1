#include "core/sampler.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "base/error.h"   // NANO_CHECK
#include "base/vector_math.h"  // exp_approx

namespace nano {

namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

bool has_logit(int32_t id, std::span<const float> logits) { return id >= 0 && id < int64_t(logits.size()); }

// use(i mod kLanes, x[i]) for all i. So many lanes that compilers keep the inner loop, and make vectors of it.
constexpr size_t kLanes = 256;
template <class Use>
void for_lanes(std::span<const float> x, Use use) {
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes)
    for (size_t l = 0; l < kLanes; ++l) use(l, x[i + l]);
  for (; i < x.size(); ++i) use(i % kLanes, x[i]);
}

// Σ x in an order that depends on nothing.
double sum_of(std::span<const float> x) {
  double lane[kLanes] = {};
  for_lanes(x, [&](size_t l, float v) { lane[l] += v; });
  return std::accumulate(lane, lane + kLanes, 0.0);
}

// Why argmax found nothing.
std::string what_is_wrong(std::span<const float> logits) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) return "the logit of token " + std::to_string(i) + " is NaN";
    if (logits[i] > FLT_MAX) return "the logit of token " + std::to_string(i) + " is +infinity";
  }
  return "every logit is -infinity";
}

SampledToken failed(std::string error) {
  SampledToken result;
  result.error = std::move(error);
  return result;
}

// A heap of the k largest so far, its least on top: for a small k hardly a token gets in after the first thousands.
float kth_largest(std::span<const float> logits, int32_t k) {
  std::vector<float> heap(logits.begin(), logits.begin() + k);
  std::make_heap(heap.begin(), heap.end(), std::greater<float>());
  for (float x : logits.subspan(size_t(k))) {
    if (!(x > heap.front())) continue;
    std::pop_heap(heap.begin(), heap.end(), std::greater<float>());
    heap.back() = x;
    std::push_heap(heap.begin(), heap.end(), std::greater<float>());
  }
  return heap.front();
}

// top_p: the tokens in ascending order are dropped while their cumulative weight is ≤ (1 - top_p)·sum. Seen from
// the other end: the best are kept until they weigh top_p·sum. Returns the weight that stays.
double keep_nucleus(std::span<float> weights, double sum, double top_p) {
  // However many tokens weigh less than this, together they are within the mass to drop: no need to sort them.
  const double surely_dropped = (1.0 - top_p) * sum / double(weights.size());
  std::vector<std::pair<float, int32_t>>
      best_first;  // (-weight, id): the pair's own order is the one we want
  for (size_t i = 0; i < weights.size(); ++i)
    if (weights[i] >= surely_dropped) best_first.emplace_back(-weights[i], int32_t(i));
  std::make_heap(best_first.begin(), best_first.end(), std::greater<>());  // not sorted: most are never taken

  std::fill(weights.begin(), weights.end(), 0.0f);
  double kept = 0;
  while (kept < top_p * sum && !best_first.empty()) {
    std::pop_heap(best_first.begin(), best_first.end(), std::greater<>());
    const auto [minus_weight, id] = best_first.back();
    best_first.pop_back();
    weights[id] = -minus_weight;
    kept -= minus_weight;
  }
  return kept;
}

}  // namespace

int32_t argmax(std::span<const float> logits) {
  float lane[kLanes];
  uint32_t finite[kLanes];
  std::fill_n(lane, kLanes, kMasked);
  std::fill_n(finite, kLanes, 1u);
  for_lanes(logits, [&](size_t l, float x) {
    lane[l] = x > lane[l] ? x : lane[l];
    finite[l] &= x <= FLT_MAX;  // false for NaN
  });
  const float largest = *std::max_element(lane, lane + kLanes);
  if (largest == kMasked || std::count(finite, finite + kLanes, 0u) > 0) return -1;
  return int32_t(std::find(logits.begin(), logits.end(), largest) - logits.begin());
}

bool apply_masks_and_bias(std::span<float> logits, const SamplingParams& params,
                          const SamplerContext& context) {
  const bool masks_stop = int64_t(context.output.size()) < params.min_tokens && !context.stop_ids.empty();
  if (params.allowed_token_ids.empty() && params.logit_bias.empty() && !masks_stop) return false;
  if (!params.allowed_token_ids.empty()) {
    std::vector<std::pair<int32_t, float>> allowed;
    for (int32_t id : params.allowed_token_ids)
      if (has_logit(id, logits)) allowed.emplace_back(id, logits[id]);
    std::fill(logits.begin(), logits.end(), kMasked);
    for (const auto& [id, logit] : allowed) logits[id] = logit;
  }
  if (masks_stop)
    for (int32_t id : context.stop_ids)
      if (has_logit(id, logits)) logits[id] = kMasked;
  for (const auto& [id, bias] : params.logit_bias)
    if (has_logit(id, logits)) logits[id] += bias;
  return true;
}

bool apply_penalties(std::span<float> logits, const SamplingParams& params, const SamplerContext& context) {
  const float repetition = params.repetition_penalty;
  const float frequency = params.frequency_penalty, presence = params.presence_penalty;
  if (repetition == 1.0f && frequency == 0.0f && presence == 0.0f) return false;

  // [V] times in the output; -1 = not in the past, or dealt with.
  std::vector<int32_t> count(logits.size(), -1);
  for (int32_t id : context.prompt)
    if (has_logit(id, logits)) count[id] = 0;
  for (int32_t id : context.output)
    if (has_logit(id, logits)) count[id] = std::max(count[id], 0) + 1;

  for (std::span<const int32_t> past : {context.prompt, context.output})
    for (int32_t id : past) {
      if (!has_logit(id, logits) || count[id] < 0) continue;
      float& logit = logits[id];
      logit = logit > 0 ? logit / repetition : logit * repetition;
      logit -= frequency * float(count[id]);
      if (count[id] > 0) logit -= presence;
      count[id] = -1;  // each distinct token once
    }
  return true;
}

void filter_to_probs(std::span<float> logits, const SamplingParams& params) {
  const int32_t best = argmax(logits);
  NANO_CHECK(best >= 0, "filter_to_probs needs a row that has a largest logit");
  if (params.greedy()) {
    std::fill(logits.begin(), logits.end(), 0.0f);
    logits[best] = 1.0f;
    return;
  }
  // Weights relative to the best token: it has exactly 1, nothing overflows, and min_p is a plain threshold.
  // min_p and top_k are both thresholds on the logit, so they can be applied together.
  const bool has_top_k = params.top_k > 0 && params.top_k < int64_t(logits.size());
  const float lowest = has_top_k ? kth_largest(logits, params.top_k) : kMasked;
  const float most = logits[best], inverse = 1.0f / params.temperature, min_p = params.min_p;
  for (float& x : logits) {
    const float weight = exp_approx((x - most) * inverse);
    x = ((x >= lowest) & (weight >= min_p)) ? weight : 0.0f;  // & not &&: no branch, so vectors
  }
  double sum = sum_of(logits);
  if (params.top_p < 1.0f) sum = keep_nucleus(logits, sum, params.top_p);
  const auto scale = float(1.0 / sum);
  for (float& p : logits) p *= scale;
}

int32_t draw(std::span<const float> probs, RngKey key) {
  constexpr size_t kPiece = 4096;  // walked through only if the target is in it
  auto piece = [&](size_t at) { return probs.subspan(at, std::min(kPiece, probs.size() - at)); };
  double sum = 0;
  for (size_t at = 0; at < probs.size(); at += kPiece) sum += sum_of(piece(at));

  double left = random_uniform(key, 0) * sum;  // the target, less what was passed
  for (size_t at = 0; at < probs.size(); at += kPiece) {
    if (const double weight = sum_of(piece(at)); weight <= left) {
      left -= weight;
      continue;
    }
    for (size_t i = at; i < at + piece(at).size(); ++i) {
      if (probs[i] > left) return int32_t(i);
      left -= probs[i];
    }
  }
  // The sums' rounding left the target behind all tokens: the last that can be.
  for (size_t i = probs.size(); i-- > 0;)
    if (probs[i] > 0) return int32_t(i);
  return -1;
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int32_t id, int32_t k) {
  NANO_CHECK(has_logit(id, logits), "log-probability of a token outside the row");
  const int32_t best = argmax(logits);
  if (best < 0) return {};
  double sum = 0;
  int32_t rank = 1;
  for (size_t i = 0; i < logits.size(); ++i) {
    sum += std::exp(logits[i] - logits[best]);
    if (logits[i] > logits[id] || (logits[i] == logits[id] && int32_t(i) < id)) ++rank;
  }
  const double log_sum = double(logits[best]) + std::log(sum);
  auto logprob = [&](int32_t i) { return float(double(logits[i]) - log_sum); };

  std::vector<TokenLogprob> result = {{id, logprob(id), rank}};
  const int64_t entries = k < 0 ? int64_t(logits.size()) : std::min<int64_t>(k, int64_t(logits.size()));
  if (entries == 0) return result;
  std::vector<std::pair<float, int32_t>> best_first;  // (-logit, id)
  best_first.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) best_first.emplace_back(-logits[i], int32_t(i));
  std::partial_sort(best_first.begin(), best_first.begin() + entries, best_first.end());
  for (int32_t i = 0; i < entries; ++i) {
    const int32_t other = best_first[i].second;
    if (other != id) result.push_back({other, logprob(other), i + 1});
  }
  return result;
}

SampledToken sample(std::span<float> logits, const SamplingParams& params, const SamplerContext& context) {
  SampledToken result;
  result.id = argmax(logits);
  if (result.id < 0) return failed(what_is_wrong(logits));  // before a mask can hide it
  std::vector<float> raw;
  if (params.logprobs) raw.assign(logits.begin(), logits.end());

  const bool masked = apply_masks_and_bias(logits, params, context);
  if (apply_penalties(logits, params, context) || masked) result.id = argmax(logits);
  if (result.id < 0)
    return failed("no token can be chosen after allowed_token_ids, min_tokens, logit_bias and penalties: " +
                  what_is_wrong(logits));
  if (!params.greedy()) {
    filter_to_probs(logits, params);
    result.id = draw(logits, context.key);
  }
  if (params.logprobs) result.logprobs = top_logprobs(raw, result.id, *params.logprobs);
  return result;
}

SampledToken sample_argmax(std::span<const float> logits, const SamplingParams& params) {
  SampledToken result;
  result.id = argmax(logits);
  if (result.id < 0) return failed(what_is_wrong(logits));
  if (params.logprobs) result.logprobs = top_logprobs(logits, result.id, *params.logprobs);
  return result;
}

}  // namespace nano
