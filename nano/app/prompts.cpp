#include "app/prompts.h"

#include <fmt/format.h>

#include "app/sampling_json.h"  // set_sampling_field
#include "base/error.h"         // Error
#include "base/json.h"          // parse_ordered_json
#include "base/mapped_file.h"   // read_file

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

Prompt id_prompt(const Json& ids, const std::string& where) {
  if (!ids.is_array() || ids.empty())
    throw Error("'prompt_token_ids' must be a list of at least one id", where);
  Prompt prompt;
  for (const Json& id : ids) {
    const bool fits = id.is_number_unsigned() && id.get<uint64_t>() <= uint64_t(INT32_MAX);
    if (!fits) throw Error("'prompt_token_ids' must be a list of ids from 0 on", where);
    prompt.token_ids.push_back(id.get<int32_t>());
  }
  return prompt;
}

bool is_source(const std::string& key) {
  return key == "prompt" || key == "messages" || key == "prompt_token_ids";
}

Prompt prompt_of(const LLM& llm, const Json& line, const PromptOptions& options, const std::string& where) {
  int sources = 0;
  for (const auto& [key, value] : line.items()) sources += is_source(key);
  if (sources != 1) throw Error("needs one of 'prompt', 'messages' and 'prompt_token_ids'", where);
  if (line.contains("messages")) return llm.apply_chat_template(line["messages"]);
  if (line.contains("prompt_token_ids")) return id_prompt(line["prompt_token_ids"], where);
  if (line["prompt"].is_array()) return id_prompt(line["prompt"], where);
  if (!line["prompt"].is_string()) throw Error("'prompt' must be a string or a list of token ids", where);
  return text_prompt(llm, line["prompt"].get<std::string>(), options);
}

PromptJob job_of(const LLM& llm, const std::string& text, const PromptOptions& options,
                 const SamplingParams& defaults, const std::string& where) {
  PromptJob job;
  job.params = defaults;
  try {  // one bad line fails alone
    Json line = parse_ordered_json(text, where);
    if (line.is_string()) line = Json{{"prompt", line}};
    if (!line.is_object()) throw Error("must be a JSON string or object", where);
    for (const auto& [key, value] : line.items())
      if (!is_source(key) && !set_sampling_field(job.params, key, nlohmann::json(value), where))
        throw Error("'" + key + "' is not a field of a prompt or of SamplingParams", where);
    job.prompt = prompt_of(llm, line, options, where);
  } catch (const Error& error) {
    job.prompt.text = text;
    job.error = error.what();
  }
  return job;
}

}  // namespace

Prompt text_prompt(const LLM& llm, const std::string& text, const PromptOptions& options) {
  Prompt prompt;
  prompt.text = text;
  if (options.raw || !llm.has_chat_template()) {
    if (!options.system.empty())
      throw Error("a system message needs a chat template", "--system",
                  options.raw ? "leave out --raw" : "give --chat-template FILE");
    return prompt;
  }
  Json messages = Json::array();
  if (!options.system.empty()) messages.push_back({{"role", "system"}, {"content", options.system}});
  messages.push_back({{"role", "user"}, {"content", text}});
  return llm.apply_chat_template(messages);
}

std::vector<PromptJob> jobs_from_jsonl(const LLM& llm, const std::string& path, const PromptOptions& options,
                                       const SamplingParams& defaults) {
  const std::string file = read_file(path);
  std::vector<PromptJob> jobs;
  int64_t number = 0;
  for (size_t begin = 0; begin < file.size();) {
    const size_t end = std::min(file.find('\n', begin), file.size());
    const std::string line = file.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    jobs.push_back(job_of(llm, line, options, defaults, fmt::format("{} line {}", path, number)));
  }
  if (jobs.empty()) throw Error("it holds no prompts", path, "one JSON string or object a line");
  return jobs;
}

}  // namespace nano
