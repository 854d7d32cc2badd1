// The built binary given what it cannot do: streams that are full or closed, flags and files that make no sense.
#include <algorithm>
#include <cstdlib>
#include <string>

#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "catch.h"
#include "data.h"
#include "subprocess.h"

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

TEST_CASE("what is wrong in a flag is said before a model is loaded, with the flag's name") {
  const std::string
      empty = temporary_file(""),
      password = temporary_file("root:x:0"),
      no_merges = temporary_file(
          "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}}, \"decoder\": {\"type\": \"Fuse\"}}");
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"run", tiny(), "x", "--trace", ""}, "trace"},
      {{"run", tiny(), "--prompts", ""}, "prompts"},
      {{"run", tiny(), "--prompt-token-ids", ""}, "prompt-token-ids"},
      {{"run", tiny(), "x", "--quantization", ""}, "quantization"},
      {{"run", tiny(), "x", "--chat-template", ""}, "chat-template"},
      {{"run", tiny(), "x", "--no-sampler=3"}, "no-sampler"},
      {{"run", tiny(), "x", "--temperature", "-1"}, "temperature"},
      {{"run", tiny(), "x", "--top-p", "0"}, "top_p"},
      {{"run", tiny(), "x", "--n", "0"}, "n"},
      {{"run", tiny(), "x", "--stop", ""}, "stop"},
      {{"chat", tiny(), "--temperature", "-1"}, "temperature"},
      {{"run", tiny(), "x", "--device-memory", "1e18", "--no-stats"}, "GB"},
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
  }
  std::remove(empty.c_str());
  std::remove(password.c_str());
  std::remove(no_merges.c_str());
}

TEST_CASE("a request that failed prints nothing on stdout") {
  const auto ran = run_nano(
      {"run", tiny(), "--prompt-token-ids", "9999999", "--device", "ref", "--kv-cache-memory-bytes", "16MB"});
  INFO(ran.err);
  CHECK(ran.exit_code == 1);
  CHECK(ran.out == "");
  CHECK(!contains(ran.err, "nothing generated"));
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
