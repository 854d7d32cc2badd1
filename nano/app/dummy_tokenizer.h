// A tokenizer for models that have none: --load-format dummy on a config.json alone. A byte is a token, and a
// token's text is its number: random weights have nothing to say, but everything around them can run.
#pragma once

#include <memory>

#include "text/tokenizer.h"  // Tokenizer

namespace nano {

std::unique_ptr<Tokenizer> make_dummy_tokenizer(int32_t vocab_size);

}  // namespace nano
