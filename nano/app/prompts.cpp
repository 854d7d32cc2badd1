#include "app/prompts.h"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

#include "app/sampling_flags.h"  // raise_low_temperature
#include "app/terminal.h"        // read_input
#include "base/error.h"          // Error
#include "base/json.h"           // parse_ordered_json
#include "llm/sampling_json.h"   // set_sampling_field, id_list, integer32

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

bool is_source(const std::string& key) {
  return key == "prompt" || key == "messages" || key == "prompt_token_ids";
}

void set_source(PromptJob& job, const Json& line, const std::string& where) {
  int sources = 0;
  for (const auto& [key, value] : line.items()) sources += is_source(key);
  if (sources != 1) throw Error("needs one of 'prompt', 'messages' and 'prompt_token_ids'", where);
  if (line.contains("messages")) {
    job.messages = line["messages"];
    check_messages(job.messages, where);
    return;
  }
  const char* key = line.contains("prompt") ? "prompt" : "prompt_token_ids";
  const bool texts =
      line.contains("prompt") && line[key].is_array() && !line[key].empty() && line[key][0].is_string();
  if (texts && line[key].size() > 1) throw Error("'prompt' holds several texts", where, "write one a line");
  const Json& given = texts ? line[key][0] : line[key];  // a list of one text is what the API's clients send
  const bool ids = line.contains("prompt_token_ids") || given.is_array();
  if (ids)
    job.prompt.token_ids = id_list(given, where, key);
  else if (given.is_string())
    job.prompt.text = given.get<std::string>();
  else
    throw Error("'prompt' must be a string or a list of token ids", where);
  if (ids && job.prompt.token_ids.empty()) throw Error(std::string("'") + key + "' is an empty list", where);
}

// What a conversation's template sees besides the messages. False: `key` is something else.
bool set_template_variable(PromptJob& job, const std::string& key, const Json& value,
                           const std::string& where) {
  if (key == "chat_template_kwargs") {
    check_template_kwargs(value, where);
    job.template_variables.update(value);
    return true;
  }
  if (key != "tools" && key != "documents") return false;
  bool good = value.is_array();
  for (const Json& one : value) good = good && one.is_object();
  if (!good && !value.is_null()) throw Error("'" + key + "' must be a list of objects", where);
  job.template_variables[key] = value;
  return true;
}

// `is_json`: set if it is.
PromptJob job_of(const std::string& text, const SamplingParams& defaults, const std::string& where,
                 bool& is_json) {
  PromptJob job;
  job.params = defaults;
  try {  // one bad line fails alone
    Json line = parse_ordered_json(text, where);
    is_json = true;
    if (line.is_string()) line = Json{{"prompt", line}};
    if (!line.is_object()) throw Error("must be a JSON string or object", where);
    for (const auto& [key, value] : line.items()) {
      if (key == "priority")
        job.priority = integer32(value, where, key);
      else if (!is_source(key) && !set_template_variable(job, key, value, where) &&
               !set_sampling_field(job.params, key, nlohmann::json(value), where))
        throw Error("'" + key + "' is not a field of a prompt or of SamplingParams", where);
    }
    set_source(job, line, where);
    if (!job.template_variables.empty() && job.messages.is_null())
      throw Error("tools, documents and chat_template_kwargs go with 'messages'", where);
    raise_low_temperature(job.params, where);  // the defaults' is raised already
  } catch (const Error& error) {
    job.prompt.text = text;
    job.prompt.error = error.what();
  }
  return job;
}

// What the template is to render; null: nothing, the prompt is plain.
Json conversation_of(const LLM& llm, const PromptJob& job, const PromptOptions& options) {
  if (!job.messages.is_null()) return job.messages;
  if (!job.prompt.token_ids.empty()) return nullptr;
  if (options.raw || !llm.has_chat_template()) {
    if (!options.system.empty())
      throw Error("a system message needs a chat template", "--system",
                  options.raw ? "leave out --raw" : "give --chat-template FILE");
    return nullptr;
  }
  Json messages = Json::array();
  if (!options.system.empty()) messages.push_back({{"role", "system"}, {"content", options.system}});
  messages.push_back({{"role", "user"}, {"content", job.prompt.text}});
  return messages;
}

}  // namespace

std::string read_chat_template(const std::string& path) {
  const std::string source = path.empty() ? "" : read_input(path);
  if (source.empty() && !path.empty()) throw Error("the file is empty", path, "a Jinja template is wanted");
  return source;
}

bool any_conversation(const std::vector<PromptJob>& jobs, const PromptOptions& options) {
  return std::any_of(jobs.begin(), jobs.end(), [&](const PromptJob& job) {
    const bool text = job.prompt.token_ids.empty();
    return job.prompt.error.empty() && (!job.messages.is_null() || (text && !options.raw));
  });
}

void render(const LLM& llm, PromptJob& job, const PromptOptions& options) {
  if (!job.prompt.error.empty()) return;
  try {
    const Json messages = conversation_of(llm, job, options);
    if (!messages.is_null()) job.prompt = llm.apply_chat_template(messages, true, job.template_variables);
  } catch (const Error& error) {
    job.prompt.error = error.what();
  }
}

std::vector<PromptJob> jobs_from_jsonl(const std::string& path, const SamplingParams& defaults) {
  std::istringstream file(read_input(path));
  const std::string name = path == "-" ? "stdin" : path;
  std::vector<PromptJob> jobs;
  int64_t number = 0;
  bool any_json = false;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    jobs.push_back(job_of(line, defaults, fmt::format("{} line {}", name, number), any_json));
  }
  if (jobs.empty()) throw Error("it holds no prompts", name, "one JSON string or object a line");
  if (!any_json)
    throw Error("no line of it is JSON: " + jobs[0].prompt.error, "--prompts",
                "one JSON string or object a line");
  return jobs;
}

}  // namespace nano
