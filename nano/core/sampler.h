// The sampler: a row of logits becomes a token. Flag: --[no-]sampler (off = argmax). vLLM: vllm/v1/sample/sampler.py.
//
// Five steps, each a function below or in sampler.cpp, in vLLM's order:
//  mask      tokens that are not allowed get -infinity; logit_bias is added
//  penalise  tokens that came before lose (repetition, frequency, presence); a greedy row ends here: argmax
//  scale     logits over temperature, then softmax
//  keep      min_p, top_k and top_p cut unlikely tokens away
//  draw      one random number chooses among those that are left
//
// An example, temperature 0.5, top_k 3, top_p 0.9, and the random number u is 0.9:
//   logits                2      1      0      -1
//   / 0.5                 4      2      0      -2
//   softmax               0.865  0.117  0.016  0.002
//   top_k 3               0.867  0.117  0.016  0       the fourth is cut, the rest divided by their sum
//   top_p 0.9             0.881  0.119  0      0       the best two have 0.984 >= 0.9, the best one has not
//   Σp, token by token    0.881  1                     token 1 is the first to pass u = 0.9: it is drawn
//
// Rules where others leave a choice:
//  1. A row that holds NaN or +infinity, or nothing above -infinity, gives no token: id -1 and a reason. So does
//     a row in which masks left nothing. Such a row never turns into token 0.
//  2. Among equal logits the lower id is the better one: in argmax, in ranks, and at the edge of top_p.
//     top_k keeps every token that ties with the k-th, so more than k may stay.
//  3. Softmax sums are doubles, added in a fixed order: the result does not depend on threads.
//  4. Log-probabilities are of the logits as the model gave them, before the first step.
//
// It does not search stop strings (the detokeniser does), nor resolve seeds (the engine does). What makes it fast is
// in base/vector_math.
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
// vllm/v1/sample/ops/penalties.py. Repetition: Keskar et al. 2019, §4.1; there every logit is divided by the penalty,
// which would favour a token whose logit is negative, so such a one is multiplied.
bool apply_penalties(std::span<float> logits, const SamplingParams& params, const SamplerContext& context);
// In place, the probabilities after temperature, min_p, top_k and top_p: 0 for tokens cut away, the sum is 1. At
// least the best token stays. A greedy row has its 1 at the argmax. REQUIRES argmax(logits) ≥ 0.
// vllm/v1/sample/ops/topk_topp_sampler.py and vllm/v1/sample/logits_processor/builtin.py (min_p).
void filter_to_probs(std::span<float> logits, const SamplingParams& params);
// The largest logit; -1 for a row of rule 1.
int32_t argmax(std::span<const float> logits);
// A token in proportion to `probs` (≥ 0; they need not sum to 1), -1 if none is above 0. It uses draw number 0 of the
// key: whoever needs other random numbers at this position takes others. (vLLM takes argmax(p / e) with e ~ Exp(1)
// for each token: the same law from V random numbers.)
int32_t draw(std::span<const float> probs, RngKey key);
// log p of `id` first, then of the k most likely (k = -1: all) without repeating `id`, from raw logits: k or k + 1
// entries. rank: 1 = most likely, ties ranked by id. Empty for a row of rule 1. REQUIRES 0 ≤ id < V.
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int32_t id, int32_t k);

}  // namespace nano
