// Where prompts come from: an argument, stdin, a list of ids, a conversation, or the lines of a JSONL file.
#pragma once

#include <string>
#include <vector>

#include "app/llm.h"  // LLM, Prompt, SamplingParams

namespace nano {

struct PromptOptions {
  bool raw = false;    // plain completion even if the model has a chat template
  std::string system;  // first message of the conversation; "" = none
};

// A request before it is one. `error` set: it can't become one, and this is why.
struct PromptJob {
  Prompt prompt;
  SamplingParams params;
  std::string error;
};

// `text` as a user's message through the chat template, or as it is (no template, or raw).
// Error: the template's own complaint; a system message without a template.
Prompt text_prompt(const LLM& llm, const std::string& text, const PromptOptions& options);

// One job a non-empty line: "text", {"prompt": "text" or [ids]}, {"prompt_token_ids": [1, 2]} or
// {"messages": […]}, the objects with sampling fields of their own. A bad line is a job with an error.
std::vector<PromptJob> jobs_from_jsonl(const LLM& llm, const std::string& path, const PromptOptions& options,
                                       const SamplingParams& defaults);

}  // namespace nano
