#include "app/dummy_tokenizer.h"

#include <utility>

#include <fmt/format.h>

namespace nano {

std::unique_ptr<Tokenizer> make_dummy_tokenizer(int32_t vocab_size) {
  BpeModel::Options options;
  options.byte_level = false;
  options.byte_fallback = true;
  BpeModel model(options);
  std::vector<Tokenizer::Token> tokens;
  for (int32_t id = 0; id < vocab_size; ++id) {
    Tokenizer::Token token;
    token.text = id < 256 ? fmt::format("<0x{:02X}>", id) : fmt::format("<{}>", id);
    token.bytes = fmt::format(" {}", id);
    if (id < 256) model.add_token(id, token.text, false);
    tokens.push_back(std::move(token));
  }
  return std::make_unique<Tokenizer>(std::move(tokens), std::move(model), Normalizer(), Pretokenizer());
}

}  // namespace nano
