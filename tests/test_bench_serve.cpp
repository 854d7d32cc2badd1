// bench serve: the load, and the command from outside. Its arithmetic: test_serve_metrics.cpp.
#include <cmath>
#include <filesystem>

#include <nlohmann/json.hpp>
#include "app/bench.h"         // parse_mix
#include "bench/serve_load.h"  // make_load
#include "base/error.h"        // Error
#include "catch.h"             // Catch2, version 2 or 3
#include "subprocess.h"        // run_nano, tiny, contains

using namespace nano;
using nano_test::contains;
using nano_test::lines;
using nano_test::run_nano;
using nano_test::tiny;
using Json = nlohmann::ordered_json;

namespace {

// A small load on the small model.
nano_test::Ran serve(std::vector<std::string> more) {
  std::vector<std::string> args = {"bench",
                                   "serve",
                                   "--in-process",
                                   tiny(),
                                   "--device",
                                   "ref",
                                   "--no-stats",
                                   "--num-prompts",
                                   "6",
                                   "--random-input-len",
                                   "8",
                                   "--random-output-len",
                                   "4",
                                   "--kv-cache-memory-bytes",
                                   "16MB"};
  args.insert(args.end(), more.begin(), more.end());
  return run_nano(args);
}

Json serve_json(std::vector<std::string> more) {
  more.push_back("--json");
  const auto ran = serve(more);
  INFO(ran.err);
  REQUIRE(ran.exit_code == 0);
  return Json::parse(ran.out);
}

}  // namespace

TEST_CASE("the same seed is the same load; lengths, mixes, prefixes and arrivals are as asked") {
  LoadOptions options;
  options.num_prompts = 2000;
  options.input_len = 20;
  options.output_len = 10;
  options.range_ratio = 0.5;
  options.prefix_len = 3;
  options.request_rate = 50;
  options.seed = 5;
  const std::vector<LoadItem> load = make_load(options), again = make_load(options);
  auto prompt = [&](size_t i) { return prompt_ids(options, i, load[i].input_len, 100); };
  const std::vector<int32_t> first = prompt(0), second = prompt(1);
  int64_t shortest = 1000, longest = 0, sum = 0;
  for (size_t i = 0; i < load.size(); ++i) {
    REQUIRE((load[i].input_len == again[i].input_len && load[i].arrival == again[i].arrival));
    REQUIRE(load[i].output_len == again[i].output_len);
    REQUIRE((load[i].output_len >= 5 && load[i].output_len <= 15));
    const std::vector<int32_t> ids = prompt(i);
    REQUIRE(int64_t(ids.size()) == load[i].input_len);
    REQUIRE(std::equal(first.begin(), first.begin() + 3, ids.begin()));
    for (int32_t id : ids) REQUIRE((id >= 0 && id < 100));
    const int64_t length = load[i].input_len - 3;
    shortest = std::min(shortest, length), longest = std::max(longest, length), sum += length;
  }
  CHECK((shortest == 10 && longest == 30));
  CHECK(std::fabs(double(sum) / 2000 - 20) < 1);
  CHECK(prompt(0) == first);
  CHECK(!std::equal(first.begin() + 3, first.begin() + 13, second.begin() + 3));
  CHECK(load[0].arrival == 0);
  CHECK(std::fabs(load.back().arrival - 40) < 4);  // 2000 gaps of 1/50 on average; the deviation is 0.9
  options.seed = 6;
  CHECK(prompt(0) != first);
  options.burstiness = 100;  // nearly even
  const std::vector<LoadItem> even = make_load(options);
  for (size_t i = 1; i < even.size(); ++i)
    CHECK(std::fabs(even[i].arrival - even[i - 1].arrival - 0.02) < 0.015);

  LoadOptions mixed;
  mixed.num_prompts = 3;
  mixed.mix = parse_mix("12:2,5:1K", "mix");
  const std::vector<LoadItem> mix = make_load(mixed);
  CHECK((mix[0].input_len == 12 && mix[1].input_len == 5 && mix[2].input_len == 12));
  CHECK((mix[0].output_len == 2 && mix[1].output_len == 1024));
  CHECK(mix[2].arrival == 0);  // request rate inf
  for (const char* bad : {"", "12", "12:", ":3", "0:1", "1:0", "1:1,", "1:-1", "1:1e9"})
    CHECK_THROWS_AS(parse_mix(bad, "mix"), Error);
}

TEST_CASE("bench serve gives vLLM's keys, and the same answers for the same seed whatever the schedule") {
  const Json r = serve_json({"--random-range-ratio", "0.5", "--goodput", "ttft:1e6", "tpot:1e6"});
  CHECK(r["completed"] == 6);
  CHECK(r["failed"] == 0);
  CHECK(r["num_prompts"] == 6);
  CHECK(r["request_rate"] == "inf");
  for (const char* key :
       {"duration", "request_throughput", "request_goodput", "output_throughput", "p50_e2el_ms",
        "total_token_throughput", "mean_ttft_ms", "median_tpot_ms", "std_itl_ms", "max_gap_ms",
        "peak_kv_usage", "mean_kv_utilization", "mean_tokens_per_step"})
    CHECK(r[key].get<double>() > 0);
  CHECK(r["request_goodput"] == r["request_throughput"]);
  CHECK(r["p95_ttft_ms"].is_null());
  CHECK(r["empty"] == 0);
  CHECK(r["max_num_running"] == 6);
  CHECK(r["max_concurrent_requests"] == 6);
  CHECK(r["mean_kv_utilization"].get<double>() <= 1);

  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"--request-rate", "500", "--burstiness", "0.5"},
                                             {"--max-num-batched-tokens", "6", "--max-num-seqs", "3"},
                                             {"--scheduling", "static", "--num-warmups", "2"},
                                             {"--no-paged-kv", "--max-concurrency", "2"}}) {
    INFO(flags[0]);
    std::vector<std::string> args = {"--random-range-ratio", "0.5"};
    args.insert(args.end(), flags.begin(), flags.end());
    const Json other = serve_json(args);
    for (const char* key : {"output_ids_digest", "total_input_tokens", "total_output_tokens", "completed"})
      CHECK(other[key] == r[key]);
  }
  CHECK(serve_json({"--random-range-ratio", "0.5", "--seed", "1"})["output_ids_digest"] !=
        r["output_ids_digest"]);
}

TEST_CASE("bench serve sends no request before its time") {
  LoadOptions options;
  options.num_prompts = 6;
  options.request_rate = 10;
  options.burstiness = 100;  // nearly even: the last one comes after half a second
  const double last = make_load(options).back().arrival;
  REQUIRE(last > 0.4);
  const Json r = serve_json({"--request-rate", "10", "--burstiness", "100"});
  CHECK(r["duration"].get<double>() >= last);
}

TEST_CASE("bench serve keeps to --max-concurrency") {
  const Json r = serve_json({"--max-concurrency", "2", "--random-range-ratio", "0.5"});
  CHECK(r["max_concurrent_requests"] == 2);
  CHECK(r["max_num_running"] == 2);
  CHECK(r["max_concurrency"] == 2);
  // Of equal length, two end in the same step, and the next two begin there.
  CHECK(serve_json({"--max-concurrency", "2"})["max_concurrent_requests"] == 2);
  // Several arrive within one step while one place is free: the second of them waits.
  CHECK(serve_json(
            {"--max-concurrency", "2", "--mix", "100:1", "--request-rate", "1000"})["max_concurrent_requests"]
            .get<int64_t>() <= 2);
}

TEST_CASE("bench serve: answers have exactly their length, whatever ends a text") {
  const std::vector<std::string> flags = {"--seed", "1", "--temperature", "1.3", "--mix", "8:60"};
  CHECK(serve_json(flags)["total_output_tokens"] == 360);
  std::vector<std::string> with_eos = flags;
  with_eos.push_back("--no-ignore-eos");  // with this seed one of the six meets an EOS
  CHECK(serve_json(with_eos)["total_output_tokens"].get<int64_t>() < 360);
}

TEST_CASE("contiguous blocks hold slots that paged ones do not") {
  const Json paged = serve_json({"--max-model-len", "64"});
  const Json contiguous = serve_json({"--max-model-len", "64", "--no-paged-kv"});
  CHECK(contiguous["mean_kv_utilization"].get<double>() < 0.2);  // at most 11 of 64
  CHECK(paged["mean_kv_utilization"].get<double>() > 0.5);       // at least 8 of 16
}

TEST_CASE("bench serve prints vLLM's table, writes its file, and says what failed") {
  const std::string file = nano_test::temporary_file("");
  const auto ran = serve({"--mix", "8:4,8:1", "--result-filename", file, "--save-result"});
  CHECK(ran.exit_code == 0);
  CHECK(contains(ran.out, "============ Serving Benchmark Result ============\n"));
  CHECK(contains(ran.out, "Successful requests:                     6\n"));
  CHECK(contains(ran.out, "Total generated tokens:                  15\n"));
  CHECK(contains(ran.out, "---------------Time to First Token----------------\n"));
  CHECK(contains(ran.out, "P99.9 TPOT (ms):                         n too small\n"));
  CHECK(Json::parse(nano_test::take_file(file))["completed"] == 6);
  CHECK(serve({"--result-filename", file, "--no-save-result"}).exit_code == 0);
  CHECK(!std::filesystem::exists(file));

  const auto failing = serve({"--mix", "8:4,100:4", "--max-model-len", "64", "--json"});
  CHECK(failing.exit_code == 1);
  CHECK(contains(failing.err, "error: 3 of 6 requests failed; number 2: the prompt has 100 tokens"));
  CHECK(lines(failing.err) == 1);
  CHECK(Json::parse(failing.out)["completed"] == 3);
  CHECK(Json::parse(failing.out)["failed"] == 3);
}

TEST_CASE("bench serve refuses what it cannot do, in one line") {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--no-in-process"}, "there is no server yet to send requests to"},
      {{"--request-rate", "0"}, "--request-rate must be above 0, or inf"},
      {{"--request-rate", "1e-200", "--burstiness", "1e-200"}, "the last request would come after"},
      {{"--request-rate", "fast"}, "--request-rate: 'fast' is not a number"},
      {{"--burstiness", "-1"}, "--burstiness must be above 0"},
      {{"--max-concurrency", "-1"}, "--max-concurrency: -1"},
      {{"--dataset-name", "sharegpt"}, "--dataset-name"},
      {{"--random-range-ratio", "1"}, "--random-range-ratio must be in [0, 1)"},
      {{"--mix", "8"}, "--mix: '8' is not INPUT:OUTPUT"},
      {{"--percentile-metrics", "ttft,speed"}, "--percentile-metrics"},
      {{"--metric-percentiles", "99,101"}, "--metric-percentiles must be in (0, 100]"},
      {{"--goodput", "ttft"}, "--goodput ttft needs milliseconds above 0: ttft:100"},
      {{"--goodput", "itl:5"}, "build/nano bench serve --goodput: 'itl'"},
      {{"--goodput", "ttft:1", "tpot:0"}, "--goodput tpot needs milliseconds above 0"},
      {{"--goodput=ttft:1", "tpot:0"}, "--goodput tpot needs milliseconds above 0"},
      {{"--save-result"}, "--save-result needs --result-filename"},
      {{"--temperature", "3"}, "--temperature must be in [0, 2]"},
      {{"--result-filename", "/no/such/dir/x"}, "/no/such/dir/x: cannot be written"},
  };
  for (const auto& [flags, part] : cases) {
    INFO(flags[0]);
    const auto ran = serve(flags);
    INFO(ran.err);
    CHECK(ran.exit_code == 2);
    CHECK(ran.out == "");
    CHECK(lines(ran.err) == 1);
    CHECK(contains(ran.err, part));
  }
}
