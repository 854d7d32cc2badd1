#include <algorithm>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "app/cli.h"             // ArgParser
#include "app/prompts.h"         // read_chat_template
#include "app/sampling_flags.h"  // add_sampling_flags, make_sampling_params
#include "app/start.h"           // start_llm, stats_line
#include "app/terminal.h"        // Interrupt, LineReader
#include "base/error.h"          // Error
#include "llm/llm.h"             // LLM

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

const char* const kHelp =
    "/reset forgets the conversation, /bye leaves (so do /exit, Ctrl-D and two Ctrl-C), /help prints this;\n"
    "// begins a question with a slash; Ctrl-C stops an answer\n";

struct Chat {
  LLM& llm;
  SamplingParams params;
  std::string system;
  bool stats = true;
  Interrupt& interrupt;
  Json messages = Json::array();

  void reset() {
    messages = Json::array();
    if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
  }

  // One turn. The conversation keeps the answer, also a stopped one. Error: the turn cannot be (too long, the
  // template refuses); the conversation is as before then.
  void turn(const std::string& text) {
    Json with_question = messages;
    with_question.push_back({{"role", "user"}, {"content", text}});
    const Prompt prompt = llm.apply_chat_template(with_question);
    const auto room = int64_t(llm.loaded().resolved.scheduler.max_model_len);
    if (int64_t(prompt.token_ids.size()) >= room)
      throw Error(
          fmt::format("the conversation has {} tokens, the context {}", prompt.token_ids.size(), room),
          "chat", "/reset begins a new one");
    const RequestOutput out = answer(prompt);
    if (!out.error.empty()) throw Error(out.error, "chat");
    messages = std::move(with_question);
    messages.push_back({{"role", "assistant"}, {"content", out.outputs.at(0).text}});
  }

  RequestOutput answer(const Prompt& prompt) {
    const std::vector<RequestOutput> results =
        llm.generate({prompt}, {params}, print_delta, [&] { return interrupt.taken(); });
    const RequestOutput& out = results.at(0);
    print_rest(out);
    if (!out.error.empty()) return out;
    if (const std::string marks = ending_marks(results); !marks.empty()) print_stderr("{}\n", dim(marks));
    if (stats) print_stderr("{}\n", dim(stats_line(results)));
    return out;
  }
};

int loop(Chat& chat) {
  const bool interactive = stdin_is_terminal();
  LineReader reader(chat.interrupt);
  if (interactive) print_stderr("{}", dim(kHelp));
  bool failed = false, interrupted = false;
  chat.reset();
  for (std::string line;;) {
    if (interactive && !reader.edits()) fmt::print("> ");
    std::fflush(stdout);
    const LineReader::Got got = reader.read(line);
    if (got == LineReader::Got::end) break;
    const bool again = std::exchange(interrupted, got == LineReader::Got::interrupted);
    if (interrupted) {
      if (!interactive || chat.interrupt.terminated()) return 1;
      if (again) break;
      fmt::print("\n");
      print_stderr("{}", dim("Ctrl-C once more leaves\n"));
      continue;
    }
    if (line.empty()) continue;
    if (!interactive) fmt::print("> {}\n", line);  // so that what is written down can be read
    if (line == "/bye" || line == "/exit") break;
    if (line == "/help") {
      print_stderr("{}", kHelp);
    } else if (line == "/reset") {
      chat.reset();
    } else if (line[0] == '/' && line.rfind("//", 0) != 0) {
      print_stderr(
          "error: chat: '{}' is not a command (/help lists them; a question that begins with / is "
          "written with //)\n",
          line);
    } else {
      try {  // a failed turn is not the end of the conversation
        chat.turn(line[0] == '/' ? line.substr(1) : line);
      } catch (const Error& error) {
        print_stderr("error: {}\n", error.what());
        failed = true;
      }
      if (chat.interrupt.terminated()) return 1;
    }
  }
  if (interactive) fmt::print("\n");
  return failed && !interactive ? 1 : 0;
}

}  // namespace

int chat_command(const Args& args) {
  EngineOptions options;
  nlohmann::json sampling;
  std::string system, chat_template;
  ArgParser parser(
      "chat", std::string("A conversation on a terminal, or scripted: one line of stdin a turn.\n") + kHelp);
  add_engine_flags(parser, options);
  add_sampling_flags(parser, sampling);
  parser.heading("Conversation");
  parser.option("system", "TEXT", "the system message", [&](const std::string& v) { system = v; });
  parser.add("chat-template", chat_template, "a file with a Jinja template, in place of the model's");
  if (!parser.parse(args)) return 0;
  const SamplingParams params = make_sampling_params(options, sampling);
  if (params.n != 1) parser.refuse("a conversation has one answer: --n must be 1");

  const std::string source = read_chat_template(chat_template);
  const std::unique_ptr<LLM> llm = start_llm(options, {source, /*required=*/true});
  if (!llm->has_chat_template())
    throw Error("this model has no chat template", options.model,
                "give --chat-template FILE, or use `run --raw`");
  if (const std::string note = seed_note(options, params); options.stats && !note.empty())
    print_stderr("{}\n", dim(note));
  Interrupt interrupt;
  Chat chat{*llm, params, system, options.stats, interrupt};
  const int exit_code = loop(chat);
  return std::max(exit_code, close_trace(*llm));
}

}  // namespace nano
