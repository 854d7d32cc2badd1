#include "app/ppl.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>

#include "app/output_json.h"   // json_text
#include "app/start.h"         // start_llm
#include "base/error.h"        // Error
#include "base/mapped_file.h"  // read_file

namespace nano {

namespace {

constexpr int64_t kDefaultChunk = 512;

struct Perplexity {
  double nll = 0;         // mean over all predicted tokens
  double nll_second = 0;  // mean over those of the second halves
  int64_t tokens = 0;     // predicted
  int64_t chunks = 0;
};

// Each chunk stands alone: token 0 is given, 1 … N-1 are predicted. llama.cpp counts only those that have at least
// N/2 tokens before them, so that no token is judged on a short context.
Perplexity measure(const std::vector<RequestOutput>& chunks) {
  Perplexity p;
  int64_t second = 0;
  for (const RequestOutput& chunk : chunks) {
    if (!chunk.error.empty()) throw Error(chunk.error, "perplexity");
    const auto n = int64_t(chunk.prompt_token_ids.size());
    for (int64_t i = 1; i < n; ++i) {
      const double nll = -double(chunk.prompt_logprobs.at(size_t(i - 1)).at(0).logprob);
      p.nll += nll, ++p.tokens;
      if (i > n / 2) p.nll_second += nll, ++second;
    }
    ++p.chunks;
  }
  p.nll /= double(p.tokens);
  p.nll_second /= double(second);
  return p;
}

std::vector<Prompt> cut(const std::vector<int32_t>& ids, int64_t size) {
  std::vector<Prompt> chunks;
  for (int64_t begin = 0; begin + size <= int64_t(ids.size()); begin += size)
    chunks.push_back({"", {ids.begin() + begin, ids.begin() + begin + size}});
  return chunks;
}

}  // namespace

int ppl_command(const Args& args) {
  EngineOptions options;
  std::string file;
  std::optional<int64_t> ctx;
  bool json = false;
  ArgParser parser(
      "ppl",
      "Perplexity of a text. It is tokenised whole and cut into chunks of --ctx tokens (a rest is\n"
      "dropped); each is predicted alone. Two definitions:\n"
      "  ppl              exp of the mean -log p over all predicted tokens\n"
      "  ppl_second_half  the same over the second half of each chunk, as llama.cpp's perplexity does");
  add_engine_flags(parser, options);
  parser.heading("Perplexity");
  parser.add("file", file, "the text");
  parser.add("ctx", ctx, "tokens a chunk [512, or what max-model-len allows]");
  parser.add("json", json, "{ppl, ppl_second_half, tokens, chunks, nll}");
  if (!parser.parse(args)) return 0;
  take_model(parser, options);
  no_more_positionals(parser);
  if (file.empty()) parser.refuse("--file is missing");
  const std::string text = read_file(file);

  Interrupt interrupt;
  const std::unique_ptr<LLM> llm = start_llm(options, interrupt);
  const int64_t longest =
      llm->loaded().resolved.scheduler.max_model_len - 1;  // room for the token that ends it
  const int64_t size = ctx.value_or(std::min(kDefaultChunk, longest));
  if (size < 4 || size > longest)
    throw Error(fmt::format("{} is out of range: from 4 to {}", size, longest), "nano ppl --ctx",
                "at most max-model-len less 1");
  const std::vector<Prompt> chunks = cut(llm->tokenizer().encode(text), size);
  if (chunks.empty())
    throw Error(fmt::format("the text has fewer than the {} tokens of one chunk", size), file,
                "give a smaller --ctx");

  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = 1;
  params.prompt_logprobs = 0;
  std::vector<RequestOutput> results;
  bool stopped = false;
  {
    ProgressBar bar("perplexity");
    int64_t done = 0;
    auto show = [&](const RequestOutput& out) { bar.show(done += out.finished, int64_t(chunks.size())); };
    results = llm->generate(chunks, {params}, show, [&] { return stopped = stopped || interrupt.taken(); });
  }
  if (stopped) {
    fmt::print(stderr, "error: interrupted\n");
    return 1;
  }
  const Perplexity p = measure(results);
  if (json) {
    fmt::print("{}\n", json_text({{"ppl", std::exp(p.nll)},
                                  {"ppl_second_half", std::exp(p.nll_second)},
                                  {"tokens", p.tokens},
                                  {"chunks", p.chunks},
                                  {"nll", p.nll}}));
  } else {
    fmt::print("perplexity {:.4f} over {} tokens in {} chunks of {} (mean -log p {:.5f})\n", std::exp(p.nll),
               p.tokens, p.chunks, size, p.nll);
    fmt::print("second halves only, as llama.cpp counts: {:.4f}\n", std::exp(p.nll_second));
  }
  return 0;
}

}  // namespace nano
