// The built binary, from outside: tokenize, info, ppl, bench and trace summary; what they read and what they print.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include <nlohmann/json.hpp>

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

TEST_CASE("prompts and texts may come through a pipe") {
  auto shell = [](const std::string& command) {
    const std::string out = temporary_file("");
    const int status = std::system(("bash -c '" + command + "' >" + out + " 2>&1").c_str());
    return std::to_string(status) + ": " + nano_test::take_file(out);
  };
  const std::string nano = nano_test::nano_binary(),
                    flags = " --device ref --no-stats --kv-cache-memory-bytes 16MB ";
  const std::string run = nano + " run " + tiny() + flags + "--raw --temperature 0 --max-tokens 2 --prompts ";
  const std::string want = shell("echo \"In the beginning\" | " + nano + " run " + tiny() + flags +
                                 "--raw --temperature 0 --max-tokens 2");
  CHECK(want.rfind("0: ", 0) == 0);
  const std::string line = "echo \\\"In the beginning\\\"";
  CHECK(shell(line + " | " + run + "-") == want);
  CHECK(shell(line + " | " + run + "/dev/stdin") == want);
  CHECK(shell(run + "<(" + line + ")") == want);
  const std::string ppl = nano + " ppl " + tiny() + flags + "--ctx 4 --json --file ",
                    text = "echo And God said unto him";
  CHECK(contains(shell(text + " | " + ppl + "-"), "\"chunks\":1"));
  CHECK(shell(text + " | " + ppl + "-") == shell(ppl + "<(" + text + ")"));
}

TEST_CASE("tokenize gives back any text, also over stdin and byte for byte") {
  for (const std::string text : {"Hello, world!\n", "日本語と中文", "👩‍👩‍👧 é ไทย",
                                 "  two  spaces\t", "[1,2]", "1234"}) {
    CAPTURE(text);
    const auto ran = run_nano({"tokenize", tiny(), "--json", "--no-bos"}, text);
    REQUIRE(ran.exit_code == 0);
    const Json out = Json::parse(ran.out);
    CHECK(out["text"] == text);
    CHECK(out["tokens"].size() > 0);
    const auto argument = run_nano({"tokenize", "--model", tiny(), "--json", "--no-bos", text});
    CHECK(Json::parse(argument.out)["tokens"] == out["tokens"]);
  }
  CHECK(run_nano({"tokenize", tiny(), "\xff"}).exit_code == 2);
  CHECK(contains(run_nano({"tokenize", tiny(), "And"}).out, "tokens"));
}

TEST_CASE("tokenize shows the leading space of a SentencePiece token, and U+FFFD for a part of a character") {
  const std::string spm = nano_test::data_path("golden/tokenizers/spm.gguf");
  // Ids as in spm.expected.json; their pieces are U+2581, U+2581 "the" twice.
  CHECK(run_nano({"tokenize", spm, " the the"}).out ==
        "    582  \" \"\n    263  \" the\"\n    263  \" the\"\n3 tokens\n");
  CHECK(contains(run_nano({"tokenize", spm, "½"}).out, "    197  \"\uFFFD\"\n"));
}

TEST_CASE("tokenize renders a conversation through any template") {
  const std::string messages = temporary_file("[{\"role\": \"user\", \"content\": \"And he\"}]");
  const std::string source = temporary_file(
      "{% for m in messages %}{{ bos_token }}{{ m['role'] }}: {{ m['content'] }}{% endfor %}"
      "{% if add_generation_prompt %}|{% endif %}");
  const auto ran = run_nano(
      {"tokenize", tiny(), "--json", "--messages", messages, "--chat-template", source, "--bos-token", "B"});
  INFO(ran.err);
  REQUIRE(ran.exit_code == 0);
  CHECK(Json::parse(ran.out)["text"] == "Buser: And he|");
  const auto without = run_nano({"tokenize", tiny(), "--messages", messages});
  CHECK(without.exit_code == 2);
  CHECK(contains(without.err, "chat template"));
  std::remove(messages.c_str());
  std::remove(source.c_str());
}

TEST_CASE("info --params 70e9 is 140, 70 and 35 GB, and only the last two fit in 80 GB") {
  const auto ran = run_nano({"info", "--params", "70e9", "--device-memory", "80GB", "--json"});
  REQUIRE(ran.exit_code == 0);
  const Json rows = Json::parse(ran.out)["weights"];
  CHECK(rows[0]["bytes"] == 140'000'000'000);
  CHECK(rows[1]["bytes"] == 70'000'000'000);
  CHECK(rows[2]["bytes"] == 35'000'000'000);
  CHECK(rows[0]["fits"] == false);
  CHECK(rows[2]["fits"] == true);
  CHECK(contains(run_nano({"info", "--params", "70e9"}).out, "140 GB"));
}

TEST_CASE("info --config: 7B at 8K × 8 is 32 GiB of KV, 70B does not fit an 80 GB device in fp16") {
  const auto small = run_nano({"info", "--config", nano_test::data_path("golden/llama2_7b_8k.json"),
                               "--kv-cache-dtype", "float16", "--max-num-seqs", "8"});
  REQUIRE(small.exit_code == 0);
  CHECK(contains(small.out, "34.4 GB (32.0 GiB) for 8 of them"));
  CHECK(contains(small.out, "MHA"));
  const std::string big = nano_test::data_path("golden/llama2_70b.json");
  const Json out = Json::parse(run_nano({"info", "--config", big, "--device-memory", "80GB", "--json"}).out);
  CHECK(out["config"]["heads_per_kv_head"] == 8);
  CHECK(out["weights"][0]["fits"] == false);
  CHECK(out["weights"][2]["fits"] == true);
  const auto refused =
      run_nano({"run", "x", "--load-format", "dummy", "--model", big, "--device-memory", "80GB"});
  CHECK(refused.exit_code == 2);
  CHECK(contains(refused.err, "80.0 GB (74.5 GiB) device memory"));
  CHECK(contains(refused.err, "138 GB"));
}

TEST_CASE("a config.json alone runs with random weights, and needs no tokenizer") {
  const std::string config = temporary_file(
      "{\"model_type\": \"llama\", \"vocab_size\": 300, \"hidden_size\": 32, \"intermediate_size\": 64, "
      "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"max_position_embeddings\": 64, "
      "\"rms_norm_eps\": 1e-5}");
  const auto ran = run_nano({"run", config, "hello", "--load-format", "dummy", "--device", "ref",
                             "--max-tokens", "4", "--json", "--no-stats"});
  std::remove(config.c_str());
  INFO(ran.err);
  REQUIRE(ran.exit_code == 0);
  CHECK(Json::parse(ran.out)["outputs"][0]["token_ids"].size() == 4);
}

TEST_CASE("info of a model adds up") {
  const auto ran = run_nano({"info", tiny(), "--json", "--device", "ref"});
  REQUIRE(ran.exit_code == 0);
  const Json out = Json::parse(ran.out);
  int64_t bytes = 0;
  for (const Json& row : out["tensors"]) bytes += row["bytes"].get<int64_t>();
  CHECK(bytes == out["weight_bytes"].get<int64_t>());
  CHECK(out["total_bytes"].get<int64_t>() ==
        bytes + out["kv_bytes"].get<int64_t>() + out["scratch_bytes"].get<int64_t>());
  CHECK(out["tensors"][0]["format"] == "Q8_0");
  CHECK(std::abs(out["tensors"][0]["bits_per_weight"].get<double>() - 8.5) <= 1e-9);
}

TEST_CASE("info says the KV cache that run then has") {
  auto tokens = [](const std::string& text) {
    const std::string before = "KV cache size: ";
    REQUIRE(contains(text, before));
    return std::stoll(text.substr(text.find(before) + before.size()));
  };
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, {"--max-model-len", "100"}, {"--device-memory", "100MB"}}) {
    std::vector<std::string> info = {"info", tiny(), "--device", "ref"};
    std::vector<std::string> run = {"run", tiny(), "--device", "ref", "--raw", "--max-tokens", "1", "And"};
    info.insert(info.end(), flags.begin(), flags.end());
    run.insert(run.end(), flags.begin(), flags.end());
    const auto said = tokens(run_nano(info).out), has = tokens(run_nano(run).err);
    CAPTURE(said, has);
    CHECK(std::abs(said - has) <= (flags.size() == 2 && flags[0] == "--device-memory" ? has / 100 : 0));
  }
  CHECK(contains(run_nano({"info", tiny()}).out, "`build/nano run` take with these flags, about?\nmemory "));
  const auto refused = run_nano({"info", tiny(), "--device-memory", "10MB"});
  CHECK(refused.exit_code == 0);
  CHECK(contains(refused.out, "no memory for the cache blocks"));
}

TEST_CASE("ppl counts whole chunks only, and says both definitions") {
  std::string text;
  for (int i = 0; i < 30; ++i) text += "And God said, Let there be light: and there was light. ";
  const std::string file = temporary_file(text);
  const auto ran =
      run_nano({"ppl", tiny(), "--file", file, "--ctx", "32", "--json", "--no-stats", "--device", "ref"});
  std::remove(file.c_str());
  INFO(ran.err);
  REQUIRE(ran.exit_code == 0);
  const Json out = Json::parse(ran.out);
  CHECK(out["tokens"].get<int64_t>() == out["chunks"].get<int64_t>() * 31);
  CHECK(std::abs(std::exp(out["nll"].get<double>()) - out["ppl"].get<double>()) <=
        1e-6 * out["ppl"].get<double>());
  CHECK(out["ppl"].get<double>() > 1);
  CHECK(out["ppl_second_half"].get<double>() > 1);
}

TEST_CASE("bench latency and throughput give vLLM's keys") {
  const auto latency =
      run_nano({"bench", "latency", tiny(), "--device", "ref", "--no-stats", "--json", "--input-len", "4",
                "--output-len", "3", "--batch-size", "2", "--num-iters-warmup", "1", "--num-iters", "2"});
  INFO(latency.err);
  REQUIRE(latency.exit_code == 0);
  const Json a = Json::parse(latency.out);
  CHECK(a["latencies"].size() == 2);
  CHECK(a["percentiles"].contains("99"));
  for (const char* key : {"avg_latency", "prefill_tokens_per_second", "decode_tokens_per_second",
                          "bytes_per_token", "achieved_gb_per_second"})
    CHECK(a[key].get<double>() > 0);
  // All rows and tokens have their time. Before the last answer has begun: the prompt; then a token of the first answer,
  // and for 7 others the 2 tokens of the prompt behind its full blocks. After it 15: the first answer had two by then.
  const auto forks =
      run_nano({"bench", "latency", tiny(), "--no-stats", "--json", "--input-len", "50", "--output-len", "3",
                "--batch-size", "1", "--n", "8", "--num-iters-warmup", "0", "--num-iters", "1"});
  const Json n8 = Json::parse(forks.out);
  CHECK(std::abs(65 / n8["prefill_tokens_per_second"].get<double>() +
                 15 / n8["decode_tokens_per_second"].get<double>() - n8["avg_latency"].get<double>()) < 1e-6);
  const auto uncached =
      run_nano({"bench", "latency", tiny(), "--no-kv-cache", "--no-stats", "--json", "--input-len", "4",
                "--output-len", "3", "--num-iters-warmup", "0", "--num-iters", "1"});
  CHECK(Json::parse(uncached.out)["achieved_gb_per_second"].is_null());
  const auto throughput = run_nano({"bench", "throughput", tiny(), "--device", "ref", "--no-stats", "--json",
                                    "--input-len", "4", "--output-len", "3", "--num-prompts", "5"});
  REQUIRE(throughput.exit_code == 0);
  const Json b = Json::parse(throughput.out);
  CHECK(b["num_requests"] == 5);
  CHECK(b["total_num_tokens"] == 35);
  CHECK(b["tokens_per_second"].get<double>() > 0);
}

TEST_CASE("the digest of the benchmarks is of the output ids") {
  auto digest = [](std::vector<std::string> args) {
    args.insert(args.begin(), {"bench"});
    args.insert(args.end(),
                {tiny(), "--device", "ref", "--no-stats", "--json", "--input-len", "4", "--output-len", "5"});
    return Json::parse(run_nano(args).out).at("output_ids_digest").get<std::string>();
  };
  const std::string first = digest({"throughput", "--num-prompts", "2"});
  CHECK(first.size() == 16);
  CHECK(digest({"throughput", "--num-prompts", "2", "--max-num-seqs", "1"}) == first);
  CHECK(digest({"throughput", "--num-prompts", "2", "--seed", "1"}) != first);
  CHECK(digest({"throughput", "--num-prompts", "3"}) != first);
  // Without sampler all iterations give the same ids, and yet each counts.
  const std::vector<std::string> latency = {"latency", "--batch-size", "2", "--num-iters-warmup",
                                            "0",       "--no-sampler"};
  auto iterations = [&](const char* count) {
    std::vector<std::string> args = latency;
    args.insert(args.end(), {"--num-iters", count});
    return digest(args);
  };
  CHECK(iterations("2") == iterations("2"));
  CHECK(iterations("2") != iterations("3"));
}
