// Perplexity of a text, in the plain definition and in llama.cpp's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "llm/llm.h"  // LLM

namespace nano {

struct Perplexity {
  double ppl = 0;              // exp of nll
  double ppl_second_half = 0;  // the same over the second half of each chunk
  double nll = 0;              // mean -log p over all predicted tokens
  int64_t tokens = 0;          // predicted
  int64_t chunks = 0;
};

// The text is tokenised whole and cut into chunks of `ctx` tokens (a rest is dropped); each is predicted alone. BOS,
// if the tokenizer adds it, takes the place of the first token of every chunk (llama.cpp's definition).
// progress(done, total) is called with chunks. Error: ctx out of range, or a text shorter than one chunk.
Perplexity measure_perplexity(LLM& llm, const std::string& text, int64_t ctx,
                              const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace nano
