#include "app/ppl.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>

#include "app/cli.h"          // ArgParser
#include "app/start.h"        // start_llm, close_trace
#include "app/terminal.h"     // Interrupt, ProgressBar, read_input
#include "base/error.h"       // Error
#include "llm/output_json.h"  // filled, json_text

namespace nano {

namespace {

constexpr int64_t kDefaultChunk = 512;

// Each chunk stands alone: token 0 is given (BOS, if the tokenizer adds one: the model has never seen a text
// without), 1 … N-1 are predicted. llama.cpp counts only those that have at least N/2 tokens before them, so that no
// token is judged on a short context.
Perplexity measure(const std::vector<RequestOutput>& chunks, int64_t n) {
  Perplexity p;
  double second_nll = 0;
  int64_t second = 0;
  for (const RequestOutput& chunk : chunks) {
    if (!chunk.error.empty()) throw Error(chunk.error, "perplexity");
    for (int64_t i = 1; i < n; ++i) {
      const auto& logprobs =
          i < n - 1 ? chunk.prompt_logprobs.at(size_t(i - 1)) : chunk.outputs.at(0).logprobs.at(0);
      const double nll = -double(logprobs.at(0).logprob);
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

}  // namespace

Perplexity measure_perplexity(LLM& llm, const std::string& text, int64_t ctx,
                              const std::function<void(int64_t, int64_t)>& progress) {
  const LoadedEngine& loaded = llm.loaded();
  const int64_t longest = loaded.resolved.scheduler.max_model_len;
  if (ctx < 4 || ctx > longest)
    throw Error(fmt::format("{} is out of range: from 4 to {}", ctx, longest), "perplexity: ctx",
                "at most max-model-len");
  if (!loaded.options.sampler) throw Error("needs the sampler", "perplexity", "leave out --no-sampler");
  const Tokenizer& tokenizer = llm.tokenizer();
  const std::vector<int32_t> ids = tokenizer.encode(text);
  std::vector<Prompt> prompts;
  std::vector<SamplingParams> params;
  for (auto chunk = ids.begin(); ids.end() - chunk >= ctx; chunk += ctx) {
    prompts.push_back({"", {chunk, chunk + ctx - 1}});
    if (!tokenizer.prefix_ids.empty() && tokenizer.bos_id >= 0)
      prompts.back().token_ids[0] = tokenizer.bos_id;
    // The last token is forced as the answer: then a chunk can fill the whole context.
    SamplingParams& p = params.emplace_back();
    p.temperature = 0;
    p.max_tokens = 1;
    p.prompt_logprobs = p.logprobs = 0;
    p.allowed_token_ids = {chunk[ctx - 1]};
  }
  if (prompts.empty())
    throw Error(fmt::format("the text has {} tokens, fewer than the {} of one chunk", ids.size(), ctx),
                "perplexity", "give a smaller --ctx");
  int64_t done = 0;
  auto update = [&](const RequestOutput& out) {
    done += out.finished;
    if (progress) progress(done, int64_t(prompts.size()));
  };
  return measure(llm.generate(prompts, params, update), ctx);
}

int ppl_command(const Args& args) {
  EngineOptions options;
  std::string file;
  std::optional<int64_t> ctx;
  bool json = false;
  ArgParser parser(
      "ppl",
      "Perplexity of a text. It is tokenised whole and cut into chunks of --ctx tokens (a rest is\n"
      "dropped); each is predicted alone. If the tokenizer adds BOS, it takes the place of the first token\n"
      "of every chunk, as in llama.cpp. Two definitions:\n"
      "  ppl              exp of the mean -log p over all predicted tokens\n"
      "  ppl_second_half  the same over the second half of each chunk, as llama.cpp's perplexity does\n"
      "Example: build/nano ppl tiny --file README.md --ctx 256");
  add_engine_flags(parser, options);
  parser.heading("Perplexity");
  parser.add("file", file, "the text; - = stdin");
  parser.add("ctx", ctx, "tokens a chunk; at most max-model-len [512, or max-model-len if that is less]");
  parser.add("json", json, "{ppl, ppl_second_half, tokens, chunks, nll}");
  if (!parser.parse(args)) return 0;
  if (file.empty()) parser.refuse("--file is missing");
  options.sampler = true;  // nothing is drawn: it only has to know which token comes
  const std::string text = read_input(file);

  const std::unique_ptr<LLM> llm = start_llm(options);
  Interrupt interrupt;
  const int64_t longest = llm->loaded().resolved.scheduler.max_model_len;
  const int64_t size = ctx.value_or(std::min(kDefaultChunk, longest));
  Perplexity p;
  {
    ProgressBar bar("perplexity");
    p = measure_perplexity(*llm, text, size, [&](int64_t done, int64_t total) {
      interrupt.end_if_taken();
      bar.show(done, total);
    });
  }
  const nlohmann::ordered_json result = {{"ppl", p.ppl},
                                         {"ppl_second_half", p.ppl_second_half},
                                         {"tokens", p.tokens},
                                         {"chunks", p.chunks},
                                         {"nll", p.nll}};
  fmt::print("{}\n",
             json ? json_text(result)
                  : filled("perplexity {ppl:.4f} over {tokens} tokens in {chunks} chunks (mean -log p "
                           "{nll:.5f})\nsecond halves only, as llama.cpp counts: {ppl_second_half:.4f}",
                           result));
  return close_trace(*llm);
}

}  // namespace nano
