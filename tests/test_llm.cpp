// llm/llm: chat templates that cannot be used, BOS once, priorities, and a generate() that throws. In process, and
// through the built binary where exit code and stderr are the point.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "llm/llm.h"           // LLM
#include "app/ppl.h"           // measure_perplexity
#include "base/error.h"        // Error
#include "base/mapped_file.h"  // read_file
#include "catch.h"             // Catch2, version 2 or 3
#include "data.h"              // data_path
#include "subprocess.h"        // run_nano, temporary_file

using nano_test::run_nano;
using nano_test::temporary_file;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace {

std::string tiny() { return nano_test::data_path("../lessons/models/tiny-Q8_0.gguf"); }

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

nano::EngineOptions tiny_options() {
  nano::EngineOptions options;
  options.model = tiny();
  options.device = "ref";
  options.kv_cache_memory_bytes = 16'000'000;
  return options;
}

nano::SamplingParams greedy(int32_t max_tokens) {
  nano::SamplingParams params;
  params.temperature = 0;
  params.max_tokens = max_tokens;
  params.ignore_eos = true;
  return params;
}

// tiny as a Hugging Face directory, with a chat template of its own.
struct TinyWithTemplate {
  explicit TinyWithTemplate(const std::string& source) {
    path = temporary_file("");
    std::remove(path.c_str());
    fs::create_directory(path);
    for (const auto& entry : fs::directory_iterator(nano_test::data_path("../lessons/models/tiny")))
      fs::create_symlink(fs::absolute(entry.path()), path + "/" + entry.path().filename().string());
    std::FILE* file = std::fopen((path + "/chat_template.jinja").c_str(), "wb");
    REQUIRE(file != nullptr);
    std::fwrite(source.data(), 1, source.size(), file);
    std::fclose(file);
  }
  ~TinyWithTemplate() { fs::remove_all(path); }
  std::string path;
};

nano_test::Ran run_small(const std::string& command, const std::string& model, std::vector<std::string> more,
                         const std::string& input = "") {
  std::vector<std::string> args = {command, model, "--device", "ref", "--no-stats", "--kv-cache-memory-bytes",
                                   "16MB"};
  args.insert(args.end(), more.begin(), more.end());
  return run_nano(args, input);
}

Json hello() { return {{{"role", "user"}, {"content", "And he said"}}}; }

}  // namespace

TEST_CASE("a model's template that cannot be compiled hinders only what renders") {
  const TinyWithTemplate model("{{ messages }}\n{% call turn(m) %}{% endcall %}");
  const std::string good = temporary_file("{% for m in messages %}{{ m['content'] }}{% endfor %}");
  const std::string text = temporary_file(std::string(400, 'a') + " And God said");
  const std::string chats = temporary_file("{\"messages\": [{\"role\": \"user\", \"content\": \"And\"}]}\n");
  const std::string ids = temporary_file("{\"prompt_token_ids\": [1, 2]}\n");
  using List = std::vector<std::string>;
  for (const auto& [command, args] : std::vector<std::pair<std::string, List>>{
           {"run", {"And", "--raw", "--max-tokens", "2"}},
           {"run", {"And", "--chat-template", good, "--max-tokens", "2"}},
           {"run", {"--prompt-token-ids", "1,2", "--max-tokens", "2"}},
           {"run", {"--prompts", ids, "--max-tokens", "2"}},
           {"chat", {"--chat-template", good, "--max-tokens", "2"}},
           {"ppl", {"--file", text, "--ctx", "8"}}}) {
    const auto ran = run_small(command, model.path, args, "And\n");
    INFO(command << " " << args[0] << ": " << ran.err);
    CHECK(ran.exit_code == 0);
    CHECK(ran.out != "");
  }
  const auto bench =
      run_nano({"bench", "latency", model.path, "--device", "ref", "--no-stats", "--input-len", "4",
                "--output-len", "2", "--batch-size", "1", "--num-iters-warmup", "0", "--num-iters", "1"});
  INFO(bench.err);
  CHECK(bench.exit_code == 0);
  for (const auto& [command, args] : std::vector<std::pair<std::string, List>>{
           {"run", {"And"}}, {"run", {"--raw", "--prompts", chats}}, {"chat", {}}}) {
    const auto ran = run_small(command, model.path, args, "And\n");
    INFO(command << ": " << ran.err);
    CHECK(ran.exit_code == 2);
    CHECK(ran.out == "");
    CHECK(contains(ran.err, "line 2"));
    CHECK(contains(ran.err, "unsupported statement 'call'"));
    CHECK(contains(ran.err, "--chat-template"));
  }
  nano::EngineOptions options = tiny_options();
  options.model = model.path;
  nano::LLM llm(options);  // the library, too, completes without
  CHECK(llm.has_chat_template());
  CHECK(llm.generate({{"And", {}}}, {greedy(2)})[0].error == "");
  CHECK_THROWS_AS(llm.apply_chat_template(hello()), nano::Error);
  CHECK_THROWS_AS(nano::LLM(tiny_options(), {}, {"{% macro f() %}", false}), nano::Error);
  for (const std::string& file : {good, text, chats, ids}) std::remove(file.c_str());
}

TEST_CASE("C3 a model without a template: chat says so and what to do, run completes") {
  const auto chat = run_small("chat", tiny(), {}, "And\n");
  CHECK(chat.exit_code == 2);
  CHECK(chat.out == "");
  CHECK(contains(chat.err, "no chat template"));
  CHECK(contains(chat.err, "--chat-template"));
  CHECK(contains(chat.err, "run --raw"));
  const std::vector<std::string> few = {"In the beginning", "--temperature", "0", "--max-tokens", "4"};
  std::vector<std::string> raw = few;
  raw.push_back("--raw");
  const auto ran = run_small("run", tiny(), few);
  CHECK(ran.exit_code == 0);
  CHECK(ran.out.size() > 1);
  CHECK(ran.out == run_small("run", tiny(), raw).out);
  CHECK(ran.err == "");
}

TEST_CASE("T8 exactly one BOS, whether the template writes it, the tokenizer adds it, or neither does") {
  auto tokenizer = nano::load_tokenizer(tiny());
  const int32_t bos = tokenizer->bos_id;
  REQUIRE(bos >= 0);
  const nano::ChatTemplate with("{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}");
  const nano::ChatTemplate without("{% for m in messages %}{{ m['content'] }}{% endfor %}");
  const nano::ChatTemplate late("\n{{bos_token}}{% for m in messages %}{{ m['content'] }}{% endfor %}");
  auto count = [&](const nano::ChatTemplate& chat_template, size_t place = 0) {
    const auto ids = nano::render_conversation(*tokenizer, chat_template, hello(), true).token_ids;
    REQUIRE(ids.size() > place + 1);
    const auto n = std::count(ids.begin(), ids.end(), bos);
    CHECK((n == 0 || ids[place] == bos));
    return n;
  };
  // A21: where the template wrote it, behind white space, as transformers has it.
  const size_t place = tokenizer->encode("\n", {.add_special_tokens = false}).size();
  tokenizer->prefix_ids = {bos};
  CHECK(count(with) == 1);
  CHECK(count(without) == 1);
  CHECK(count(late, place) == 1);
  tokenizer->eos_id = bos;  // one token for both, which this template writes as EOS: it stands for no BOS
  CHECK(count(nano::ChatTemplate("a{{ eos_token }}")) == 2);
  tokenizer->prefix_ids = {};
  CHECK(count(late, place) == 1);
  CHECK(count(with) == 1);
  CHECK(count(without) == 0);
}

TEST_CASE("A7 tools and documents are None unless given") {
  const auto tokenizer = nano::load_tokenizer(tiny());
  const nano::ChatTemplate chat("{{ tools is not none }}{{ documents is none }}{{ other is not none }}");
  CHECK(nano::render_conversation(*tokenizer, chat, hello(), true).text == "FalseTrueTrue");
  const Json more = {{"tools", Json::array()}};
  CHECK(nano::render_conversation(*tokenizer, chat, hello(), true, more).text == "TrueTrueTrue");
}

TEST_CASE("A22 messages reach the template as vLLM passes them on") {
  const auto tokenizer = nano::load_tokenizer(tiny());
  const nano::ChatTemplate chat(
      "{% for m in messages %}<{{ m.role }}:{{ '' + m.content }}{% for c in m.tool_calls or [] %}"
      "{{ c.function.arguments }}{% endfor %}{{ m.name is defined }}>{% endfor %}");
  auto text = [&](const std::string& messages) {
    return nano::render_conversation(*tokenizer, chat, Json::parse(messages), true).text;
  };
  CHECK(text(R"([{"role":"user","content":"Q"},{"role":"assistant","content":null,"name":null,
                 "tool_calls":[{"type":"function","function":{"name":"f","arguments":{"a":1}}}]},
                 {"role":"tool","content":"20","name":"f"}])") ==
        "<user:QFalse><assistant:{'a': 1}False><tool:20True>");
  CHECK(text(R"([{"role":"assistant","tool_calls":[{"function":{"arguments":"{\"b\": \"it's\"}"}},
                 {"function":{"arguments":""}}, {"function":{}}]}])")
            .starts_with("<assistant:{'b': \"it's\"}{}"));
  CHECK(error_of([&] {
          text(R"([{"tool_calls":[{"function":{"arguments":"{"}}]}])");
        }).find("arguments of a") != std::string::npos);
}

TEST_CASE(
    "A18 tools take the template for tools; they, documents and other variables reach it from a prompts "
    "file") {
  const TinyWithTemplate model("{{ documents }}{{ mood }}{{ messages[0].content }}");
  fs::create_directory(model.path + "/additional_chat_templates");
  std::ofstream(model.path + "/additional_chat_templates/tool_use.jinja")
      << "{% for t in tools %}{{ t.name }}{% endfor %}!{{ messages[0].content }}";
  const std::string lines = temporary_file(
      R"({"messages":[{"content":"And"}],"documents":[{"a":"b"}],"chat_template_kwargs":{"mood":"m"}})"
      "\n"
      R"({"messages":[{"content":"And"}],"tools":[{"name":"t"},{"name":"u"}]})"
      "\n"
      R"({"messages":[{"content":"And"}],"tools":null})"
      "\n"
      R"({"prompt":"And","tools":[]})"
      "\n"
      R"({"messages":[{"content":"And"}],"tools":{"name":"t"}})"
      "\n"
      R"({"messages":[{"content":"And"}],"chat_template_kwargs":[]})"
      "\n");
  const auto ran = run_small("run", model.path, {"--prompts", lines, "--max-tokens", "1", "--json"});
  CHECK(ran.exit_code == 1);
  const char* const want[] = {"\"[{'a': 'b'}]mAnd\"", "\"tu!And\"", "\"NoneAnd\""};
  for (const char* prompt : want) CHECK(contains(ran.out, prompt));
  for (const char* problem : {"go with 'messages'", "'tools' must be a list", "kwargs' must be an object"})
    CHECK(contains(ran.err, problem));
  std::remove(lines.c_str());
}

TEST_CASE("T6 chat_template_kwargs cannot be what the template trusts, nor what has a field of its own") {
  const TinyWithTemplate model(
      "{{ bos_token }}{{ eot_token }}{{ messages[0].content }}{{ add_generation_prompt }}");
  std::string all;
  const char* const refused[] = {"bos_token", "eos_token", "eot_token", "image_token",
                                 "_token",    "messages",  "tools",     "documents"};
  for (const char* key : refused)
    all += std::string(R"({"messages":[{"content":"And"}],"chat_template_kwargs":{"mood":1,")") + key +
           "\":[]}}\n";
  all +=
      R"({"messages":[{"content":"God"}],"chat_template_kwargs":{"add_generation_prompt":false,"token":"t"}})";
  const std::string lines = temporary_file(all + "\n");
  const auto ran = run_small("run", model.path, {"--prompts", lines, "--max-tokens", "1", "--json"});
  CHECK(ran.exit_code == 1);
  for (const char* key : refused) {
    INFO(key);
    CHECK(contains(ran.out, std::string("'chat_template_kwargs' must not set '") + key + "'\""));
  }
  CHECK(contains(ran.out, "GodFalse\""));
  std::remove(lines.c_str());
}

TEST_CASE("T8 a raw prompt that begins with BOS, which the tokenizer adds, is warned of") {
  auto tokenizer = nano::load_tokenizer(tiny());
  REQUIRE(!tokenizer->prefix_ids.empty());
  const std::string bos = tokenizer->token_text(tokenizer->bos_id);
  const auto twice = run_small("run", tiny(), {"--raw", "--max-tokens", "2", bos + "And"});
  CHECK(twice.exit_code == 0);
  CHECK(contains(twice.err, "warning: "));
  CHECK(contains(twice.err, "two BOS"));
  CHECK(std::count(twice.err.begin(), twice.err.end(), '\n') == 1);
  CHECK(run_small("run", tiny(), {"--raw", "--max-tokens", "2", "And"}).err == "");
}

TEST_CASE("generate that throws leaves nothing behind: the next one works") {
  nano::LLM llm(tiny_options());
  const std::string want = llm.generate({{"And God", {}}}, {greedy(6)})[0].outputs[0].text;
  int calls = 0;
  auto third_fails = [&](const nano::RequestOutput&) {
    if (++calls == 3) throw nano::Error("enough", "test");
  };
  CHECK_THROWS_AS(llm.generate({{"And God", {}}, {"In the", {}}}, {greedy(6)}, third_fails), nano::Error);
  CHECK_FALSE(llm.has_work());
  const auto again = llm.generate({{"And God", {}}}, {greedy(6)});
  CHECK(again[0].error == "");
  CHECK(again[0].outputs.at(0).text == want);
}

TEST_CASE("on_update may abort another request of the same call: each keeps what it has") {
  nano::LLM llm(tiny_options());
  const std::string want = llm.generate({{"And God", {}}}, {greedy(6)})[0].outputs[0].text;
  std::string first, streamed, partial;
  size_t told_of_second = 0;
  const auto out =
      llm.generate({{"And God", {}}, {"In the", {}}}, {greedy(6)}, [&](const nano::RequestOutput& update) {
        if (first.empty()) first = update.request_id;
        if (update.request_id == first) {
          streamed += update.outputs[0].delta;
          if (update.outputs[0].token_ids.size() != 3) return;
          const auto aborted = llm.abort(std::to_string(std::stoi(first) + 1));
          REQUIRE(aborted);
          partial = aborted->outputs[0].text;
        } else {
          ++told_of_second;
          CHECK(partial.empty());
        }
      });
  CHECK(out[0].outputs.at(0).text == want);
  CHECK(streamed == want);
  REQUIRE(out[1].outputs.size() == 1);
  CHECK(out[1].finished);
  CHECK(out[1].outputs[0].finish_reason == nano::FinishReason::abort);
  CHECK(told_of_second == 2);  // it would have been told of its third token after the first one was
  CHECK(out[1].outputs[0].token_ids.size() == 2);
  CHECK(out[1].outputs[0].text == partial);
  CHECK(!partial.empty());
  CHECK_FALSE(llm.has_work());
  CHECK(!llm.abort(first));
}

TEST_CASE("on_update may abort the request that it is told of, one answer of two is over by then") {
  nano::LLM llm(tiny_options());
  nano::SamplingParams two = greedy(4);
  two.n = 2;
  two.temperature = 1.0f;
  int updates = 0;
  const auto out = llm.generate({{"And God", {}}}, {two}, [&](const nano::RequestOutput& update) {
    if (++updates == 5) CHECK(llm.abort(update.request_id));
  });
  REQUIRE(out[0].outputs.size() == 2);
  CHECK(updates == 5);
  CHECK(out[0].outputs[0].token_ids.size() + out[0].outputs[1].token_ids.size() == 5);
  for (const nano::CompletionOutput& answer : out[0].outputs)
    CHECK(answer.finish_reason == nano::FinishReason::abort);
}

TEST_CASE("an id that is free again may be given again inside on_update, and both answers come") {
  nano::LLM llm(tiny_options());
  const std::string want = llm.generate({{"And God", {}}}, {greedy(3)})[0].outputs[0].text;
  std::vector<std::string> texts;
  auto again = [&](const nano::RequestOutput& update) {
    if (!update.finished) return;
    texts.push_back(update.outputs[0].text);
    if (texts.size() == 1) llm.add_request("a", {"And God", {}}, greedy(3));
  };
  llm.add_request("a", {"And God", {}}, greedy(3));
  while (llm.has_work()) llm.step(again);
  CHECK(texts == std::vector<std::string>{want, want});

  // Aborted and added again while the same step has more to say of the old one.
  nano::SamplingParams two = greedy(3);
  two.n = 2;
  two.temperature = 1.0f;
  texts.clear();
  bool added = false;
  llm.add_request("a", {"And God", {}}, two);
  while (llm.has_work())
    llm.step([&](const nano::RequestOutput& update) {
      if (update.outputs[0].token_ids.size() == 2 && !added) {
        added = true;
        llm.abort("a");
        llm.add_request("a", {"And God", {}}, greedy(3));
      } else if (added && update.finished) {
        texts.push_back(update.outputs.at(0).text);
      }
    });
  CHECK(texts == std::vector<std::string>{want});
}

TEST_CASE("on_update that throws loses no token of the others") {
  nano::LLM llm(tiny_options());
  const std::string want = llm.generate({{"In the", {}}}, {greedy(4)})[0].outputs[0].text;
  llm.add_request("a", {"And God", {}}, greedy(4));
  llm.add_request("b", {"In the", {}}, greedy(4));
  std::string text;
  int throws = 0;
  while (llm.has_work()) {
    try {
      llm.step([&](const nano::RequestOutput& update) {
        if (update.request_id == "a") throw nano::Error("enough", "test");
        text = update.outputs[0].text;
      });
    } catch (const nano::Error&) {
      ++throws;
    }
  }
  CHECK(throws == 4);
  const auto last = llm.abort("b");
  CHECK(!last);
  llm.add_request("b", {"In the", {}}, greedy(4));
  llm.add_request("a", {"And God", {}}, greedy(4));
  throws = 0;
  while (llm.has_work()) {
    try {
      llm.step([&](const nano::RequestOutput& update) {
        if (update.request_id == "b" && ++throws == 2) throw nano::Error("enough", "test");
        if (update.request_id == "b") text = update.outputs[0].text;
      });
    } catch (const nano::Error&) {
    }
  }
  CHECK(text == want);
}

TEST_CASE("generate beside requests that the caller added under numbers of his own") {
  nano::LLM llm(tiny_options());
  std::map<std::string, std::string> texts;
  for (const char* id : {"0", "2"}) llm.add_request(id, {"In the", {}}, greedy(3));
  const auto out =
      llm.generate({{"And God", {}}, {"And God", {}}}, {greedy(3)}, [&](const nano::RequestOutput& update) {
        if (update.finished) texts[update.request_id] = update.outputs[0].text;
      });
  CHECK(out[0].error == "");
  CHECK(out[1].error == "");
  CHECK(out[0].outputs.at(0).text == out[1].outputs.at(0).text);
  CHECK(texts.size() == 4);
  CHECK(texts["0"] == texts["2"]);
  CHECK(texts["0"] != out[0].outputs.at(0).text);
}

TEST_CASE("generate: a bad prompt's error names no id of ours") {
  nano::LLM llm(tiny_options());
  const auto out = llm.generate({{"", {9'999'999}}, {"And", {}}}, {greedy(2)});
  CHECK(out[0].error.rfind("token id 9999999 is outside", 0) == 0);
  CHECK(out[1].error == "");
}

TEST_CASE("--scheduling-policy priority: the lowest goes first, from JSONL and from generate") {
  nano::EngineOptions options = tiny_options();
  options.scheduling_policy = "priority";
  options.max_num_seqs = 1;
  nano::LLM llm(options);
  const std::vector<nano::Prompt> prompts = {{"And", {}}, {"And", {}}, {"And", {}}};
  auto out = llm.generate(prompts, {greedy(3)}, {}, {}, {5, -1, 0});
  CHECK(out[1].metrics.finished <= out[2].metrics.first_token);
  CHECK(out[2].metrics.finished <= out[0].metrics.first_token);
  CHECK_THROWS_AS(llm.generate(prompts, {greedy(3)}, {}, {}, {5}), nano::Error);

  const std::string file = temporary_file(
      "{\"prompt\": \"And\", \"priority\": 5}\n{\"prompt\": \"And\", \"priority\": -1}\n"
      "{\"prompt\": \"And\", \"priority\": \"high\"}\n");
  const auto ran = run_small("run", tiny(),
                             {"--prompts", file, "--json", "--max-tokens", "3", "--max-num-seqs", "1",
                              "--scheduling-policy", "priority"});
  std::remove(file.c_str());
  CHECK(ran.exit_code == 1);
  std::vector<Json> rows;
  for (size_t begin = 0, end; (end = ran.out.find('\n', begin)) != std::string::npos; begin = end + 1)
    rows.push_back(Json::parse(ran.out.substr(begin, end - begin)));
  REQUIRE(rows.size() == 3);
  CHECK(rows[1]["metrics"]["finished_time"].get<double>() <=
        rows[0]["metrics"]["first_token_time"].get<double>());
  CHECK(contains(rows[2].value("error", ""), "'priority'"));
}

TEST_CASE("--trace to a full disk is one warning, a whole answer and exit code 1") {
  if (access("/dev/full", W_OK) != 0) return;
  for (const char* tokens : {"2", "400"}) {  // at the end, and (more than stdio buffers) on the way
    std::vector<std::string> args = {"--raw", "And", "--ignore-eos", "--max-tokens", tokens};
    const auto whole = run_small("run", tiny(), args);
    args.insert(args.end(), {"--trace", "/dev/full"});
    const auto ran = run_small("run", tiny(), args);
    CHECK(whole.exit_code == 0);
    CHECK(ran.exit_code == 1);
    CHECK(ran.out == whole.out);
    CHECK(ran.err ==
          "warning: trace /dev/full: cannot be written: No space left on device; it stops here, the answers "
          "go on\n");
  }
}

TEST_CASE("JSONL max_tokens -1 is to the end of the context, as the flag is") {
  const std::string file = temporary_file("{\"prompt\": \"And\", \"max_tokens\": -1}\n");
  const auto ran = run_small("run", tiny(),
                             {"--raw", "--prompts", file, "--json", "--ignore-eos", "--max-model-len", "20"});
  std::remove(file.c_str());
  INFO(ran.err);
  REQUIRE(ran.exit_code == 0);
  const Json out = Json::parse(ran.out);
  CHECK(out["prompt_token_ids"].size() + out["outputs"][0]["token_ids"].size() == 20);
}

TEST_CASE("what is wrong on the command line is found before the model is loaded") {
  const auto missing = run_nano({"run", tiny(), "--prompts", "/no/such/file"});
  CHECK(missing.exit_code == 2);
  CHECK(std::count(missing.err.begin(), missing.err.end(), '\n') == 1);  // no start report
  const auto many = run_small("run", tiny(), {"--raw", "And", "--max-logprobs", "99999999999"});
  CHECK(many.exit_code == 2);
  CHECK(contains(many.err, "--max-logprobs"));
  CHECK(run_nano({"info", "--params", "7e9", "--gpu-memory-utilization", "5"}).exit_code == 2);
  const auto huge = run_small(
      "run", tiny(),
      {"--raw", "And", "--max-tokens", "2", "--block-size", "2147483647", "--num-gpu-blocks-override", "1"});
  INFO(huge.err);
  CHECK(huge.exit_code == 0);
}

TEST_CASE("perplexity: both means over whole chunks, and what cannot be is refused") {
  nano::LLM llm(tiny_options());
  std::string text;
  for (int i = 0; i < 6; ++i) text += "And God said, Let there be light: and there was light. ";
  const nano::Perplexity p = nano::measure_perplexity(llm, text, 16);
  CHECK(p.chunks == int64_t(llm.tokenizer().encode(text).size()) / 16);
  CHECK(p.tokens == p.chunks * 15);
  CHECK(p.ppl > 1);
  CHECK(p.ppl_second_half > 1);
  // The same from the log-probabilities of whole prompts.
  nano::SamplingParams params = greedy(1);
  params.prompt_logprobs = 0;
  const std::vector<int32_t> ids = llm.tokenizer().encode(text);
  double nll = 0;
  for (int64_t chunk = 0; chunk < p.chunks; ++chunk) {
    std::vector<int32_t> whole(ids.begin() + 16 * chunk, ids.begin() + 16 * (chunk + 1));
    whole[0] = llm.tokenizer().bos_id;
    const auto out = llm.generate({{"", whole}}, {params});
    for (const auto& token : out[0].prompt_logprobs) nll -= double(token.at(0).logprob);
  }
  CHECK(std::abs(p.nll - nll / double(p.tokens)) <= 1e-12 * nll);
  // A chunk may be as long as the context, and no longer.
  nano::EngineOptions tight = tiny_options();
  tight.max_model_len = 16;
  nano::LLM no_room(tight);
  CHECK(nano::measure_perplexity(no_room, text, 16).nll == p.nll);
  CHECK_THROWS_AS(nano::measure_perplexity(no_room, text, 17), nano::Error);
  tight.sampler = false;
  nano::LLM no_sampler(tight);
  CHECK_THROWS_AS(nano::measure_perplexity(no_sampler, text, 16), nano::Error);

  CHECK_THROWS_AS(nano::measure_perplexity(llm, text, 3), nano::Error);
  CHECK_THROWS_AS(nano::measure_perplexity(llm, "And", 16), nano::Error);
}

TEST_CASE("perplexity: BOS begins every chunk where the tokenizer adds one, as llama.cpp has it") {
  const Json want = Json::parse(nano::read_file(nano_test::data_path("golden/ppl.json")));
  nano::EngineOptions options = tiny_options();
  options.model = nano_test::data_path("golden/checkpoints/gemma3-bf16");
  nano::LLM llm(options);
  const nano::Perplexity p = nano::measure_perplexity(
      llm, nano::read_file(nano_test::data_path("golden/ppl.txt")), want["ctx"].get<int64_t>());
  CHECK(p.tokens == want["tokens"].get<int64_t>());
  auto log_of = [&](const char* key) { return std::log(want[key].get<double>()); };
  CHECK(std::abs(p.nll - log_of("ppl")) <= 1e-4);
  CHECK(std::abs(std::log(p.ppl_second_half) - log_of("ppl_second_half")) <= 1e-4);
}
