#include "app/start.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

namespace nano {

std::unique_ptr<LLM> start_llm(const EngineOptions& options, Interrupt& interrupt,
                               const ChatTemplateOptions& chat_template) {
  std::unique_ptr<LLM> llm;
  {
    ProgressBar bar("loading");
    auto progress = [&](int64_t done, int64_t total) {
      interrupt.let_through();
      bar.show(done, total);
    };
    llm = std::make_unique<LLM>(options, progress, chat_template);
  }
  if (options.stats) print_stderr("{}", dim(start_report(llm->loaded())));
  if (const auto& unused = llm->loaded().weights->unused_tensors; !unused.empty())
    print_stderr("warning: {} in the file but not in the model: {}{}\n",
                 unused.size() == 1 ? "a tensor is" : fmt::format("{} tensors are", unused.size()), unused[0],
                 unused.size() == 1 ? "" : ", … (`nano info` lists them)");
  return llm;
}

void close_trace(LLM& llm) {
  LoadedEngine& loaded = llm.loaded();
  if (!loaded.trace) return;
  loaded.engine->trace_to(nullptr);
  loaded.trace->close();
}

std::string stats_line(const std::vector<RequestOutput>& results) {
  int64_t prompt = 0, cached = 0, generated = 0;
  double begin = 1e300, first = 1e300, end = 0;
  for (const RequestOutput& result : results) {
    if (result.metrics.finished == 0) continue;  // it never ran
    prompt += int64_t(result.prompt_token_ids.size());
    cached += result.num_cached_tokens;
    for (const CompletionOutput& answer : result.outputs) generated += int64_t(answer.token_ids.size());
    begin = std::min(begin, result.metrics.arrival);
    if (result.metrics.first_token > 0) first = std::min(first, result.metrics.first_token);
    end = std::max(end, result.metrics.finished);
  }
  if (end == 0 || generated == 0) return fmt::format("{} prompt tokens, nothing generated", prompt);
  std::string line = fmt::format("{} prompt tokens", prompt);
  if (cached > 0) line += fmt::format(" ({} cached)", cached);
  line += fmt::format(", first token after {:.2f} s; {} tokens in {:.2f} s", first - begin, generated,
                      end - begin);
  // Decoding alone: the first token belongs to the prompt's time.
  if (generated > 1 && end > first)
    line += fmt::format(", {:.1f} tokens/s", double(generated - 1) / (end - first));
  return line;
}

}  // namespace nano
