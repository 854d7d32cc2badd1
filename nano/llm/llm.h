// The C++ face of the engine, as vLLM's Python one:
//
//   nano::LLM llm(options);
//   for (const auto& out : llm.generate({{"The sea"}}, params)) puts(out.outputs[0].text.c_str());
//
// It adds to the engine what needs text: tokenizing, incremental detokenizing, stop strings, RequestOutput.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"           // Error
#include "llm/loader.h"           // LoadedEngine, Progress, Observe
#include "text/chat_template.h"   // ChatTemplate
#include "text/stream_decoder.h"  // StreamDecoder
#include "text/tokenizer.h"       // Tokenizer

namespace nano {

struct Prompt {
  std::string text;
  std::vector<int32_t> token_ids;  // used as they are when not empty; text may then be anything
  std::string error = {};          // set: what was given is no prompt, and this is why
};

struct CompletionOutput {
  int32_t index = 0;
  std::string text, delta;  // all so far; what the last step added
  std::vector<int32_t> token_ids;
  std::vector<std::vector<TokenLogprob>> logprobs;  // one list a token; empty if not asked for
  double cumulative_logprob = 0;
  FinishReason finish_reason = FinishReason::none;
  std::string stop_string;  // stop_reason is this string, or stop_token, or null
  int32_t stop_token = -1;
};

struct RequestMetrics {  // seconds since the LLM was made
  double arrival = 0, first_token = 0, finished = 0;
};

struct RequestOutput {
  std::string request_id, prompt;
  std::vector<int32_t> prompt_token_ids;
  std::vector<std::vector<TokenLogprob>> prompt_logprobs;  // of tokens 1, 2, …; the first has none
  std::vector<CompletionOutput> outputs;
  bool finished = false;
  int32_t num_cached_tokens = 0;
  RequestMetrics metrics;
  std::string error;  // set: the request failed, and this is why
};

struct ChatTemplateOptions {
  std::string source;     // Jinja, in place of the model's own; "" = the model's
  bool required = false;  // conversations are going to be rendered
};

class LLM {
 public:
  // A model's own template that cannot be compiled is an Error here if one is required, else where it is first used:
  // plain completion works without. A given one must be right in any case. Error: also all that load_engine refuses.
  explicit LLM(const EngineOptions& options, const Progress& progress = {},
               const ChatTemplateOptions& chat_template = {}, const Observe& observe = {});
  LLM(LLM&&) = delete;  // its trace refers to it

  // All prompts at once; results in the order of the prompts. One SamplingParams for all, or one each; priorities
  // (with --scheduling-policy priority the lowest goes first) one each, or none. A bad prompt fails alone: its
  // RequestOutput has an error. on_update is called for every answer that a step advanced.
  // An update is about one answer: the others' deltas are empty. on_update may abort any request and add others, but
  // call neither step() nor generate().
  // Once `interrupted` says so, what still runs is aborted; an aborted request keeps what it has. If a step throws,
  // or on_update does, the requests of this call are aborted and the next call starts afresh.
  using OnUpdate = std::function<void(const RequestOutput&)>;
  std::vector<RequestOutput> generate(const std::vector<Prompt>& prompts,
                                      const std::vector<SamplingParams>& params,
                                      const OnUpdate& on_update = {},
                                      const std::function<bool()>& interrupted = {},
                                      const std::vector<int32_t>& priorities = {});

  // One conversation to a prompt, through the model's chat template. What a message says is never read as a
  // control token. Error: no template, or the template's own complaint. `more`: see render_conversation; with tools,
  // a template for them is taken if the model has one.
  Prompt apply_chat_template(const nlohmann::ordered_json& messages, bool add_generation_prompt = true,
                             const nlohmann::ordered_json& more = nlohmann::ordered_json::object()) const;
  bool has_chat_template() const { return chat_template_.there(); }

  // The pieces of generate(), for an interactive program: add, then step until nothing is left.
  void add_request(const std::string& request_id, const Prompt& prompt, const SamplingParams& params,
                   int32_t priority = 0);
  // What there is of it, with FinishReason::abort where it was not over; nothing if the id is not running. An id is
  // free again once on_update is told of its end, or it is aborted.
  std::optional<RequestOutput> abort(const std::string& request_id);
  bool has_work() const { return !untold_.empty() || loaded_->engine->has_work(); }
  void step(const OnUpdate& on_update);  // if on_update throws, the next step tells the rest first

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const LoadedEngine& loaded() const { return *loaded_; }
  LoadedEngine& loaded() { return *loaded_; }

 private:
  struct Live {  // a request on its way
    RequestOutput output;
    SamplingParams params;
    std::vector<StreamDecoder> decoders;  // one an answer
  };
  struct Template {
    std::unique_ptr<ChatTemplate> compiled;
    std::optional<Error> error;  // there is one, and this is what is wrong with it
    bool there() const { return compiled || error; }
    void compile(const std::string& source, bool own);  // own: the model's; "": there is none
  };
  void load_chat_template(const ChatTemplateOptions& options);
  void apply(const SequenceOutput& from, Live& live);
  double now() const;

  std::unique_ptr<Tokenizer> tokenizer_;
  Template chat_template_, tool_template_;
  std::unique_ptr<LoadedEngine> loaded_;
  std::map<std::string, Live> live_;
  std::vector<std::map<std::string, Live>::node_type> ended_;  // since the last step began
  std::deque<std::pair<SequenceOutput, Live*>> untold_;        // of the last step, for those in live_
  double start_seconds_;
  int64_t next_request_ = 0;
};

// The tokenizer of a .gguf file, a Hugging Face directory or a tokenizer.json; needs no weights.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path);
// Error naming `where` unless these are a conversation: a list of objects.
void check_messages(const nlohmann::ordered_json& messages, const std::string& where);
// vLLM's chat_template_kwargs come from whoever sends a request. Error naming `where` unless these are an object without
// what the template trusts (bos_token and all other …_token are the model's words) or what has a field of its own.
void check_template_kwargs(const nlohmann::ordered_json& kwargs, const std::string& where);
// A conversation through a template: text and ids, with one BOS if the tokenizer wants one, whoever writes it.
// `more`: what the template sees besides, an object with tools, documents (None if not there, as in transformers) and
// the members of checked chat_template_kwargs; also bos_token and eos_token in place of the tokenizer's.
// Messages reach the template as vLLM passes them on: null or no content (of a message that only calls a tool) is
// empty text, other null members are left out, and a call's arguments are an object, also if they came as text.
Prompt render_conversation(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                           const nlohmann::ordered_json& messages, bool add_generation_prompt,
                           const nlohmann::ordered_json& more = nlohmann::ordered_json::object());

}  // namespace nano
