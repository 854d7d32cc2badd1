// The built binary given what it cannot do: streams that are full or closed, flags and files that make no sense.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "app/cli.h"           // ArgParser, split_commas
#include "llm/output_file.h"   // check_output_file
#include "base/error.h"        // Error
#include "base/mapped_file.h"  // read_file
#include "catch.h"             // Catch2, version 2 or 3
#include "data.h"              // data_path
#include "subprocess.h"        // run_nano, temporary_file

using nano_test::contains;
using nano_test::lines;
using nano_test::run_nano;
using nano_test::temporary_file;
using nano_test::tiny;
using Json = nlohmann::json;

TEST_CASE("output that cannot be written is an error, and a stderr that cannot be is not") {
  auto shell = [](const std::string& arguments) {
    const int status = std::system((nano_test::nano_binary() + " " + arguments).c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  };
  const std::string run = "run " + tiny() + " hi --raw --max-tokens 2 --device ref --device-memory 100MB ";
  for (const std::string& command :
       {run, run + "--json ", "tokenize " + tiny() + " hi ", "info " + tiny() + " "}) {
    CAPTURE(command);
    CHECK(shell(command + ">/dev/full 2>/dev/null") == 2);
    CHECK(shell(command + ">&- 2>/dev/null") == 2);
    CHECK(shell(command + ">/dev/null 2>&-") == 0);
    CHECK(shell(command + ">/dev/null 2>/dev/full") == 0);
  }
  CHECK(shell("walk 2>&-") == 2);
  CHECK(shell("walk 2>/dev/full") == 2);
}

TEST_CASE("a Git LFS pointer is called that by every command, wherever it stands") {
  namespace fs = std::filesystem;
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n";
  const std::string file = temporary_file(pointer), dir = file + ".dir";
  auto named = [&](const std::vector<std::string>& command, const std::string& culprit) {
    const auto ran = run_nano(command);
    INFO(command[0] << ": " << ran.err);
    CHECK(ran.exit_code == 2);
    CHECK(lines(ran.err) == 1);
    CHECK(contains(ran.err, culprit + ": this is a Git LFS pointer"));
  };
  auto by_all = [&](const std::string& model, const std::string& culprit) {
    for (const std::vector<std::string>& command :
         std::vector<std::vector<std::string>>{{"run", model, "x"},
                                               {"chat", model},
                                               {"info", model},
                                               {"bench", "latency", model},
                                               {"ppl", model, "--file", "README.md"}})
      named(command, culprit);
  };
  by_all(file, file);
  named({"tokenize", file, "x"}, file);
  named({"run", file, "x", "--load-format", "dummy"}, file);
  named({"info", "--config", file}, file);
  for (const char* part : {"config.json", "model.safetensors", "tokenizer.json"}) {
    fs::remove_all(dir);
    fs::copy(nano_test::data_path("golden/checkpoints/llama-fp32"), dir);
    fs::copy_file(file, dir + "/" + part, fs::copy_options::overwrite_existing);
    if (std::string(part) == "tokenizer.json")
      named({"run", dir, "x"}, dir + "/" + part);  // `info` needs none
    else
      by_all(dir, dir + "/" + part);
  }
  fs::remove_all(dir);
  std::remove(file.c_str());
}

TEST_CASE("what is wrong in a flag is said before a model is loaded, with the flag's name") {
  const std::string
      empty = temporary_file(""),
      object = temporary_file("{}"), numbers = temporary_file("[1]"), password = temporary_file("root:x:0"),
      no_merges = temporary_file(
          "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}}, \"decoder\": {\"type\": \"Fuse\"}}");
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"run", tiny(), "x", "--trace", ""}, "trace"},
      {{"run", tiny(), "--prompts", ""}, "prompts"},
      {{"run", tiny(), "--prompt-token-ids", ""}, "prompt-token-ids"},
      {{"run", tiny(), "x", "--quantization", ""}, "quantization"},
      {{"run", tiny(), "x", "--chat-template", ""}, "chat-template"},
      {{"run", tiny(), "x", "--no-sampler=3"}, "no-sampler"},
      {{"run", tiny(), "x", "--temperature", "-1"}, "--temperature: -1"},
      {{"run", tiny(), "x", "--top-p", "0"}, "--top-p: 0"},
      {{"run", tiny(), "x", "--n", "0"}, "--n: 0"},
      {{"run", tiny(), "x", "--n", "2", "--temperature", "0"}, "--n: 2"},
      {{"run", tiny(), "x", "--stop", ""}, "--stop: "},
      {{"run", tiny(), "x", "--prompt-logprobs", "99"}, "--prompt-logprobs: 99"},
      {{"run", tiny(), "x", "--no-such-flag"}, "'--no-such-flag' is not one of its flags"},
      {{"run", tiny(), "x", "-q"}, "'-q' is not one of its flags"},
      {{"run", tiny(), "x", "y"}, "'y' is one argument too many"},
      {{"run", tiny(), "x", "--temperature"}, "build/nano run --temperature: needs a value"},
      {{"run", tiny(), "x", "--no-sampler=3"}, "build/nano run --no-sampler: takes no value"},
      {{"run", tiny(), "x", "--device", "auto|ref"}, "one of auto, ref, cpu"},
      {{"run", tiny()}, "build/nano run: no PROMPT was given, and stdin is empty"},
      {{"run", tiny(), "--prompt-token-ids", "1k"}, "--prompt-token-ids: '1k' is not a plain whole number"},
      {{"run", tiny(), "--prompt-token-ids", "1,-4"}, "--prompt-token-ids: -4 is out of range"},
      {{"run", tiny(), "--prompt-token-ids", "1,,2"}, "'' is not a plain whole number"},
      {{"run", tiny(), "--prompt-token-ids", "1,2147483648"}, ": 2147483648 is out of range"},
      {{"run", tiny(), "x", "--stop-token-ids", "1.0"},
       "--stop-token-ids: '1.0' is not a plain whole number"},
      {{"run", tiny(), "x", "--logit-bias", "{\"5,6\": 100}"},
       "logit_bias: '5,6' is not a plain whole number"},
      {{"run", tiny(), "x", "--logprobs", "-1"}, "--logprobs: all log-probabilities a token are more than"},
      {{"run", tiny(), "x", "--load-format", "dummy"},
       "tiny-Q8_0.gguf: --load-format dummy needs a config.json"},
      {{"info", tiny(), "--load-format", "dummy"}, "tiny-Q8_0.gguf: --load-format dummy needs a config.json"},
      {{"run", tiny(), "x", "--no_such_flag"}, "'--no_such_flag' is not one of its flags"},
      {{"run", tiny(), "-"}, "stdin is empty"},
      {{"run", tiny(), "--prompts", "-"}, "stdin: it holds no prompts"},
      {{"tokenize", tiny(), "--messages", object}, "'messages' must be a list of objects"},
      {{"tokenize", tiny(), "--messages", numbers}, "'messages' must be a list of objects"},
      {{"bench", "latency", tiny(), "--output-json", "/no/such/dir/x"}, "/no/such/dir/x: cannot be written"},
      {{"bench", "throughput", tiny(), "--output-json", "/"}, "/: cannot be written"},
      {{"chat", tiny(), "--temperature", "-1"}, "temperature"},
      {{"run", tiny(), "x", "--device-memory", "1e18", "--no-stats"}, "TB"},
      {{"run", tiny(), "x", "--kv-cache-memory-bytes", "1e18"}, "--kv-cache-memory-bytes"},
      {{"run", tiny(), "x", "--num-gpu-blocks-override", "2147483647"}, "--num-gpu-blocks-override"},
      {{"run", empty, "x"}, "not a GGUF file"},
      {{"run", password, "x"}, "not a GGUF file"},
      {{"tokenize", password, "x"}, "not a GGUF file"},
      {{"tokenize", no_merges, "x"}, ": model: key 'merges' is missing"},
      {{"info", tiny(), "--max-model-len", "999999"}, "max_model_len"},
  };
  for (const auto& [command, part] : cases) {
    INFO(command.back());
    const auto ran = run_nano(command);
    INFO(ran.err);
    CHECK(ran.exit_code == 2);
    CHECK(ran.out == "");
    CHECK(lines(ran.err) == 1);
    CHECK(contains(ran.err, part));
    CHECK(!contains(ran.err, "SamplingParams"));
  }
  std::remove(object.c_str());
  std::remove(numbers.c_str());
  std::remove(empty.c_str());
  std::remove(password.c_str());
  std::remove(no_merges.c_str());
}

TEST_CASE("a file to be written is never the model, by whatever name") {
  const std::string file = temporary_file(""), dir = file + ".dir", gguf = dir + "/copy.gguf",
                    link = dir + "/link";
  std::filesystem::copy(nano_test::data_path("golden/checkpoints/llama-bf16"), dir);
  std::filesystem::copy(tiny(), gguf);
  std::filesystem::create_symlink(gguf, link);
  auto refusal = [](const std::string& output, const std::string& model) -> std::string {
    nano::EngineOptions options;
    options.model = model;
    try {
      nano::check_output_file("--output-json", output, options);
      return "";
    } catch (const nano::Error& error) {
      return error.what();
    }
  };
  const std::string shard = dir + "/model.safetensors";
  for (const auto& [model, output] : {std::pair{gguf, gguf}, {gguf, link}, {link, gguf}, {dir, shard}}) {
    CAPTURE(model, output);
    const std::string before = nano::read_file(output);
    const auto ran =
        run_nano({"run", model, "--prompt-token-ids", "1", "--max-tokens", "1", "--trace", output});
    CHECK(ran.exit_code == 2);
    const std::string rest =
        ": " + output + " is a file of the model, and would be overwritten (name another file)";
    CHECK(ran.err == "error: --trace" + rest + "\n");
    CHECK(nano::read_file(output) == before);
    CHECK(refusal(output, model) == "--output-json" + rest);
    for (const std::string& good : {std::string(), dir + "/fresh.json"}) CHECK(refusal(good, model) == "");
  }
  // In a folder below it, empty too, and under another name outside. A result of ours may lie there and be written again.
  const std::string below = dir + "/sub/notes.txt", empty = dir + "/empty", hard = file + ".hard";
  std::filesystem::create_directory(dir + "/sub");
  std::ofstream(below) << "mine";
  std::ofstream{empty};
  std::filesystem::create_hard_link(shard, hard);
  for (const std::string& output : {below, empty, hard})
    CHECK(contains(refusal(output, dir), "is a file of the model, and would be overwritten"));
  for (int time = 0; time < 2; ++time) {
    const auto ran = run_nano({"bench", "latency", dir, "--device", "ref", "--input-len", "4", "--output-len",
                               "2", "--batch-size", "1", "--num-iters", "1", "--num-iters-warmup", "0",
                               "--kv-cache-memory-bytes", "1M", "--output-json", dir + "/result.json"});
    INFO(ran.err);
    CHECK(ran.exit_code == 0);
    CHECK(contains(nano::read_file(dir + "/result.json"), "output_ids_digest"));
  }
  std::filesystem::remove(hard);
  std::filesystem::remove_all(dir);
  std::remove(file.c_str());
}

TEST_CASE("only what nano itself wrote is written over") {
  auto refusal = [](const std::string& content) -> std::string {
    const std::string file = temporary_file(content);
    nano::EngineOptions options;
    options.model = tiny();
    std::string said;
    try {
      nano::check_output_file("--trace", file, options);
    } catch (const nano::Error& error) {
      said = error.what();
      CHECK(said ==
            "--trace: " + file + " is there and is no result of nano's (name another file, or remove it)");
    }
    CHECK(nano_test::take_file(file) == content);
    return said;
  };
  for (const char* ours :
       {"", "{\"a\": 1,\n \"output_ids_digest\": \"0\"}\n", "{\"output_ids\": \"x\", \"metrics\": []}",
        "{\"trace\":\"nano\",\"version\":1}\n{\"step\":0", "{\"trace\":\"nano\"}"})
    CHECK(refusal(ours) == "");
  for (const char* other :
       {"old", " ", "{}", "{\"model_type\": \"llama\"}", "[\"output_ids_digest\"]", "{\"trace\": 1}",
        "{\"output_ids\": [1]}", "{\"output_ids_digest\": ", "\"trace\"", "{\"x\":1}\n{\"trace\":\"nano\"}"})
    CHECK(refusal(other) != "");
  // As the commands do it: a config.json of another model, and a text.
  const std::string config = temporary_file("{\"model_type\": \"llama\"}");
  for (const char* flag : {"--output-json", "--trace"}) {
    const auto ran = run_nano({"bench", "throughput", tiny(), "--num-prompts", "1", flag, config});
    CHECK(ran.exit_code == 2);
    CHECK(contains(ran.err, config + " is there and is no result of nano's"));
    CHECK(lines(ran.err) == 1);
  }
  CHECK(nano_test::take_file(config) == "{\"model_type\": \"llama\"}");
}

TEST_CASE("a parser takes out its own flags and leaves the others as they came") {
  int64_t runs = 0;
  bool json = true;
  nano::ArgParser parser("bench compare", "");
  parser.add("num-runs", runs, "");
  parser.add("json", json, "");
  nano::Args args = {"tiny",      "--input_len",   "4",     "--num_runs",   "3", "--seed", "-1", "--no-json",
                     "--x=[a,b]", "--no-paged-kv", "a=b:c", "--num-runs=5", ""};
  CHECK(parser.parse_own(args));
  CHECK(args ==
        nano::Args{"tiny", "--input_len", "4", "--seed", "-1", "--x=[a,b]", "--no-paged-kv", "a=b:c", ""});
  CHECK(runs == 5);
  CHECK(!json);
  CHECK_THROWS_AS(parser.parse({"--json", "tiny"}), nano::Error);
}

TEST_CASE("lists have commas between their parts, which may be empty") {
  CHECK(nano::split_commas("") == nano::Args{""});
  CHECK(nano::split_commas("a") == nano::Args{"a"});
  CHECK(nano::split_commas(",a b,,c,") == nano::Args{"", "a b", "", "c", ""});
  CHECK(nano::parse_id_list("7,0,2147483647", "") == std::vector<int32_t>{7, 0, 2147483647});
}

TEST_CASE("a file for results is checked without creating it, and is not the trace") {
  const std::string old = "{\"output_ids_digest\": 1}";
  const std::string file = temporary_file(old), fresh = file + ".new", link = file + ".link",
                    dir = file.substr(0, file.rfind('/'));
  std::filesystem::create_symlink(file, link);
  auto bench = [](const std::string& output, const std::string& trace, const char* length) {
    return run_nano({"bench", "throughput", tiny(), "--device", "ref", "--no-stats", "--num-prompts", "1",
                     "--input-len", length, "--output-len", "2", "--output-json", output, "--trace", trace});
  };
  CHECK(contains(bench(fresh, file + ".trace", "999999").err, "more than --max-model-len"));
  CHECK(!std::filesystem::exists(fresh));
  std::remove((file + ".trace").c_str());
  const std::string same_dir = dir + "/./" + fresh.substr(dir.size() + 1);
  for (const auto& [output, trace] :
       {std::pair{fresh, fresh}, {fresh, same_dir}, {file, link}, {link, file}}) {
    CAPTURE(output, trace);
    const auto ran = bench(output, trace, "2");
    CHECK(ran.exit_code == 2);
    CHECK(ran.err == "error: --output-json: " + output +
                         " is named by another argument too, and would be overwritten (name another file)\n");
    CHECK(!std::filesystem::exists(fresh));
  }
  CHECK(nano::read_file(file) == old);
  CHECK(contains(bench(file + "/x", fresh, "2").err, "cannot be written"));
  CHECK(bench(file, fresh, "2").exit_code == 0);
  CHECK(contains(nano::read_file(file), "tokens_per_second"));
  for (const std::string& name : {file, fresh, link}) std::remove(name.c_str());
}

TEST_CASE("a conversation in --prompts that is none is its line's error") {
  const auto ran = run_nano({"run", tiny(), "--prompts", "-", "--json", "--device", "ref", "--no-stats"},
                            "{\"messages\": {}}\n{\"messages\": [\"hi\"]}\n");
  CHECK(ran.exit_code == 1);
  CHECK(contains(ran.err, "prompt 0: stdin line 1: 'messages' must be a list of objects"));
  CHECK(contains(ran.err, "prompt 1: stdin line 2: 'messages' must be a list of objects"));
}

TEST_CASE("an empty file is no chat template, not the model's own") {
  const std::string empty = temporary_file(""),
                    messages = temporary_file("[{\"role\": \"user\", \"content\": \"a\"}]");
  for (const std::vector<std::string>& command : {std::vector<std::string>{"run", tiny(), "x"},
                                                  {"chat", tiny()},
                                                  {"tokenize", tiny(), "--messages", messages}}) {
    std::vector<std::string> args = command;
    args.insert(args.end(), {"--chat-template", empty});
    const auto ran = run_nano(args);
    CHECK(ran.exit_code == 2);
    CHECK(ran.err == "error: " + empty + ": the file is empty (a Jinja template is wanted)\n");
  }
  std::remove(empty.c_str());
  std::remove(messages.c_str());
}

TEST_CASE("an empty PROMPT is one when it was given") {
  const auto ran =
      run_nano({"run", tiny(), "", "--raw", "--device", "ref", "--no-stats", "--max-tokens", "2"});
  INFO(ran.err);
  CHECK(ran.exit_code == 0);
}

TEST_CASE("a temperature that is raised is warned of, wherever it comes from") {
  auto err = [](const std::string& temperature, const std::string& line) {
    return run_nano({"run", tiny(), "--raw", "--device", "ref", "--no-stats", "--max-tokens", "1",
                     "--temperature", temperature, "--prompts", "-"},
                    line)
        .err;
  };
  CHECK(contains(err("0.001", "\"a\""), "warning: --temperature: temperature 0.001 is raised to 0.01"));
  CHECK(contains(err("1", "{\"prompt\": \"a\", \"temperature\": 0.002}"),
                 "warning: stdin line 1: temperature"));
  CHECK(err("0.01", "{\"prompt\": \"a\", \"temperature\": 0}") == "");
  CHECK(err("0", "\"a\"") == "");
}

TEST_CASE("a request that failed prints nothing on stdout") {
  const auto ran = run_nano(
      {"run", tiny(), "--prompt-token-ids", "9999999", "--device", "ref", "--kv-cache-memory-bytes", "16MB"});
  INFO(ran.err);
  CHECK(ran.exit_code == 1);
  CHECK(ran.out == "");
  CHECK(!contains(ran.err, "nothing generated"));
}

TEST_CASE("a request that fails on its way: all of its text, and the error on a line of its own") {
  const std::string empty = temporary_file("{{ '' }}");
  // The first token is any but BOS, which is all of the prompt; the second time its logit is divided by next to 0.
  auto ran = [&](std::vector<std::string> args, const char* stop) {
    args.insert(args.end(), {"--logit-bias", "{\"0\": -100}", "--repetition-penalty", "1e-39", "--stop", stop,
                             "--device", "ref", "--temperature", "0", "--kv-cache-memory-bytes", "16MB"});
    return run_nano(args, "hello\n");
  };
  const std::vector<std::string> run = {"run", tiny(), "--prompt-token-ids", "0"};
  const std::vector<std::string> chat = {"chat", tiny(), "--chat-template", empty};
  for (const auto& [args, before, error] :
       {std::tuple{run, "", "error: prompt 0: "}, std::tuple{chat, "> hello\n", "error: chat: "}})
    for (const char* stop : {"not there", "AndX"}) {
      CAPTURE(args[0], stop);
      const auto failed = ran(args, stop);
      CHECK(failed.exit_code == 1);
      CHECK(failed.out == std::string(before) + "And\n");
      CHECK(contains(failed.err, std::string("\n") + error + "no token can be chosen"));
    }
  std::remove(empty.c_str());
}

TEST_CASE("info --params 7B is 7 billion, and a shape beyond counting is refused") {
  const auto ran = run_nano({"info", "--params", "7B", "--json"});
  REQUIRE(ran.exit_code == 0);
  CHECK(Json::parse(ran.out)["parameters"] == 7'000'000'000);
  const std::string config = temporary_file(
      "{\"model_type\": \"llama\", \"vocab_size\": 1000000, \"hidden_size\": 16777216, "
      "\"intermediate_size\": 16777216, \"num_hidden_layers\": 1000, \"num_attention_heads\": 2, "
      "\"head_dim\": 1024, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5}");
  const auto absurd = run_nano({"info", "--config", config});
  std::remove(config.c_str());
  CHECK(absurd.exit_code == 2);
  CHECK(contains(absurd.err, "too large"));
}
