// One sequence of tokens on its way through the engine: the prompt, what was generated, and how far the KV
// cache has got. There are no phases: a step computes some of the tokens in [num_computed, num_tokens), and
// only the step that reaches the end yields a new one.
//
//   tokens:   [ prompt ............ | output ... ]
//             [ cached | computed ........ | to do ]
//                      ^ num_cached        ^ num_computed   ^ num_tokens
#pragma once

#include <cstdint>
#include <vector>

#include "core/sampling_params.h"  // SamplingParams

namespace nano {

using SeqId = int64_t;
using BlockId = int32_t;

enum class SeqStatus : uint8_t { waiting, running, finished };
enum class FinishReason : uint8_t { none, stop, length, abort, error };

struct Sequence {
  SeqId id = 0;                 // unique in one engine
  int32_t index = 0;            // i of n: which answer to the request
  std::vector<int32_t> tokens;  // prompt, then output
  int32_t num_prompt_tokens = 0;
  int32_t num_computed_tokens = 0;   // tokens whose K and V are in the cache
  int32_t num_cached_tokens = -1;    // found in the prefix cache at first admission; -1 = not admitted yet
  std::vector<BlockId> block_table;  // block_table[p / B] holds position p
  SamplingParams params;
  uint64_t seed = 0;                // resolved: the request's, or one drawn from the engine's
  int32_t priority = 0;             // smaller runs earlier (--scheduling-policy priority)
  int32_t num_prompt_logprobs = 0;  // rows done for params.prompt_logprobs (kept over preemption)
  int64_t arrival = 0;              // counter; orders equals
  SeqId fork_of = -1;               // a sibling with the same prompt, already computed (n > 1)

  SeqStatus status = SeqStatus::waiting;
  FinishReason finish_reason = FinishReason::none;

  int32_t num_tokens() const { return int32_t(tokens.size()); }
  int32_t num_output_tokens() const { return num_tokens() - num_prompt_tokens; }
  bool finished() const { return status == SeqStatus::finished; }
};

}  // namespace nano
