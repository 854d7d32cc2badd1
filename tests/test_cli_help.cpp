// The built binary, from outside: what it says to somebody who does not know it yet. Help, letters, "did you mean",
// and a note for all that is given and has no effect.
#include <cstdlib>
#include <string>

#include <nlohmann/json.hpp>
#include <sys/wait.h>

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

const char* const kCommands[] = {"run",
                                 "chat",
                                 "info",
                                 "tokenize",
                                 "ppl",
                                 "bench latency",
                                 "bench throughput",
                                 "bench gemm",
                                 "bench serve",
                                 "bench compare",
                                 "bench ladder",
                                 "trace summary"};

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> list(1);
  for (char c : text)
    if (c == ' ')
      list.emplace_back();
    else
      list.back() += c;
  return list;
}

std::string help_of(const std::string& command) {
  std::vector<std::string> args = words(command);
  args.push_back("--help");
  const auto ran = run_nano(args);
  CHECK(ran.exit_code == 0);
  CHECK(ran.err == "");
  return ran.out;
}

}  // namespace

TEST_CASE("a group of commands has a help of its own, and `help` is a command too") {
  const std::string bench = help_of("bench");
  for (const char* command : kCommands) {
    CAPTURE(command);
    CHECK(contains(bench, command) == (std::string(command).rfind("bench ", 0) == 0));
  }
  CHECK(help_of("trace") != bench);
  CHECK(contains(help_of("trace"), "trace summary"));
  CHECK(run_nano({"bench", "-h"}).out == bench);
  CHECK(run_nano({"bench", "help"}).out == bench);
  CHECK(run_nano({"help", "bench"}).out == bench);
  CHECK(run_nano({"help", "bench", "serve"}).out == help_of("bench serve"));
  CHECK(run_nano({"help"}).out == run_nano({"--help"}).out);
}

TEST_CASE("a mistyped command, flag or model is answered with the right one") {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"rum", tiny()}, "'rum' is not a command (did you mean run?)"},
      {{"--hlep"}, "'--hlep' is not a command (did you mean --help?)"},
      {{"bench", "latncy"}, "'bench latncy' is not a command (did you mean bench latency?)"},
      {{"bench", "foo"},
       "'bench foo' is not a command (one of bench latency, bench throughput, bench gemm, bench serve, "
       "bench compare, bench ladder)"},
      {{"bench"}, "'bench' is not a command (one of bench latency, "},
      {{"trace", tiny()}, "(one of trace summary)"},
      {{"walk"}, "(one of run, chat, info, "},
      {{"run", tiny(), "x", "--temprature", "1"},
       "'--temprature' is not one of its flags (did you mean --temperature?)"},
      {{"run", tiny(), "x", "--max_token=1"},
       "'--max_token=1' is not one of its flags (did you mean --max-tokens?)"},
      {{"run", tiny(), "x", "--no-smapler"}, "(did you mean --no-sampler?)"},
      {{"run", tiny(), "x", "--frobnicate"},
       "'--frobnicate' is not one of its flags (see `build/nano run --help`)"},
      {{"run", tiny(), "x", "-v"}, "'-v' is not one of its flags (its letters: -h -m "},
      {{"bench", "gemm", "-v"}, "'-v' is not one of its flags (its letters: -h -t)"},
      {{"run", "smolm2", "x"}, "(did you mean smollm2?)"},
      {{"run", "tinny", "x"}, "(did you mean tiny?)"},
      {{"run", "/no/such/model", "x"}, "(names: tiny, tiny-draft, smollm2)"},
  };
  for (const auto& [args, part] : cases) {
    CAPTURE(part);
    const auto ran = run_nano(args);
    INFO(ran.err);
    CHECK(ran.exit_code == 2);
    CHECK(lines(ran.err) == 1);
    CHECK(contains(ran.err, part));
  }
}

TEST_CASE("llama.cpp's letters are our flags") {
  const auto want = run_nano(run_args({"And God said", "--json", "--max-model-len", "64"}));
  REQUIRE(want.exit_code == 0);
  const auto got = run_nano({"run",        "-m",           tiny(),
                             "-p",         "And God said", "-n",
                             "5",          "-t",           "1",
                             "-c",         "64",           "-s",
                             "3",          "--device",     "ref",
                             "--no-stats", "--raw",        "--temperature",
                             "0",          "--json",       "--kv-cache-memory-bytes",
                             "16MB"});
  INFO(got.err);
  REQUIRE(got.exit_code == 0);
  CHECK(Json::parse(got.out)["outputs"] == Json::parse(want.out)["outputs"]);
  CHECK(Json::parse(got.out)["prompt"] == "And God said");
  // A value stays as it is, as with long names; a prompt is given once.
  CHECK(Json::parse(run_nano(run_args({"--json", "-p", "--top_k"})).out)["prompt"] == "--top_k");
  CHECK(contains(run_nano(run_args({"-p", "a", "b"})).err, "'b' is one argument too many"));
  const std::string help = help_of("run");
  for (const char* name : {"-m, --model ", "-p, --prompt ", "-n, --max-tokens ", "-t, --threads ",
                           "-c, --max-model-len ", "-s, --seed "})
    CHECK(contains(help, name));
  const auto sampled = [](const char* seed) {
    return run_nano(run_args({"In the", "--temperature", "1", "-s", seed})).out;
  };
  CHECK(sampled("1") != sampled("2"));
}

TEST_CASE("every command's help has examples, and they run") {
  const std::string trace = temporary_file("");
  REQUIRE(run_nano(run_args({"In the", "--trace", trace})).exit_code == 0);
  for (const char* command : kCommands) {
    CAPTURE(command);
    const std::string help = help_of(command);
    size_t at = help.find("\nExamples:\n");
    REQUIRE(at != std::string::npos);
    int ran = 0;
    for (at = help.find("  build/nano ", at); at != std::string::npos;
         at = help.find("  build/nano ", at + 1), ++ran) {
      std::string example = help.substr(at + 12, help.find('\n', at) - at - 12);
      auto replace = [&](const std::string& from, const std::string& to) {
        if (const size_t found = example.find(from); found != std::string::npos)
          example.replace(found, from.size(), to);
      };
      replace("steps.jsonl", trace);
      replace("smollm2", "tiny --max-tokens 2");  // not every machine has it
      if (contains(example, "compare") || contains(example, "ladder"))
        example += " --runs 1 --input-len 4 --output-len 2 --num-prompts 2";
      if (contains(example, " chat "))
        example += " --chat-template tests/fuzz/corpus/chat_template/qwen2.5.jinja";
      CAPTURE(example);
      const std::string shell = "cd " + nano_test::data_path("..") + " && " + std::getenv("PWD") + "/" +
                                nano_test::nano_binary() + example + " </dev/null >/dev/null 2>&1";
      CHECK(std::system(shell.c_str()) == 0);
    }
    CHECK(ran > 0);
    // A tag is explained where there is one.
    CHECK(contains(help, "{block manager} and the like") == contains(help, " {scheduler}"));
  }
  std::remove(trace.c_str());
}

TEST_CASE("what is given and has no effect is said") {
  auto notes = [](std::vector<std::string> more) {
    const auto ran = run_nano(run_args(std::move(more)));
    CHECK(ran.exit_code == 0);
    return ran.err;
  };
  CHECK(notes({"And"}) == "");
  CHECK(contains(notes({"And", "--no-sampler", "--temperature", "1"}),
                 "note: --no-sampler takes the most likely token"));
  CHECK(notes({"And", "--no-sampler"}) == "");  // temperature 0
  CHECK(contains(notes({"And", "--logprobs", "5"}), "note: logprobs are shown with --json only"));
  CHECK(
      contains(notes({"And", "--prompt-logprobs", "5"}), "note: prompt_logprobs are shown with --json only"));
  CHECK(notes({"And", "--logprobs", "5", "--json"}) == "");
  for (const char* device : {"ref", "cpu"}) {
    CAPTURE(device);
    CHECK(contains(notes({"And", "--device", device, "--threads", "4000", "--stats"}), "--threads 4000: "));
    CHECK(!contains(notes({"And", "--device", device, "--threads", "1", "--stats"}), "--threads"));
  }
}

TEST_CASE("a run says how an answer ended, and that it would be the same again") {
  auto said = [](std::vector<std::string> more) {
    more.push_back("--stats");
    return run_nano(run_args(std::move(more))).err;
  };
  CHECK(contains(said({"And"}), "[cut: --max-tokens, or the context is full]\n"));
  CHECK(!contains(said({"And", "--stop-token-ids", "0,1,2,3,4,5", "--allowed-token-ids", "5"}), "[cut"));
  CHECK(contains(said({"In", "--temperature", "1", "--n", "3", "--ignore-eos"}), "[cut 3 of 3 answers: "));
  CHECK(!contains(said({"And"}), "seed"));
  CHECK(contains(said({"And", "--temperature", "1"}),
                 "seed 0: the same again next time (--seed N for another)"));
  const std::string line = nano_test::temporary_file(R"({"prompt": "And", "temperature": 1e-6})");
  CHECK(contains(said({"--prompts", line}), "seed 0: the same again"));  // it is raised, so it draws
  std::remove(line.c_str());
  CHECK(!contains(said({"And", "--temperature", "1", "--seed", "5"}), "seed"));
  CHECK(!contains(said({"And", "--temperature", "1", "--no-sampler"}), "seed"));
  const auto stopped = run_nano({"run", tiny(), "--device", "ref", "--raw", "--max-tokens", "2000",
                                 "--ignore-eos", "--kv-cache-memory-bytes", "16MB", "In the beginning"},
                                "", 50);
  CHECK(stopped.exit_code == 1);
  CHECK(contains(stopped.err, "[stopped]\n"));
  CHECK(!contains(stopped.out, "[stopped]"));
}

TEST_CASE("a file that is no file of prompts is one error, and a bad one has a few") {
  const std::string text = temporary_file("# A heading\n\nSome text.\n");
  const auto none = run_nano(run_args({"--prompts", text}));
  CHECK(none.exit_code == 2);
  CHECK(lines(none.err) == 1);
  CHECK(contains(none.err, "no line of it is JSON: "));
  CHECK(contains(none.err, text + " line 1"));
  std::remove(text.c_str());
  std::string mixed = "\"And\"\n";
  for (int i = 0; i < 100; ++i) mixed += "not JSON\n";
  const std::string file = temporary_file(mixed);
  const auto ran = run_nano(run_args({"--prompts", file}));
  CHECK(ran.exit_code == 1);
  CHECK(lines(ran.err) == 6);
  CHECK(contains(ran.err, "error: 95 more of 101 prompts failed"));
  CHECK(lines(run_nano(run_args({"--prompts", file, "--json"})).out) == 101);
  std::remove(file.c_str());
}

TEST_CASE("a config.json or a tokenizer.json is not a model, and it is said what is") {
  for (const char* name : {"config.json", "tokenizer.json"}) {
    const auto ran = run_nano({"run", nano_test::data_path("golden/checkpoints/llama-bf16/") + name, "x"});
    INFO(ran.err);
    CHECK(ran.exit_code == 2);
    CHECK(lines(ran.err) == 1);
    CHECK(contains(ran.err,
                   "a JSON file is no model (MODEL is a .gguf file or the directory of a config.json"));
  }
  const auto ran =
      run_nano({"tokenize", nano_test::data_path("golden/checkpoints/llama-bf16/config.json"), "x"});
  CHECK(contains(ran.err, "\"model\" is missing: this is no tokenizer.json"));
}

TEST_CASE("info answers what if") {
  auto info = [](std::vector<std::string> more) {
    std::vector<std::string> args = {"info", tiny(), "--json", "--device", "ref"};
    args.insert(args.end(), more.begin(), more.end());
    const auto ran = run_nano(args);
    INFO(ran.err);
    REQUIRE(ran.exit_code == 0);
    return Json::parse(ran.out);
  };
  const Json plain = info({});
  const int64_t heads = plain["config"]["heads"], kv_heads = plain["config"]["kv_heads"];
  REQUIRE(kv_heads > 1);
  const Json one = info({"--kv-heads", "1"}), all = info({"--kv-heads", std::to_string(heads)});
  CHECK(one["kv_bytes_per_token"].get<int64_t>() * kv_heads == plain["kv_bytes_per_token"].get<int64_t>());
  CHECK(all["kv_bytes_per_token"].get<int64_t>() == one["kv_bytes_per_token"].get<int64_t>() * heads);
  // K and V matrices grow with their heads, the sum and the parameters with them.
  const auto number = [](const Json& j, const char* key) { return j[key].get<int64_t>(); };
  const int64_t more =
      4 * 2 * (heads - kv_heads) * 32 * 256;  // weights: layers, K and V, heads of 32, hidden 256
  CHECK(number(all["config"], "parameters") - number(plain["config"], "parameters") == more);
  CHECK(number(all, "weight_bytes") - number(plain, "weight_bytes") == more / 32 * 34);
  CHECK(number(all, "total_bytes") - number(plain, "total_bytes") ==
        more / 32 * 34 + number(all, "kv_bytes") - number(plain, "kv_bytes") + number(all, "scratch_bytes") -
            number(plain, "scratch_bytes"));
  CHECK(std::abs(all["bits_per_weight"].get<double>() - 8.5) < 1e-9);
  const Json both = info({"--kv-heads", std::to_string(heads), "--weight-bits", "8.5"});
  CHECK(number(both, "weight_bytes") == number(all, "weight_bytes"));
  CHECK(std::abs(plain["bits_per_weight"].get<double>() - 8.5) < 1e-9);
  const Json four = info({"--weight-bits", "4.25"});
  CHECK(four["weight_bytes"].get<int64_t>() * 2 == plain["weight_bytes"].get<int64_t>());
  CHECK(std::abs(four["bits_per_weight"].get<double>() - 4.25) < 1e-3);
  // What fits: blocks of 16 tokens, so many to a sequence.
  const Json fits =
      info({"--num-gpu-blocks-override", "100", "--max-model-len", "160"})["sequences_that_fit"];
  CHECK(fits == Json::parse(R"([{"tokens": 160, "sequences": 10}, {"tokens": 40, "sequences": 33},
                                {"tokens": 10, "sequences": 100}])"));
  const std::string config = nano_test::data_path("golden/llama2_70b.json");
  const Json shape = Json::parse(run_nano({"info", "--config", config, "--weight-bits", "3", "--json"}).out);
  REQUIRE(shape["weights"].size() == 1);
  CHECK(shape["weights"][0]["bytes"].get<int64_t>() == shape["config"]["parameters"].get<int64_t>() * 3 / 8);
  CHECK(contains(run_nano({"info", tiny(), "--kv-heads", "3"}).err, "--kv-heads: must divide the "));
  CHECK(run_nano({"info", tiny(), "--weight-bits", "-1"}).exit_code == 2);
  CHECK(contains(run_nano({"info", "--params", "2T"}).out, "2000 billion"));
}
