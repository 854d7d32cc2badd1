#include <algorithm>
#include <cstdio>
#include <optional>

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "app/cli.h"             // ArgParser
#include "llm/llm.h"             // LLM
#include "app/sampling_flags.h"  // add_sampling_flags, make_sampling_params
#include "app/start.h"           // start_llm, stats_line
#include "app/terminal.h"        // Interrupt, read_input
#include "base/error.h"          // Error

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

const char* const kHelp =
    "/reset forgets the conversation, /exit leaves (so does Ctrl-D), /help prints this; Ctrl-C stops an "
    "answer\n";

// A line of stdin, read so that Ctrl-C at the prompt can be told from input: byte by byte, because what a buffer took
// in could not be waited for.
enum class Got { line, end, interrupted };
Got read_line(Interrupt& interrupt, std::string& line) {
  for (line.clear();;) {
    pollfd fds[2] = {{STDIN_FILENO, POLLIN, 0}, {interrupt.descriptor(), POLLIN, 0}};
    if (poll(fds, 2, -1) < 0) continue;
    if (interrupt.taken()) return Got::interrupted;
    char byte;
    const bool ended = read(STDIN_FILENO, &byte, 1) <= 0;
    if (ended && line.empty()) return Got::end;
    if (ended || byte == '\n') break;
    line += byte;
  }
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return Got::line;
}

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
    if (!out.error.empty()) return out;
    const CompletionOutput& text = out.outputs.at(0);
    print_rest(out);
    if (text.finish_reason == FinishReason::abort) print_stderr("{}\n", dim("[stopped]"));
    if (text.finish_reason == FinishReason::length)
      print_stderr("{}\n", dim("[cut: --max-tokens, or the context is full]"));
    if (stats) print_stderr("{}\n", dim(stats_line(results)));
    return out;
  }
};

int loop(Chat& chat) {
  const bool interactive = stdin_is_terminal();
  if (interactive) print_stderr("{}", dim(kHelp));
  bool failed = false;
  chat.reset();
  for (std::string line;;) {
    if (interactive) {
      fmt::print("> ");
      std::fflush(stdout);
    }
    const Got got = read_line(chat.interrupt, line);
    if (got == Got::end) break;
    if (got == Got::interrupted) {
      if (!interactive || chat.interrupt.terminated()) return 1;
      fmt::print("\n");
      print_stderr("{}", dim(kHelp));
      continue;
    }
    if (line.empty()) continue;
    if (line == "/exit") break;
    if (line == "/help") {
      print_stderr("{}", kHelp);
    } else if (line == "/reset") {
      chat.reset();
    } else if (line[0] == '/') {
      print_stderr("error: chat: '{}' is not a command ({})\n", line, "/help lists them");
    } else {
      try {  // a failed turn is not the end of the conversation
        chat.turn(line);
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

  const std::string source = chat_template.empty() ? "" : read_input(chat_template);
  const std::unique_ptr<LLM> llm = start_llm(options, {source, /*required=*/true});
  if (!llm->has_chat_template())
    throw Error("this model has no chat template", options.model,
                "give --chat-template FILE, or use `run --raw`");
  Interrupt interrupt;
  Chat chat{*llm, params, system, options.stats, interrupt};
  const int exit_code = loop(chat);
  return std::max(exit_code, close_trace(*llm));
}

}  // namespace nano
