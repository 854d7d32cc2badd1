// The sampler: a row of logits becomes a token. Flag: --[no-]sampler (off = argmax).
//
// The order is vLLM V1's: raw log-probabilities, allowed_token_ids, min_tokens mask, logit_bias, repetition,
// frequency and presence penalties, greedy rows: argmax; the others: temperature, min_p, top_k, top_p, draw.
// A draw inverts the distribution function: the first token at which Σp passes u·Σ, with one uniform u from the
// counter-based generator. (vLLM takes argmax(p / e) with e ~ Exp(1) per token: the same law, V random numbers.)
//
// Rules where others leave a choice:
//  1. A row that holds NaN or +infinity, or nothing above -infinity, gives no token: id -1 and a reason. So does
//     a row in which masks left nothing. Such a row never turns into token 0.
//  2. Among equal logits the lower id is the better one: in argmax, in ranks, and at the edge of top_p.
//     top_k keeps every token that ties with the k-th, so more than k may stay.
//  3. Softmax sums are doubles, added in a fixed order: the result does not depend on threads.
//
// It does not search stop strings (the detokeniser does), nor resolve seeds (the engine does).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/rng.h"              // RngKey
#include "core/sampling_params.h"  // SamplingParams
#include "core/step.h"             // SampledToken, TokenLogprob

namespace nano {

// What the sampler needs to know of the past of a row.
struct SamplerContext {
  std::span<const int32_t> prompt, output;  // tokens before this row
  std::span<const int32_t> stop_ids;        // all stop ids incl. EOS; masked while output < min_tokens
  RngKey key;                               // {sequence seed, output position}
};

// `logits` [V] is overwritten. Ids ≥ the tokenizer's size never get here: the caller cuts the span.
SampledToken sample(std::span<float> logits, const SamplingParams& params, const SamplerContext& context);

// --no-sampler: the largest logit, lowest id among equals. Of `params` only logprobs is obeyed.
SampledToken sample_argmax(std::span<const float> logits, const SamplingParams& params);

// The pieces, in the order above; public because lessons and tests look at each.
// An id outside [0, V) has no logit here (the padded vocabulary was cut off) and is passed over. The first two return
// whether they had anything to do.
bool apply_masks_and_bias(std::span<float> logits, const SamplingParams& params,
                          const SamplerContext& context);
bool apply_penalties(std::span<float> logits, const SamplingParams& params, const SamplerContext& context);
// In place, the probabilities after temperature, min_p, top_k and top_p: 0 for tokens cut away, the sum is 1. A greedy
// row has its 1 at the argmax. REQUIRES argmax(logits) ≥ 0.
void filter_to_probs(std::span<float> logits, const SamplingParams& params);
// The largest logit; -1 for a row of rule 1.
int32_t argmax(std::span<const float> logits);
// A token in proportion to `probs` (≥ 0; they need not sum to 1), -1 if none is above 0. It uses draw number 0 of the key:
// whoever needs other random numbers at this position takes others.
int32_t draw(std::span<const float> probs, RngKey key);
// log p of `id` first, then of the k most likely (k = -1: all) without repeating `id`, from raw logits: k or k + 1
// entries. rank: 1 = most likely, ties ranked by id. Empty for a row of rule 1. REQUIRES 0 ≤ id < V.
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int32_t id, int32_t k);

}  // namespace nano
