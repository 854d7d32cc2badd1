#include "llm/llm.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "base/clock.h"          // steady_seconds
#include "base/error.h"          // Error
#include "base/json.h"           // parse_ordered_json
#include "checkpoint/gguf.h"     // GgufFile
#include "checkpoint/weights.h"  // read_hf_config

namespace nano {

namespace {

std::string beginning(const std::string& path) {
  char bytes[4];
  std::ifstream in(path, std::ios::binary);
  in.read(bytes, sizeof bytes);
  return {bytes, size_t(in.gcount())};
}

// A tokenizer.json is an object; what else is given as a MODEL was probably meant to be a GGUF file.
void check_may_be_json(const std::string& path, const std::string& begin) {
  const size_t first = begin.find_first_not_of(" \t\r\n");
  if (first == begin.npos ? begin.size() == 4 : begin[first] == '{') return;
  std::string bytes;
  for (unsigned char c : begin) bytes += fmt::format("{}{:02x}", bytes.empty() ? "" : " ", c);
  throw Error(begin.empty() ? "not a GGUF file (it is empty)"
                            : fmt::format("not a GGUF file (it begins with the bytes {})", bytes),
              path, "MODEL is a .gguf file or a Hugging Face directory");
}

// A tokenizer for models that have none. A byte is a token, and a token's text is its number: random weights have
// nothing to say, but everything around them can run.
std::unique_ptr<Tokenizer> make_dummy_tokenizer(int32_t vocab_size) {
  BpeModel::Options options;
  options.byte_level = false;
  options.byte_fallback = true;
  BpeModel model(options);
  std::vector<Tokenizer::Token> tokens;
  for (int32_t id = 0; id < vocab_size; ++id) {
    Tokenizer::Token& token = tokens.emplace_back();
    token.text = id < 256 ? fmt::format("<0x{:02X}>", id) : fmt::format("<{}>", id);
    token.bytes = fmt::format(" {}", id);
    if (id < 256) model.add_token(id, token.text, false);
  }
  return std::make_unique<Tokenizer>(std::move(tokens), std::move(model), Normalizer(), Pretokenizer());
}

// For --load-format dummy: the tokenizer beside the config.json, or one that needs no file.
std::unique_ptr<Tokenizer> tokenizer_of_shape(const std::string& config) {
  const std::filesystem::path beside = std::filesystem::path(config).parent_path() / "tokenizer.json";
  if (std::filesystem::exists(beside)) return tokenizer_from_hf(beside.string());
  return make_dummy_tokenizer(read_hf_config(config).V);
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path) {
  if (std::filesystem::is_directory(path)) return tokenizer_from_hf(path);
  const std::string begin = beginning(path);
  if (begin == "GGUF") return tokenizer_from_gguf(GgufFile(path));
  if (std::ifstream(path) && begin != "vers")
    check_may_be_json(path, begin);  // else reading it says what it is
  return tokenizer_from_hf(path);
}

void check_messages(const nlohmann::ordered_json& messages, const std::string& where) {
  bool good = messages.is_array();
  for (const auto& message : messages) good = good && message.is_object();
  if (!good)
    throw Error("'messages' must be a list of objects", where,
                R"([{"role": "user", "content": "…"}] is a conversation)");
}

void check_template_kwargs(const nlohmann::ordered_json& kwargs, const std::string& where) {
  if (!kwargs.is_object()) throw Error("'chat_template_kwargs' must be an object", where);
  for (const auto& [key, value] : kwargs.items())
    if (key == "messages" || key == "tools" || key == "documents" || key.ends_with("_token"))
      throw Error(fmt::format("'chat_template_kwargs' must not set '{}'", key), where);
}

namespace {

// As vLLM passes them on (see llm.h). Many templates would print "None", or the text of arguments as a JSON string.
nlohmann::ordered_json prepared(nlohmann::ordered_json messages) {
  static const nlohmann::ordered_json::json_pointer arguments("/function/arguments");
  for (auto& message : messages) {
    if (!message.is_object()) continue;  // the template says what it thinks of it
    if (message.value("content", nlohmann::ordered_json()).is_null()) message["content"] = "";
    for (auto i = message.begin(); i != message.end();) i = i->is_null() ? message.erase(i) : std::next(i);
    if (!message.contains("tool_calls")) continue;
    for (auto& call : message["tool_calls"]) {
      if (!call.contains(arguments) || !call[arguments].is_string()) continue;
      const std::string text = call[arguments];
      call[arguments] = parse_ordered_json(text.empty() ? "{}" : text, "the arguments of a tool call");
    }
  }
  return messages;
}

}  // namespace

Prompt render_conversation(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                           const nlohmann::ordered_json& messages, bool add_generation_prompt,
                           const nlohmann::ordered_json& more) {
  const int32_t bos = tokenizer.bos_id, eos = tokenizer.eos_id;
  nlohmann::ordered_json variables;
  variables["messages"] = prepared(messages);
  variables["add_generation_prompt"] = add_generation_prompt;
  variables["tools"] = variables["documents"] = nullptr;  // None, as transformers passes them, not undefined
  if (bos >= 0) variables["bos_token"] = tokenizer.token_text(bos);
  if (eos >= 0) variables["eos_token"] = tokenizer.token_text(eos);
  variables.update(more);
  const std::vector<RenderedSpan> spans = chat_template.render(variables);
  Prompt prompt;
  for (const RenderedSpan& span : spans) prompt.text += span.text;
  prompt.token_ids = encode_spans(tokenizer, spans);
  // The template wrote BOS itself, perhaps behind white space, or the tokenizer adds it: never both. Content cannot
  // be BOS. Where EOS is the same token, only the first place tells.
  std::vector<int32_t>& ids = prompt.token_ids;
  const auto end = bos == eos && !ids.empty() ? ids.begin() + 1 : ids.end();
  const bool adds_bos = !tokenizer.prefix_ids.empty() && bos >= 0;
  if (adds_bos && std::find(ids.begin(), end, bos) == end) ids.insert(ids.begin(), bos);
  return prompt;
}

LLM::LLM(const EngineOptions& options, const Progress& progress, const ChatTemplateOptions& chat_template,
         const Observe& observe)
    : start_seconds_(steady_seconds()) {
  const std::string path = model_path(options);
  tokenizer_ = options.load_format == "dummy" ? tokenizer_of_shape(path) : load_tokenizer(path);
  load_chat_template(chat_template);
  loaded_ = load_engine(options, tokenizer_->vocab_size(), tokenizer_->stop_ids, progress, observe);
  if (loaded_->trace)
    loaded_->trace->text_of = [this](int32_t id) { return tokenizer_->piece(id, false, false); };
}

double LLM::now() const { return steady_seconds() - start_seconds_; }

void LLM::Template::compile(const std::string& source, bool own) {
  if (source.empty()) return;
  try {
    compiled = std::make_unique<ChatTemplate>(source);
  } catch (const Error& wrong) {
    error.emplace(wrong.problem, wrong.where,
                  own ? "give another with --chat-template, or use `run --raw`" : wrong.hint);
  }
}

void LLM::load_chat_template(const ChatTemplateOptions& options) {
  const bool own = options.source.empty();
  chat_template_.compile(own ? tokenizer_->chat_template : options.source, own);
  if (own) tool_template_.compile(tokenizer_->tool_template, own);
  if (chat_template_.error && (options.required || !own)) throw *chat_template_.error;
}

Prompt LLM::apply_chat_template(const nlohmann::ordered_json& messages, bool add_generation_prompt,
                                const nlohmann::ordered_json& more) const {
  const bool tools = more.contains("tools") && !more["tools"].is_null();
  const Template& chosen = tools && tool_template_.there() ? tool_template_ : chat_template_;
  if (chosen.error) throw *chosen.error;
  if (!chosen.compiled)
    throw Error("this model has no chat template", loaded_->options.model,
                "use plain completion (--raw), or give --chat-template");
  return render_conversation(*tokenizer_, *chosen.compiled, messages, add_generation_prompt, more);
}

void LLM::add_request(const std::string& request_id, const Prompt& prompt, const SamplingParams& params,
                      int32_t priority) {
  // The engine is done with a request before on_update is told of its end.
  if (live_.count(request_id)) throw Error("this request id is in use", request_id);
  Live live;
  live.params = params;
  live.output.request_id = request_id;
  live.output.prompt = prompt.text;
  live.output.prompt_token_ids =
      prompt.token_ids.empty() ? tokenizer_->encode(prompt.text) : prompt.token_ids;
  live.output.metrics.arrival = now();
  loaded_->engine->add_request(request_id, live.output.prompt_token_ids, params, priority);
  for (int32_t i = 0; i < params.n; ++i) {
    live.output.outputs.emplace_back().index = i;
    live.decoders.emplace_back(*tokenizer_, params.stop, params.include_stop_str_in_output,
                               params.skip_special_tokens, /*continues_text=*/true);
  }
  live_.emplace(request_id, std::move(live));
}

std::optional<RequestOutput> LLM::abort(const std::string& request_id) {
  loaded_->engine->abort(request_id);
  if (live_.count(request_id) == 0) return std::nullopt;
  Live& live = ended_.emplace_back(live_.extract(request_id)).mapped();
  std::erase_if(untold_, [&](const auto& untold) { return untold.second == &live; });
  for (CompletionOutput& answer : live.output.outputs) {
    if (answer.finish_reason != FinishReason::none) continue;
    answer.finish_reason = FinishReason::abort;
    answer.delta = live.decoders[size_t(answer.index)].finish();
    answer.text += answer.delta;
  }
  live.output.finished = true;
  live.output.metrics.finished = now();
  return live.output;
}

// on_update may abort any request, also the one that it is told of, and give its id to another. So what a step gave
// is kept with the request that it is for, and what has ended stays where it is for on_update to look at. If that
// throws, the next call goes on from there.
void LLM::step(const OnUpdate& on_update) {
  ended_.clear();
  if (untold_.empty())
    for (SequenceOutput& from : loaded_->engine->step())
      if (auto to = live_.find(from.request_id); to != live_.end())
        untold_.emplace_back(std::move(from), &to->second);
  while (!untold_.empty()) {
    const auto [from, live] = std::move(untold_.front());
    untold_.pop_front();
    apply(from, *live);
    if (live->output.finished) ended_.push_back(live_.extract(from.request_id));
    if (on_update) on_update(live->output);
  }
}

// Token ids become text; a stop string found in the text ends the sequence here, because the engine has no text.
void LLM::apply(const SequenceOutput& from, Live& live) {
  RequestOutput& out = live.output;
  CompletionOutput& answer = out.outputs[size_t(from.index)];
  StreamDecoder& decoder = live.decoders[size_t(from.index)];
  if (from.index == 0) out.num_cached_tokens = from.num_cached_tokens;
  for (const SampledToken& token : from.prompt_logprobs) out.prompt_logprobs.push_back(token.logprobs);
  if (!from.error.empty()) out.error = from.error;

  for (CompletionOutput& other : out.outputs) other.delta.clear();  // this update is about one answer
  answer.finish_reason = from.finish_reason;
  answer.stop_token = from.stop_token;
  for (const SampledToken& token : from.tokens) {
    if (out.metrics.first_token == 0) out.metrics.first_token = now();
    answer.token_ids.push_back(token.id);
    if (!token.logprobs.empty()) {
      answer.cumulative_logprob += token.logprobs[0].logprob;
      answer.logprobs.push_back(token.logprobs);
    }
    // The token that ended the answer (EOS or a stop id) is in token_ids, not in the text.
    const bool stop_token = from.finish_reason == FinishReason::stop && &token == &from.tokens.back();
    if (stop_token && !live.params.include_stop_str_in_output) continue;
    answer.delta += decoder.add(token.id, int32_t(answer.token_ids.size()) > live.params.min_tokens);
    if (decoder.stopped()) {
      answer.finish_reason = FinishReason::stop;
      answer.stop_string = decoder.stop_string();
      loaded_->engine->finish(out.request_id, from.index, FinishReason::stop);
      break;
    }
  }
  if (answer.finish_reason != FinishReason::none) answer.delta += decoder.finish();
  answer.text += answer.delta;
  out.finished = std::all_of(out.outputs.begin(), out.outputs.end(),
                             [](const auto& o) { return o.finish_reason != FinishReason::none; });
  if (out.finished) out.metrics.finished = now();
}

std::vector<RequestOutput> LLM::generate(const std::vector<Prompt>& prompts,
                                         const std::vector<SamplingParams>& params, const OnUpdate& on_update,
                                         const std::function<bool()>& interrupted,
                                         const std::vector<int32_t>& priorities) {
  if (params.size() != 1 && params.size() != prompts.size())
    throw Error(
        fmt::format("{} SamplingParams for {} prompts: give one, or one each", params.size(), prompts.size()),
        "generate");
  if (!priorities.empty() && priorities.size() != prompts.size())
    throw Error(fmt::format("{} priorities for {} prompts: give none, or one each", priorities.size(),
                            prompts.size()),
                "generate");
  std::vector<RequestOutput> results(prompts.size());
  std::map<const Live*, size_t> place;  // of the answers that are on their way
  auto collect = [&] {                  // those that have ended, whoever ended them
    for (auto& node : ended_)
      if (const auto mine = place.extract(&node.mapped()))
        results[mine.mapped()] = std::move(node.mapped().output);
  };
  auto abort_mine = [&] {
    collect();
    for (const auto& [live, i] : place) abort(live->output.request_id);
    collect();
  };
  try {
    for (size_t i = 0; i < prompts.size(); ++i) {
      std::string id;
      do id = std::to_string(next_request_++);
      while (live_.count(id));  // who calls add_request too may count like this
      try {
        if (!prompts[i].error.empty()) throw Error(prompts[i].error);
        add_request(id, prompts[i], params[params.size() == 1 ? 0 : i],
                    priorities.empty() ? 0 : priorities[i]);
        place[&live_.at(id)] = i;
      } catch (const Error& error) {  // one bad prompt is that prompt's failure only
        results[i].request_id = id;
        results[i].prompt = prompts[i].text;
        results[i].finished = true;
        // The id is ours; the caller knows the prompt by its place.
        results[i].error = error.where == id ? Error(error.problem, "", error.hint).what() : error.what();
      }
    }
    while (has_work()) {
      if (interrupted && interrupted()) {
        abort_mine();
        break;
      }
      step(on_update);
      collect();
    }
  } catch (...) {  // nobody is left to whom these belong
    abort_mine();
    throw;
  }
  return results;
}

}  // namespace nano
