#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "app/cli.h"             // ArgParser
#include "app/explain.h"         // explain_all, explain_table
#include "app/prompts.h"         // jobs_from_jsonl, render, read_chat_template
#include "app/sampling_flags.h"  // add_sampling_flags, make_sampling_params
#include "app/start.h"           // start_llm, close_trace, stats_line
#include "app/terminal.h"        // Interrupt, ProgressBar, print_stderr, read_input
#include "base/error.h"          // Error
#include "llm/llm.h"             // LLM
#include "llm/output_json.h"     // request_output_json

namespace nano {

namespace {

struct RunOptions {
  EngineOptions engine;
  nlohmann::json sampling;
  PromptOptions prompt;
  std::string chat_template, prompts_file, token_ids;
  std::optional<std::string> text;
  bool json = false, explain = false;
};

bool parse(const Args& args, RunOptions& o) {
  ArgParser parser(
      "run",
      "Completes PROMPT: through the model's chat template if it has one, else as plain text.\n"
      "Without PROMPT, or with -, it is read from stdin (one line break at the end is dropped).");
  add_engine_flags(parser, o.engine);
  parser.positional("PROMPT", o.text, "the text; quote it");
  parser.option("prompt", "TEXT", "the same as PROMPT", [&](const std::string& v) { o.text = v; });
  add_sampling_flags(parser, o.sampling);
  parser.heading("Prompts and output");
  parser.add("raw", o.prompt.raw, "plain completion, even if the model has a chat template");
  parser.option("system", "TEXT", "the system message", [&](const std::string& v) { o.prompt.system = v; });
  parser.add("chat-template", o.chat_template, "a file with a Jinja template, in place of the model's");
  parser.add(
      "prompts", o.prompts_file,
      "a file (- = stdin) with a JSON string or object a line: {\"prompt\": …}, {\"messages\": […]} or "
      "{\"prompt_token_ids\": […]}, with sampling fields of its own; all run in one batch");
  parser.add("prompt-token-ids", o.token_ids, "the prompt as ids: 1,2,3");
  parser.add("json", o.json, "one RequestOutput a line");
  parser.add("explain", o.explain, "how each token was chosen: the best five after each step of the sampler");
  if (!parser.parse(args)) return false;
  if (int(o.text.has_value()) + !o.prompts_file.empty() + !o.token_ids.empty() > 1)
    parser.refuse("PROMPT, --prompts and --prompt-token-ids exclude each other");
  if (o.prompts_file.empty() && o.token_ids.empty() && (!o.text || *o.text == "-")) {
    const bool nothing = !o.text && stdin_is_terminal();
    o.text = nothing ? "" : read_input("-");
    if (!o.text->empty() && o.text->back() == '\n') o.text->pop_back();
    if (o.text->empty())
      throw Error(nothing ? "no PROMPT was given" : "no PROMPT was given, and stdin is empty",
                  "build/nano run",
                  "give PROMPT, --prompts FILE or --prompt-token-ids; \"\" is an empty PROMPT");
  }
  return true;
}

std::vector<PromptJob> make_jobs(const RunOptions& o) {
  const SamplingParams params = make_sampling_params(o.engine, o.sampling);
  if (!o.prompts_file.empty()) return jobs_from_jsonl(o.prompts_file, params);
  PromptJob job;
  job.params = params;
  if (!o.token_ids.empty())
    job.prompt.token_ids = parse_id_list(o.token_ids, "build/nano run --prompt-token-ids");
  else
    job.prompt.text = *o.text;
  return {job};
}

using Explained = std::map<std::string, nlohmann::ordered_json>;  // by request: one object a token

// Into `explained`, for --json, or at once onto the screen.
void start_explaining(LLM& llm, bool several, bool json, Explained& explained) {
  explain_all(llm, [=, &explained](const std::string& id, nlohmann::ordered_json token) {
    explained[id].push_back(std::move(token));
    if (json) return;
    const std::string number = fmt::format("token {}", explained[id].size());
    fmt::print("{}", explain_table(explained[id].back(),
                                   several ? fmt::format("prompt {}, {}", id, number) : number));
    std::fflush(stdout);
  });
}

// An answer alone is printed while it comes; of several, a bar says how many are done. It is wiped at the end.
std::vector<RequestOutput> answer(LLM& llm, const std::vector<PromptJob>& jobs, bool streams, bool quiet,
                                  Interrupt& interrupt) {
  std::vector<Prompt> prompts;
  std::vector<SamplingParams> params;
  std::vector<int32_t> priorities;
  for (const PromptJob& job : jobs) {
    prompts.push_back(job.prompt);
    params.push_back(job.params);
    priorities.push_back(job.priority);
  }
  ProgressBar bar("answering");
  int64_t done = 0;
  auto show = [&](const RequestOutput& out) { bar.show(done += out.finished, int64_t(jobs.size())); };
  const LLM::OnUpdate on_update = quiet ? nullptr : streams ? LLM::OnUpdate(print_delta) : show;
  return llm.generate(
      prompts, params, on_update, [&] { return interrupt.taken(); }, priorities);
}

void print_text(const std::vector<RequestOutput>& results) {
  for (const RequestOutput& result : results)
    for (const CompletionOutput& answer : result.outputs) {
      if (results.size() > 1) fmt::print("[prompt {}] ", result.request_id);
      if (result.outputs.size() > 1) fmt::print("[answer {}] ", answer.index);
      fmt::print("{}\n", answer.text);
    }
}

// How many failed. A file that is no file of prompts has as many errors as lines: the first few say it.
size_t report_errors(const std::vector<RequestOutput>& results) {
  constexpr size_t kShown = 5;
  size_t failed = 0;
  for (const RequestOutput& result : results)
    if (!result.error.empty() && ++failed <= kShown)
      print_stderr("error: prompt {}: {}\n", result.request_id, result.error);
  if (failed > kShown)
    print_stderr("error: {} more of {} prompts failed (--json has all errors)\n", failed - kShown,
                 results.size());
  return failed;
}

// The text began with a BOS of its own, and the tokenizer added one: the model has never seen that.
void warn_of_two_bos(const std::vector<RequestOutput>& results, int32_t bos) {
  for (const RequestOutput& result : results) {
    const std::vector<int32_t>& ids = result.prompt_token_ids;
    if (bos >= 0 && ids.size() >= 2 && ids[0] == bos && ids[1] == bos)
      print_stderr("warning: prompt {} begins with two BOS tokens: leave one out of the text\n",
                   result.request_id);
  }
}

}  // namespace

int run_command(const Args& args) {
  RunOptions o;
  if (!parse(args, o)) return 0;
  std::vector<PromptJob> jobs = make_jobs(o);
  for (const PromptJob& job : jobs)
    if (o.explain && job.params.n > 1)
      throw Error(fmt::format("one answer to each prompt can be explained, and n is {}", job.params.n),
                  "build/nano run --explain", "use n = 1");
  const std::string source = read_chat_template(o.chat_template);
  const std::unique_ptr<LLM> llm = start_llm(o.engine, {source, any_conversation(jobs, o.prompt)});
  for (const char* name : {"logprobs", "prompt_logprobs"})
    if (!o.json && o.sampling.contains(name)) print_stderr("note: {} are shown with --json only\n", name);
  Interrupt interrupt;
  for (PromptJob& job : jobs) render(*llm, job, o.prompt);
  Explained explained;
  if (o.explain) start_explaining(*llm, jobs.size() > 1, o.json, explained);
  const bool streams = !o.json && !o.explain && jobs.size() == 1 && jobs[0].params.n == 1;
  const std::vector<RequestOutput> results = answer(*llm, jobs, streams, o.explain && !o.json, interrupt);

  if (o.json) {
    for (const RequestOutput& result : results) {
      nlohmann::ordered_json line = request_output_json(result, llm->tokenizer());
      if (o.explain) line["explain"] = explained[result.request_id];
      fmt::print("{}\n", json_text(line));
    }
  } else if (!streams) {
    print_text(results);
  } else {
    print_rest(results[0]);
  }
  std::fflush(stdout);
  warn_of_two_bos(results, llm->tokenizer().bos_id);

  bool good = close_trace(*llm) == 0;
  const size_t failed = report_errors(results);
  for (const RequestOutput& result : results)
    for (const CompletionOutput& answer : result.outputs) good &= answer.finish_reason != FinishReason::abort;
  if (o.engine.stats && failed < results.size())
    for (const std::string& line :
         {ending_marks(results), stats_line(results), seed_note(o.engine, jobs[0].params)})
      if (!line.empty()) print_stderr("{}\n", dim(line));
  return good && failed == 0 ? 0 : 1;
}

}  // namespace nano
