// The built binary, from outside: run, chat and the flags; exit codes, one line an error, JSON that parses, text that
// survives.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <thread>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "catch.h"       // Catch2, version 2 or 3
#include "data.h"        // data_path
#include "subprocess.h"  // run_nano, run_args

using nano_test::contains;
using nano_test::lines;
using nano_test::run_args;
using nano_test::run_nano;
using nano_test::temporary_file;
using nano_test::tiny;
using Json = nlohmann::json;

namespace {

std::vector<Json> json_lines(const std::string& text) {
  std::vector<Json> values;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    values.push_back(Json::parse(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return values;
}

}  // namespace

TEST_CASE("bad usage is one line on stderr and exit code 2") {
  const std::string junk = temporary_file("GGUF but not really"), text = temporary_file("just text");
  const std::vector<std::vector<std::string>> commands = {
      {"walk"},
      {"run", tiny(), "x", "--no-such-flag"},
      {"run", tiny(), "x", "one too many"},
      {"run", tiny(), "x", "--max-tokens", "many"},
      {"run", tiny(), "x", "--device", "toaster"},
      {"run", tiny(), "x", "--logit-bias", "{"},
      {"run", tiny(), "x", "--temperature"},
      {"run", tiny(), "x", "--prompts", "y"},
      {"run", tiny(), "x", "--block-size", "0"},
      {"run", tiny(), "x", "--quantization", "gptq"},
      {"run", tiny(), "x", "--no-enable-chunked-prefill", "--max-num-batched-tokens", "16"},
      {"run", "/no/such/model", "x"},
      {"run", junk, "x"},
      {"run", text, "x"},
      {"run", "/", "x"},
      {"run", tiny(), "--prompts", "/no/such/file"},
      {"run", tiny(), "x", "--trace", "/no/such/dir/trace"},
      {"info"},
      {"info", "--params", "x"},
      {"info", "--config", text},
      {"tokenize", junk, "x"},
      {"tokenize", tiny(), "x", "--messages", "y"},
      {"ppl", tiny()},
      {"ppl", tiny(), "--file", text},
      {"bench"},
      {"bench", "latency", tiny(), "--input-len", "0"},
      {"trace", "summary", text},
      {"chat", tiny()},  // it has no template
  };
  for (const auto& command : commands) {
    INFO(command[0] << " " << (command.size() > 1 ? command.back() : ""));
    std::vector<std::string> quiet = command;
    if (command[0] == "chat" || command[0] == "ppl") quiet.push_back("--no-stats");
    const auto ran = run_nano(quiet);
    CHECK(ran.exit_code == 2);
    CHECK(ran.out == "");
    INFO(ran.err);
    CHECK(lines(ran.err) == 1);
    CHECK(ran.err.rfind("error: ", 0) == 0);
  }
  std::remove(junk.c_str());
  std::remove(text.c_str());
}

TEST_CASE("--help is on stdout and fits a screen") {
  const auto top = run_nano({"--help"});
  CHECK(top.exit_code == 0);
  CHECK(lines(top.out) <= 24);
  CHECK(contains(top.out, "tokenize"));
  const auto run = run_nano({"run", "--help"});
  CHECK(run.exit_code == 0);
  CHECK(contains(run.out, "--[no-]enable-prefix-caching"));
  CHECK(contains(run.out, "{prefix cache}"));
  CHECK(contains(run.out, "default: the model's context"));
  CHECK(contains(run.out, "tiny-draft"));
  CHECK(!contains(run.out, "\x1b"));
  size_t at = 0;  // the groups, in the order of the table
  for (const char* group : {"Positionals:\n", "\nModel:\n", "\nMemory and KV cache:\n", "\nScheduler:\n",
                            "\nSampling (vLLM's SamplingParams) {sampler}:\n", "\nPrompts and output:\n"}) {
    CAPTURE(group);
    CHECK(run.out.find(group, at) != std::string::npos);
    at = run.out.find(group, at);
  }
  for (size_t begin = 0, end; (end = run.out.find('\n', begin)) != std::string::npos; begin = end + 1) {
    INFO(run.out.substr(begin, end - begin));
    CHECK(end - begin <= 110);
  }
  CHECK(run_nano({"--version"}).out.rfind("nano ", 0) == 0);
}

TEST_CASE("run --json is one RequestOutput, and underscores in flags are dashes") {
  const auto ran =
      run_nano(run_args({"In the beginning", "--json", "--logprobs", "2", "--prompt_logprobs", "0"}));
  INFO(ran.err);
  REQUIRE(ran.exit_code == 0);
  const Json out = Json::parse(ran.out);
  CHECK(lines(ran.out) == 1);
  CHECK(out["prompt"] == "In the beginning");
  const Json& answer = out["outputs"].at(0);
  CHECK(answer["token_ids"].size() == 5);
  CHECK(answer["finish_reason"] == "length");
  CHECK(answer["stop_reason"].is_null());
  REQUIRE(answer["logprobs"].size() == 5);
  for (size_t i = 0; i < 5; ++i) {
    const Json& best = answer["logprobs"][i].at(std::to_string(answer["token_ids"][i].get<int>()));
    CHECK(best["rank"] == 1);
    CHECK(best["logprob"].get<double>() <= 0);
    CHECK(best["decoded_token"].is_string());
  }
  CHECK(out["prompt_logprobs"].size() == out["prompt_token_ids"].size());
  CHECK(out["prompt_logprobs"][0].is_null());
  CHECK(!out.contains("error"));
  CHECK(ran.err == "");

  // The same prompt as ids gives the same answer.
  std::string ids;
  for (const Json& id : out["prompt_token_ids"])
    ids += (ids.empty() ? "" : ",") + std::to_string(id.get<int>());
  const auto again = run_nano(run_args({"--prompt-token-ids", ids, "--json"}));
  REQUIRE(again.exit_code == 0);
  CHECK(Json::parse(again.out)["outputs"][0]["token_ids"] == answer["token_ids"]);
}

TEST_CASE("text output is the text and nothing else, from an argument or from stdin") {
  const auto json = run_nano(run_args({"Moses went", "--json"}));
  REQUIRE(json.exit_code == 0);
  const std::string text = Json::parse(json.out)["outputs"][0]["text"].get<std::string>() + "\n";
  CHECK(run_nano(run_args({"Moses went"})).out == text);
  CHECK(run_nano(run_args({}), "Moses went\n").out == text);
  CHECK(run_nano(run_args({"-"}), "Moses went").out == text);
}

TEST_CASE("a prompt may look like a list, a flag or nothing that CLI11 expects") {
  for (const char* prompt : {"[a,b]", "{}", "a=b", "%%", "日本語 🙂", "-"}) {
    CAPTURE(prompt);
    const auto ran = run_nano(run_args({"--json", "--stop", "[x,y]", "--", prompt}), prompt);
    INFO(ran.err);
    REQUIRE(ran.exit_code == 0);
    CHECK(Json::parse(ran.out)["prompt"] == prompt);
  }
}

TEST_CASE("only the names of flags may have underscores: values and what follows -- stay as they are") {
  const auto prompt = run_nano(run_args({"--json", "--", "--my_prompt_x"}));
  INFO(prompt.err);
  REQUIRE(prompt.exit_code == 0);
  CHECK(Json::parse(prompt.out)["prompt"] == "--my_prompt_x");
  CHECK(Json::parse(run_nano(run_args({"--json", "--", "--top_k"})).out)["prompt"] == "--top_k");
  const auto value = run_nano(run_args({"x", "--chat_template", "--no_such"}));
  CHECK(contains(value.err, "--no_such: cannot open"));
  const auto flag = run_nano(run_args({"x", "--chat_template", "--top_k"}));
  CHECK(contains(flag.err, "--top_k: cannot open"));
  CHECK(run_nano(run_args({"x", "--max_tokens=1", "--no_enable_prefix_caching"})).exit_code == 0);
}

TEST_CASE("F6 an empty prompt fails alone, and the good one beside it is answered") {
  const std::string file =
      temporary_file("\"\"\n{\"prompt_token_ids\": []}\n{\"prompt\": \"And he said\"}\n");
  const auto ran = run_nano(run_args({"--prompts", file, "--json"}));
  std::remove(file.c_str());
  CHECK(ran.exit_code == 1);
  const std::vector<Json> out = json_lines(ran.out);
  REQUIRE(out.size() == 3);
  CHECK(out[1]["outputs"].empty());
  CHECK(contains(out[1].value("error", ""), "prompt_token_ids"));
  CHECK(out[2]["outputs"][0]["token_ids"].size() == 5);
  // "" is BOS alone where the tokenizer adds one, and an error where it does not.
  if (out[0]["prompt_token_ids"].empty())
    CHECK(out[0].contains("error"));
  else
    CHECK(out[0]["prompt_token_ids"].size() == 1);
}

TEST_CASE("a batch says on a terminal how far it is, and only there") {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE((terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0));
  const std::string name = ptsname(terminal);
  const int other_end = open(name.c_str(), O_RDWR | O_NOCTTY);  // so that reading ends when we close it
  std::string shown;
  std::thread reader([&] {
    char bytes[4096];
    for (ssize_t n; (n = read(terminal, bytes, sizeof bytes)) > 0;) shown.append(bytes, size_t(n));
  });
  const std::string file = temporary_file("\"And\"\n\"In the\"\n"), out = temporary_file("");
  std::string command = nano_test::nano_binary();
  for (const std::string& arg : run_args({"--json", "--prompts", file})) command += " " + arg;
  CHECK(std::system((command + " >" + out + " 2>" + name).c_str()) == 0);
  close(other_end);
  reader.join();
  close(terminal);
  std::remove(file.c_str());
  CHECK(contains(shown, "answering "));
  CHECK(contains(shown, "100%"));
  CHECK(shown.back() == '\r');  // it is gone
  CHECK(json_lines(nano_test::take_file(out)).size() == 2);
}

TEST_CASE("each line of --prompts has its own fields, and a bad one its own error") {
  const std::string file = temporary_file(
      "{\"prompt\": \"And\", \"max_tokens\": 2}\n"
      "not json\n"
      "\n"
      "{\"prompt\": \"And\", \"temprature\": 0}\n"
      "{\"prompt\": \"And\", \"top_k\": \"two\"}\n"
      "{\"prompt\": \"And\", \"top_p\": 7}\n"
      "{\"prompt\": \"And\", \"max_tokens\": 99999999999}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n"
      "{\"prompt_token_ids\": [1, -4]}\n"
      "{\"prompt_token_ids\": [1, 9999999]}\n"
      "{\"prompt\": \"\xff\xfe\"}\n"
      "{\"prompt\": [5, 6]}\n"
      "{\"prompt\": [\"In the\"]}\n"
      "{\"prompt\": [\"In\", \"the\"]}\n" +
      std::string("{\"prompt\": \"And\", \"max_tokens\": 1}\0{\"x\": 1}\n", 44));
  const auto ran = run_nano(run_args({"--prompts", file, "--json"}));
  std::remove(file.c_str());
  CHECK(ran.exit_code == 1);
  const std::vector<Json> out = json_lines(ran.out);
  REQUIRE(out.size() == 14);
  CHECK(out[0]["outputs"][0]["token_ids"].size() == 2);
  for (size_t i = 1; i < 10; ++i) {
    CAPTURE(i);
    CHECK(out[i].contains("error"));
    CHECK(out[i]["request_id"] == std::to_string(i));
  }
  CHECK(contains(out[1].value("error", ""), "line 2"));
  CHECK(contains(out[2].value("error", ""), "temprature"));
  CHECK(contains(out[3].value("error", ""), "top_k"));
  CHECK(out[10]["outputs"][0]["token_ids"].size() == 5);
  REQUIRE(out[11]["outputs"].size() == 1);
  const Json alone = json_lines(run_nano(run_args({"In the", "--json"})).out)[0];
  CHECK(out[11]["outputs"][0]["token_ids"] == alone["outputs"][0]["token_ids"]);  // a list of one text
  CHECK(contains(out[12].value("error", ""), "several texts"));
  CHECK(contains(out[13].value("error", ""), "column 35: a NUL byte"));
}

TEST_CASE("the sampling seed comes from --seed: equal seeds equal answers, other seeds others") {
  auto sampled = [](const char* seed) {
    return run_nano(run_args({"In the", "--temperature", "1", "--n", "3", "--seed", seed})).out;
  };
  const std::string one = sampled("1");
  CHECK(lines(one) >= 3);
  CHECK(contains(one, "[answer 2]"));
  CHECK(sampled("1") == one);
  CHECK(sampled("2") != one);
}

TEST_CASE("Ctrl-C ends a run with what there is") {
  const auto ran = run_nano({"run", tiny(), "--device", "ref", "--no-stats", "--raw", "--max-tokens", "2000",
                             "--ignore-eos", "--kv-cache-memory-bytes", "16MB", "In the beginning"},
                            "", 50);
  CHECK(ran.exit_code == 1);
  CHECK(ran.out.size() > 1);
  CHECK(ran.err == "");
}

TEST_CASE("SIGTERM ends a run as Ctrl-C does, with whole lines in the trace") {
  const std::string trace = temporary_file("");
  const auto ran =
      run_nano({"run", tiny(), "--device", "ref", "--no-stats", "--raw", "--max-tokens", "2000",
                "--ignore-eos", "--kv-cache-memory-bytes", "16MB", "In the beginning", "--trace", trace},
               "", 50, SIGTERM);
  CHECK(ran.exit_code == 1);
  CHECK(ran.out.size() > 1);
  CHECK(ran.err == "");
  const auto summary = run_nano({"trace", "summary", trace, "--json"});
  CHECK(summary.exit_code == 0);
  CHECK(summary.err == "");
  std::remove(trace.c_str());
}

TEST_CASE("chat takes its turns from stdin, and remembers until /reset") {
  const std::string source = temporary_file("{% for m in messages %}{{ m['content'] }} {% endfor %}");
  const auto ran =
      run_nano({"chat", tiny(), "--device", "ref", "--chat-template", source, "--max-tokens", "3",
                "--temperature", "0", "--ignore-eos"},
               "And God said unto Moses\nGo\n/reset\n/nonsense\nAnd God said unto Moses\n/exit\nnever\n");
  std::remove(source.c_str());
  INFO(ran.err);
  CHECK(ran.exit_code == 0);
  CHECK(contains(ran.err, "/nonsense"));
  CHECK(!contains(ran.out + ran.err, "\x1b"));
  std::vector<int> prompt_tokens;  // of each turn, from its line of figures
  for (size_t at = 0; (at = ran.err.find(" prompt tokens", at)) != std::string::npos; ++at)
    prompt_tokens.push_back(std::stoi(ran.err.substr(ran.err.rfind('\n', at) + 1)));
  REQUIRE(prompt_tokens.size() == 3);
  CHECK(prompt_tokens[1] > prompt_tokens[0]);
  CHECK(prompt_tokens[2] == prompt_tokens[0]);
}
