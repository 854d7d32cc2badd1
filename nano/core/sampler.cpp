#include "core/sampler.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <queue>
#include <string>
#include <utility>

#include "base/error.h"        // NANO_CHECK
#include "base/vector_math.h"  // max_of, index_of, sum_of, kth_largest, exp_relative, index_at_share

namespace nano {

namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

bool has_logit(int32_t id, std::span<const float> logits) { return id >= 0 && id < int64_t(logits.size()); }

// Why argmax found nothing.
std::string what_is_wrong(std::span<const float> logits) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) return "the logit of token " + std::to_string(i) + " is NaN";
    if (logits[i] > FLT_MAX) return "the logit of token " + std::to_string(i) + " is +infinity";
  }
  return "every logit is -infinity";
}

SampledToken failed(std::string reason) { return {-1, {}, std::move(reason)}; }

}  // namespace

SampledToken sample(std::span<float> logits, const SamplingParams& params, const SamplerContext& context) {
  SampledToken result;
  result.id = argmax(logits);
  if (result.id < 0) return failed(what_is_wrong(logits));  // before a mask can hide it
  std::vector<float> raw;
  if (params.logprobs) raw.assign(logits.begin(), logits.end());

  const bool masked = apply_masks_and_bias(logits, params, context);
  const bool penalised = apply_penalties(logits, params, context);
  if (masked || penalised) result.id = argmax(logits);
  if (result.id < 0)
    return failed("no token can be chosen after allowed_token_ids, min_tokens, logit_bias and penalties: " +
                  what_is_wrong(logits));
  if (!params.greedy()) {
    filter_to_probs(logits, params);
    result.id = draw(logits, context.key);
  }
  if (result.id < 0) return failed("no token has a probability above 0");
  if (params.logprobs) result.logprobs = top_logprobs(raw, result.id, *params.logprobs);
  return result;
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

  std::vector<int32_t> count(logits.size(), -1);  // times in the output; -1: not in the past, or done
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

namespace {

// top_k (Fan et al. 2018): the k most likely tokens, and all that tie with the last of them. It looks at logits: the
// probabilities of two that differ may be equal once they are rounded.
void keep_top_k(std::span<float> logits, int32_t k) {
  if (k <= 0 || k >= int64_t(logits.size())) return;
  const float kth = kth_largest(logits, size_t(k));
  for (float& x : logits) x = x >= kth ? x : kMasked;
}

// min_p (Nguyen et al. 2024): tokens with at least the share min_p of the best one's probability. The best weighs 1.
void keep_min_p(std::span<float> weights, float min_p) {
  if (min_p <= 0.0f) return;
  for (float& w : weights) w = w >= min_p ? w : 0.0f;
}

// top_p (Holtzman et al. 2020): the nucleus, the fewest of the most likely tokens with Σp >= top_p. Here p is
// weight / sum. Returns the weight that stays.
double keep_nucleus(std::span<float> weights, double sum, double top_p) {
  // (1 - top_p) of the sum can go, and all that weigh less than this are lighter even together. The others are
  // candidates; a heap gives them best first and leaves those unsorted that are never taken.
  const double candidate = (1.0 - top_p) * sum / double(weights.size());
  std::vector<std::pair<float, int32_t>> candidates;  // (weight, -id): among equals the lower id is better
  for (size_t i = 0; i < weights.size(); ++i)
    if (weights[i] >= candidate) candidates.emplace_back(weights[i], -int32_t(i));
  std::priority_queue best_first(std::less<>(), std::move(candidates));

  std::fill(weights.begin(), weights.end(), 0.0f);
  double kept = 0;
  do {
    const auto [weight, minus_id] = best_first.top();
    best_first.pop();
    weights[size_t(-minus_id)] = weight;
    kept += weight;
  } while (kept < top_p * sum && !best_first.empty());
  return kept;
}

}  // namespace

void filter_to_probs(std::span<float> logits, const SamplingParams& params) {
  const int32_t best = argmax(logits);
  NANO_CHECK(best >= 0, "filter_to_probs needs a row that has a largest logit");
  if (params.greedy()) {
    std::fill(logits.begin(), logits.end(), 0.0f);
    logits[best] = 1.0f;
    return;
  }
  // Keep: top_k is first because it needs the logits. Temperature does not change which token is better, and top_k
  // and min_p both keep everything from some token upwards, so what stays is the same as in vLLM's order.
  keep_top_k(logits, params.top_k);
  // Scale: softmax without its division, e^((x - largest) / T). The best token weighs 1 and nothing overflows.
  exp_relative(logits, logits[best], 1.0f / params.temperature);
  const std::span<float> weights = logits;
  keep_min_p(weights, params.min_p);
  double sum = sum_of(weights);
  if (params.top_p < 1.0f) sum = keep_nucleus(weights, sum, params.top_p);
  const auto scale = float(1.0 / sum);
  for (float& p : weights) p *= scale;
}

int32_t draw(std::span<const float> probs, RngKey key) {
  // u·Σp, seen along the row, falls into the stretch of token i with probability p[i]/Σp.
  const size_t i = index_at_share(probs, random_uniform(key, 0));
  if (i < probs.size()) return int32_t(i);
  // The sums' rounding left u·Σp behind all tokens: the last that can be.
  for (size_t last = probs.size(); last-- > 0;)
    if (probs[last] > 0) return int32_t(last);
  return -1;
}

int32_t argmax(std::span<const float> logits) {
  const float largest = max_of(logits);
  const bool finite = largest >= -FLT_MAX && largest <= FLT_MAX;  // false for NaN
  return finite ? int32_t(index_of(logits, largest)) : -1;
}

SampledToken sample_argmax(std::span<const float> logits, const SamplingParams& params) {
  SampledToken result;
  result.id = argmax(logits);
  if (result.id < 0) return failed(what_is_wrong(logits));
  if (params.logprobs) result.logprobs = top_logprobs(logits, result.id, *params.logprobs);
  return result;
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
  const size_t entries = k < 0 ? logits.size() : std::min(size_t(k), logits.size());
  if (entries == 0) return result;
  const float lowest = kth_largest(logits, entries);
  std::vector<std::pair<float, int32_t>> best_first;  // (-logit, id)
  for (size_t i = 0; i < logits.size(); ++i)
    if (logits[i] >= lowest) best_first.emplace_back(-logits[i], int32_t(i));
  std::sort(best_first.begin(), best_first.end());
  for (size_t i = 0; i < entries; ++i) {
    const int32_t other = best_first[i].second;
    if (other != id) result.push_back({other, logprob(other), int32_t(i) + 1});
  }
  return result;
}

}  // namespace nano
