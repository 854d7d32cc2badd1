#include "app/ppl.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>

#include "app/cli.h"           // ArgParser
#include "app/commands.h"      // ppl_command
#include "app/output_json.h"   // json_text
#include "app/start.h"         // start_llm
#include "base/error.h"        // Error
#include "base/mapped_file.h"  // read_file

namespace nano {

namespace {

constexpr int64_t kDefaultChunk = 512;

// Each chunk stands alone: token 0 is given, 1 … N-1 are predicted. llama.cpp counts only those that have at least
// N/2 tokens before them, so that no token is judged on a short context.
Perplexity measure(const std::vector<RequestOutput>& chunks) {
  Perplexity p;
  double second_nll = 0;
  int64_t second = 0;
  for (const RequestOutput& chunk : chunks) {
    if (!chunk.error.empty()) throw Error(chunk.error, "perplexity");
    const auto n = int64_t(chunk.prompt_token_ids.size());
    for (int64_t i = 1; i < n; ++i) {
      const double nll = -double(chunk.prompt_logprobs.at(size_t(i - 1)).at(0).logprob);
      p.nll += nll, ++p.tokens;
      if (i > n / 2) second_nll += nll, ++second;
    }
    ++p.chunks;
  }
  p.nll /= double(p.tokens);
  p.ppl = std::exp(p.nll);
  p.ppl_second_half = std::exp(second_nll / double(second));
  return p;
}

std::vector<Prompt> cut(const std::vector<int32_t>& ids, int64_t size) {
  std::vector<Prompt> chunks;
  for (int64_t begin = 0; begin + size <= int64_t(ids.size()); begin += size)
    chunks.push_back({"", {ids.begin() + begin, ids.begin() + begin + size}});
  return chunks;
}

// A chunk needs room for the token that ends it.
int64_t longest_chunk(const LLM& llm) { return llm.loaded().resolved.scheduler.max_model_len - 1; }

}  // namespace

Perplexity measure_perplexity(LLM& llm, const std::string& text, int64_t ctx,
                              const std::function<void(int64_t, int64_t)>& progress) {
  const int64_t longest = longest_chunk(llm);
  if (ctx < 4 || ctx > longest)
    throw Error(fmt::format("{} is out of range: from 4 to {}", ctx, longest), "perplexity: ctx",
                "at most max-model-len less 1");
  const std::vector<Prompt> chunks = cut(llm.tokenizer().encode(text), ctx);
  if (chunks.empty())
    throw Error(fmt::format("the text has fewer than the {} tokens of one chunk", ctx), "perplexity",
                "give a smaller --ctx");
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = 1;
  params.prompt_logprobs = 0;
  int64_t done = 0;
  return measure(llm.generate(chunks, {params}, [&](const RequestOutput& out) {
    done += out.finished;
    if (progress) progress(done, int64_t(chunks.size()));
  }));
}

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
  const int64_t size = ctx.value_or(std::min(kDefaultChunk, longest_chunk(*llm)));
  Perplexity p;
  {
    ProgressBar bar("perplexity");
    p = measure_perplexity(*llm, text, size, [&](int64_t done, int64_t total) {
      interrupt.let_through();
      bar.show(done, total);
    });
  }
  close_trace(*llm);
  if (json) {
    fmt::print("{}\n", json_text({{"ppl", p.ppl},
                                  {"ppl_second_half", p.ppl_second_half},
                                  {"tokens", p.tokens},
                                  {"chunks", p.chunks},
                                  {"nll", p.nll}}));
  } else {
    fmt::print("perplexity {:.4f} over {} tokens in {} chunks of {} (mean -log p {:.5f})\n", p.ppl, p.tokens,
               p.chunks, size, p.nll);
    fmt::print("second halves only, as llama.cpp counts: {:.4f}\n", p.ppl_second_half);
  }
  return 0;
}

}  // namespace nano
