#include <cstdio>
#include <optional>

#include <fmt/format.h>

#include "app/cli.h"          // ArgParser
#include "app/prompts.h"      // read_chat_template
#include "app/terminal.h"     // read_input
#include "base/error.h"       // Error
#include "base/json.h"        // parse_ordered_json
#include "llm/llm.h"          // load_tokenizer, check_messages, render_conversation
#include "llm/loader.h"       // find_model
#include "llm/output_json.h"  // json_text

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

struct TokenizeOptions {
  std::string model, messages, chat_template;
  std::optional<std::string> text, bos_token, eos_token;
  bool bos = true, special = true, generation_prompt = true, json = false;
};

bool parse(const Args& args, TokenizeOptions& o) {
  ArgParser parser(
      "tokenize",
      "Token ids of TEXT (or of stdin, byte for byte). Needs only the vocabulary: a .gguf file, a\n"
      "directory with the tokenizer's files, or a tokenizer.json.\n"
      "--json: {\"tokens\": [ids], \"text\": what was tokenised; with --messages the rendered prompt}");
  parser.positional("MODEL", o.model, "where the vocabulary is");
  parser.positional("TEXT", o.text, "the text; quote it");
  parser.add("model", o.model, "the same as MODEL");
  parser.add("json", o.json, "one JSON object");
  parser.add("bos", o.bos, "off: no BOS or EOS is added");
  parser.add("special", o.special, "off: \"<|im_start|>\" in the text is text, not the control token");
  parser.heading("Conversations");
  parser.add("messages", o.messages, "a JSON file with a list of messages, to be rendered");
  parser.add("chat-template", o.chat_template, "a file with a Jinja template, in place of the model's");
  parser.add("add-generation-prompt", o.generation_prompt, "end with the start of the assistant's turn");
  parser.option("bos-token", "TEXT", "bos_token of the template",
                [&](const std::string& v) { o.bos_token = v; });
  parser.option("eos-token", "TEXT", "eos_token of the template",
                [&](const std::string& v) { o.eos_token = v; });
  if (!parser.parse(args)) return false;
  if (o.text && !o.messages.empty()) parser.refuse("TEXT and --messages exclude each other");
  if (!o.text && o.messages.empty()) o.text = read_input("-");
  return true;
}

// The prompt of a conversation: text and ids.
Prompt render_messages(const Tokenizer& tokenizer, const TokenizeOptions& o) {
  const Json messages = parse_ordered_json(read_input(o.messages), o.messages);
  check_messages(messages, o.messages);
  const std::string source =
      o.chat_template.empty() ? tokenizer.chat_template : read_chat_template(o.chat_template);
  if (source.empty()) throw Error("this model has no chat template", o.model, "give --chat-template FILE");
  Json tokens = Json::object();
  if (o.bos_token) tokens["bos_token"] = *o.bos_token;
  if (o.eos_token) tokens["eos_token"] = *o.eos_token;
  return render_conversation(tokenizer, ChatTemplate(source), messages, o.generation_prompt, tokens);
}

void print_pieces(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  for (int32_t id : ids) {
    // Quoted as JSON, so that line breaks and spaces can be seen: as a piece inside a text, with its leading space.
    fmt::print("{:>7}  {}{}\n", id, json_text(Json(tokenizer.piece(id, false, false))),
               tokenizer.is_special(id) ? "  (special)" : "");
  }
  fmt::print("{} tokens\n", ids.size());
}

}  // namespace

int tokenize_command(const Args& args) {
  TokenizeOptions o;
  if (!parse(args, o)) return 0;
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(find_model(o.model));
  Prompt prompt;
  if (!o.messages.empty()) {
    prompt = render_messages(*tokenizer, o);
  } else {
    prompt.text = *o.text;
    prompt.token_ids =
        tokenizer->encode(prompt.text, {/*add_special_tokens=*/o.bos, /*parse_special=*/o.special});
  }
  if (o.json)
    fmt::print("{}\n", json_text(Json{{"tokens", prompt.token_ids}, {"text", prompt.text}}));
  else
    print_pieces(*tokenizer, prompt.token_ids);
  return 0;
}

}  // namespace nano
