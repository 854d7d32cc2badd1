// Where prompts come from: an argument, a list of ids, a conversation, or the lines of a JSONL file. In two steps, so
// that what the user wrote is read and checked before a model is loaded: first jobs, then (with the model) prompts.
#pragma once

#include <string>
#include <vector>

#include "llm/llm.h"  // LLM, Prompt, SamplingParams

namespace nano {

struct PromptOptions {
  bool raw = false;    // plain completion even if the model has a chat template
  std::string system;  // first message of the conversation; "" = none
};

// A request before it is one.
struct PromptJob {
  Prompt prompt;                    // ids, or a text that is still to be rendered, or an error
  nlohmann::ordered_json messages;  // a conversation; null: none
  nlohmann::ordered_json template_variables = nlohmann::ordered_json::object();  // what goes with it
  SamplingParams params;
  int32_t priority = 0;
};

// One job a non-empty line: "text", {"prompt": "text" or [ids]}, {"prompt_token_ids": [1, 2]} or
// {"messages": […]} (with "tools", "documents" and "chat_template_kwargs", as in vLLM's requests), the objects with
// "priority" and sampling fields of their own. A bad line is a job with an error.
// Error: the file can't be read, holds none, or no line of it is JSON.
std::vector<PromptJob> jobs_from_jsonl(const std::string& path, const SamplingParams& defaults);

// --chat-template FILE, "" for none. Error: it is empty, or can't be read.
std::string read_chat_template(const std::string& path);

// Will any of these go through a chat template, if there is one?
bool any_conversation(const std::vector<PromptJob>& jobs, const PromptOptions& options);

// Conversations, and texts as a user's message, through the chat template; texts as they are if raw, or if there is
// no template. prompt.error: the template's own complaint; a conversation or a system message without a template.
void render(const LLM& llm, PromptJob& job, const PromptOptions& options);

}  // namespace nano
