#include "app/start.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <unistd.h>

#include "bench/measure.h"    // add_up
#include "llm/output_file.h"  // check_output_file
#include "llm/output_json.h"  // json_text

namespace nano {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kEnoughForRate = 8;  // tokens

// Do they name one file, be it there or not yet?
bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code error;
  if (fs::equivalent(a, b, error)) return true;
  const fs::path place = fs::weakly_canonical(a, error);
  return !place.empty() && place == fs::weakly_canonical(b, error);  // empty: a pipe, say
}

}  // namespace

std::unique_ptr<LLM> start_llm(const EngineOptions& options, const ChatTemplateOptions& chat_template,
                               const Observe& observe) {
  std::unique_ptr<LLM> llm;
  {
    ProgressBar bar("loading");
    llm = std::make_unique<LLM>(
        options, [&](int64_t done, int64_t total) { bar.show(done, total); }, chat_template, observe);
  }
  if (options.stats) print_stderr("{}", dim(start_report(llm->loaded())));
  if (const auto& unused = llm->loaded().weights->unused_tensors; !unused.empty())
    print_stderr("warning: {} in the file but not in the model: {}{}\n",
                 unused.size() == 1 ? "a tensor is" : fmt::format("{} tensors are", unused.size()), unused[0],
                 unused.size() == 1 ? "" : ", … (`build/nano info` lists them)");
  return llm;
}

int close_trace(LLM& llm) {
  LoadedEngine& loaded = llm.loaded();
  if (!loaded.trace) return 0;
  loaded.engine->trace_to(nullptr);
  return loaded.trace->close() ? 0 : 1;
}

void print_delta(const RequestOutput& output) {
  fmt::print("{}", output.outputs[0].delta);
  std::fflush(stdout);
}

void print_rest(const RequestOutput& output) {
  if (output.outputs.empty() || (!output.error.empty() && output.outputs[0].text.empty())) return;
  const bool stopped = output.outputs[0].finish_reason == FinishReason::abort;
  fmt::print("{}\n", stopped ? output.outputs[0].delta : "");
  std::fflush(stdout);
}

std::string ending_marks(const std::vector<RequestOutput>& results) {
  int64_t all = 0, stopped = 0, cut = 0;
  for (const RequestOutput& result : results)
    for (const CompletionOutput& answer : result.outputs) {
      ++all;
      stopped += answer.finish_reason == FinishReason::abort;
      cut += answer.finish_reason == FinishReason::length;
    }
  auto of_all = [&](int64_t some) { return all == 1 ? "" : fmt::format(" {} of {} answers", some, all); };
  std::string marks = stopped > 0 ? fmt::format("[stopped{}]", of_all(stopped)) : "";
  if (stopped > 0 && cut > 0) marks += " ";
  return cut > 0 ? marks + fmt::format("[cut{}: --max-tokens, or the context is full]", of_all(cut)) : marks;
}

std::string stats_line(const std::vector<RequestOutput>& results) {
  const Totals t = add_up(results);
  std::string line = fmt::format("{} prompt tokens", t.prompt);
  if (t.generated == 0) return line + ", nothing generated";
  if (t.cached > 0) line += fmt::format(" ({} cached)", t.cached);
  line += fmt::format(", first token after {:.2f} s; {} tokens in {:.2f} s", t.first_token - t.begin,
                      t.generated, t.end - t.begin);
  // Decoding alone: the first token belongs to the prompt's time.
  if (t.generated >= kEnoughForRate && t.end > t.first_token)
    line += fmt::format(", decode {:.1f} tokens/s", double(t.generated - 1) / (t.end - t.first_token));
  return line;
}

void check_results_file(const std::string& flag, const std::string& path, const EngineOptions& options) {
  check_output_file(flag, path, options);
  check_results_file(flag, path, std::vector{options.trace});
}

void check_results_file(const std::string& flag, const std::string& path,
                        const std::vector<std::string>& others) {
  if (path.empty()) return;
  std::error_code ignored;  // what cannot be looked at cannot be written
  const bool there = fs::exists(path, ignored);
  const fs::path asked = there ? fs::path(path) : fs::path(path).parent_path() / ".";
  if ((there && fs::is_directory(path, ignored)) || access(asked.c_str(), W_OK) != 0)
    throw Error("cannot be written", path);
  for (const std::string& other : others)
    if (!other.empty() && same_file(path, other))
      throw Error(path + " is named by another argument too, and would be overwritten", flag,
                  "name another file");
}

void write_results(const std::string& path, const nlohmann::ordered_json& result) {
  if (path.empty()) return;
  std::ofstream out(path);
  out << json_text(result, 4) << "\n";
  if (!out.flush()) throw Error("cannot be written", path);
}

}  // namespace nano
