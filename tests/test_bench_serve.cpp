// bench serve: the arithmetic against values worked out by hand, the load, and the command from outside.
#include <cmath>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>
#include "app/serve_load.h"     // make_load
#include "app/serve_metrics.h"  // times_of, report_requests, StepStats
#include "base/error.h"         // Error
#include "catch.h"              // Catch2, version 2 or 3
#include "data.h"               // data_path
#include "subprocess.h"         // run_nano, tiny, contains

using namespace nano;
using nano_test::contains;
using nano_test::lines;
using nano_test::run_nano;
using nano_test::tiny;
using Json = nlohmann::ordered_json;

namespace {

bool close(double a, double b) { return std::fabs(a - b) <= 1e-6; }
bool same(const Json& expected, const std::optional<double>& value) {
  return expected.is_null() ? !value : value && close(expected.get<double>(), *value);
}

ServedRequest answered(double sent, std::vector<Chunk> chunks) {
  ServedRequest request;
  request.sent = sent;
  request.input_tokens = 10;
  for (const Chunk& chunk : chunks)
    request.token_ids.resize(request.token_ids.size() + size_t(chunk.tokens), 7);
  request.chunks = std::move(chunks);
  return request;
}

// Two that go well, one of a single token, one that failed.
std::vector<ServedRequest> four_requests() {
  std::vector<ServedRequest> requests = {answered(0, {{0.1, 1}, {0.2, 1}, {0.5, 1}}),
                                         answered(0.1, {{0.4, 1}, {0.5, 1}}), answered(0.5, {{1.0, 1}}),
                                         answered(0, {})};
  requests[3].error = "too long";
  return requests;
}

ScheduledSeq scheduled(SeqId id, int32_t first_pos, int32_t tokens, std::vector<BlockId> blocks,
                       bool samples) {
  ScheduledSeq seq;
  seq.id = id;
  seq.first_pos = first_pos;
  seq.tokens.assign(size_t(tokens), 1);
  seq.block_table = std::move(blocks);
  seq.samples = samples;
  return seq;
}

StepPlan plan_of(std::vector<ScheduledSeq> seqs, int32_t free_blocks) {
  StepPlan plan;
  for (const ScheduledSeq& seq : seqs) plan.num_tokens += seq.num_tokens();
  plan.num_running = int32_t(seqs.size());
  plan.num_free_blocks = free_blocks;
  plan.seqs = std::move(seqs);
  return plan;
}

StepResult took(double seconds) {
  StepResult result;
  result.forward_seconds = seconds;
  return result;
}

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

TEST_CASE("a first token is no gap, one token has no time per token, a chunk of three is one gap") {
  std::ifstream file(nano_test::data_path("golden/bench_requests.json"));
  const Json data = Json::parse(file);
  int checked = 0;
  for (const Json& request : data["trace"]) {
    const Json& expected = data["expected"][request["id"].get<std::string>()];
    INFO(request.dump());
    std::vector<Chunk> chunks;
    for (const Json& chunk : request["chunks"])
      chunks.push_back({chunk[0].get<double>(), chunk[1].get<int64_t>()});
    const RequestTimes times = times_of(answered(request["send"].get<double>(), chunks));
    CHECK(same(expected["ttft"], times.ttft));
    CHECK(same(expected["tpot"], times.tpot));
    CHECK(times.tokens == expected["tokens"].get<int64_t>());
    REQUIRE(times.itl.size() == expected["itl"].size());
    for (size_t i = 0; i < times.itl.size(); ++i)
      CHECK(close(times.itl[i], expected["itl"][i].get<double>()));
    ++checked;
  }
  CHECK(checked == 3);
}

TEST_CASE("what was not measured is left out, not 0") {
  const RequestTimes nothing = times_of(answered(1, {}));
  CHECK((!nothing.ttft && !nothing.tpot && !nothing.e2el && nothing.itl.empty()));
  // The second one never answered, and has no error either.
  const Json one = report_requests({answered(0, {{0.5, 1}}), answered(0, {})}, {});
  CHECK(close(one["mean_ttft_ms"].get<double>(), 500));
  CHECK(close(one["mean_e2el_ms"].get<double>(), 500));
  for (const char* key : {"mean_tpot_ms", "std_tpot_ms", "p99_tpot_ms", "mean_itl_ms", "max_gap_ms"})
    CHECK(one[key].is_null());
  const Json none = report_requests({}, {});
  for (const char* key : {"mean_ttft_ms", "p50_ttft_ms", "request_throughput", "output_throughput"})
    CHECK(none[key].is_null());
}

TEST_CASE("the report of four requests, worked out by hand") {
  ReportOptions options;
  options.percentiles = {50, 75, 99.9};
  const Json r = report_requests(four_requests(), options);
  CHECK(close(r["duration"].get<double>(), 1));
  CHECK(r["completed"] == 3);
  CHECK(r["failed"] == 1);
  CHECK(r["total_input_tokens"] == 30);
  CHECK(r["total_output_tokens"] == 6);
  CHECK(close(r["request_throughput"].get<double>(), 3));
  CHECK(r["request_goodput"].is_null());
  CHECK(close(r["output_throughput"].get<double>(), 6));
  CHECK(close(r["total_token_throughput"].get<double>(), 36));
  CHECK(close(r["mean_ttft_ms"].get<double>(), 300));  // 100, 300, 500
  CHECK(close(r["median_ttft_ms"].get<double>(), 300));
  CHECK(close(r["p75_ttft_ms"].get<double>(), 400));
  CHECK(close(r["std_ttft_ms"].get<double>(), std::sqrt(80000.0 / 3)));
  CHECK(close(r["mean_tpot_ms"].get<double>(), 150));       // 200, 100
  CHECK(close(r["mean_itl_ms"].get<double>(), 500.0 / 3));  // 100, 300, 100
  CHECK(close(r["mean_e2el_ms"].get<double>(), 1400.0 / 3));
  CHECK(close(r["max_gap_ms"].get<double>(), 300));
  CHECK(r["p99.9_ttft_ms"].is_null());
  CHECK(r["max_concurrent_requests"] == 2);  // the third is sent when the first two end
  options.metrics = {"itl"};
  CHECK(!report_requests(four_requests(), options).contains("mean_ttft_ms"));
}

TEST_CASE("p99.9 needs 1,000 values") {
  std::vector<double> values(999, 1.0);
  CHECK(!percentile_if_enough(values, 99.9));
  CHECK(percentile_if_enough(values, 99) == 1.0);
  CHECK(percentile_if_enough(values, 100) == 1.0);
  values.push_back(1.0);
  CHECK(percentile_if_enough(values, 99.9) == 1.0);
  CHECK(!percentile_if_enough(values, 99.99));
  CHECK(!percentile_if_enough({}, 50));
}

TEST_CASE("goodput counts the requests that keep to every limit") {
  ReportOptions options;
  auto goodput = [&](std::map<std::string, double> most_ms) {
    options.goodput = std::move(most_ms);
    return report_requests(four_requests(), options)["request_goodput"].get<double>();  // in one second
  };
  CHECK(close(goodput({{"ttft", 301}}), 2));
  CHECK(close(goodput({{"ttft", 301}, {"tpot", 150}}), 1));
  CHECK(close(goodput({{"tpot", 150}}), 2));  // one token has no TPOT to be too long
  CHECK(close(goodput({{"e2el", 450}}), 1));
  CHECK(close(goodput({{"e2el", 1}}), 0));
}

TEST_CASE("equal digests are equal answers in equal order") {
  auto digest_of = [](const std::vector<ServedRequest>& requests) {
    return report_requests(requests, {})["output_ids_digest"].get<std::string>();
  };
  std::vector<ServedRequest> requests = four_requests();
  const std::string digest = digest_of(requests);
  CHECK(digest.size() == 16);
  CHECK(digest_of(four_requests()) == digest);
  requests[0].token_ids[1] = 8;
  CHECK(digest_of(requests) != digest);
  requests = four_requests();
  std::swap(requests[0], requests[1]);
  CHECK(digest_of(requests) != digest);
}

TEST_CASE("steps: use of the blocks, tokens a step, pieces of prompts") {
  StepStats stats(/*num_blocks=*/10, /*block_size=*/4, /*max_num_batched_tokens=*/100);
  // Two sequences of 5 and 6 tokens that share their first block; then the second one is over, in a static batch.
  stats.add(plan_of({scheduled(1, 0, 5, {0, 1}, true), scheduled(2, 5, 1, {0, 2}, true)}, 7), took(0.01));
  StepPlan second = plan_of({scheduled(1, 5, 1, {0, 1}, true), scheduled(2, 6, 1, {0, 2}, true)}, 6);
  second.seqs[1].discard = true;
  second.seqs[1].samples = false;
  second.preempted = {9, 8};
  stats.add(second, took(0.01));
  const Json r = stats.report();
  CHECK(close(r["peak_kv_usage"].get<double>(), 0.4));
  // First 4 + 1 + 2 of 12 slots; then 4 + 2 of 12: the finished row's own tokens are of no use any more.
  CHECK(close(r["mean_kv_utilization"].get<double>(), 13.0 / 24));
  CHECK(r["max_num_running"] == 2);
  CHECK(r["num_preemptions"] == 2);
  CHECK(r["num_steps"] == 2);
  CHECK(close(r["mean_tokens_per_step"].get<double>(), 4));
  CHECK(close(r["mean_prefill_chunk"].get<double>(), 5));
  CHECK(StepStats(10, 4, 100).report()["mean_prefill_chunk"].is_null());
}

TEST_CASE(
    "advice comes when the budget cut prompts into many pieces and a step costs much whatever it computes") {
  auto advice = [](int pieces, int32_t budget, double cut_seconds) {
    StepStats stats(10, 100, budget);
    for (int i = 0; i < pieces; ++i)
      stats.add(plan_of({scheduled(1, 16 * i, 16, {0}, i == pieces - 1)}, 9), took(cut_seconds));
    stats.add(plan_of({scheduled(1, 16 * pieces, 1, {0}, true)}, 9), took(0.01));
    return stats.advice();
  };
  CHECK(
      contains(advice(4, 16, 0.02), "--max-num-batched-tokens 16 cut the prompts into pieces of 16 tokens"));
  CHECK(contains(advice(4, 16, 0.02), "50 %"));
  CHECK(advice(3, 16, 0.02) == "");  // few pieces
  CHECK(advice(4, 64, 0.02) == "");  // not the budget cut them (--long-prefill-token-threshold)
  CHECK(advice(4, 16, 0.06) == "");  // such steps are long because they compute much
  CHECK(StepStats(10, 4, 100).advice() == "");
}

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
       {"duration", "request_throughput", "request_goodput", "output_throughput", "p99_e2el_ms",
        "total_token_throughput", "mean_ttft_ms", "median_tpot_ms", "std_itl_ms", "max_gap_ms",
        "peak_kv_usage", "mean_kv_utilization", "mean_tokens_per_step"})
    CHECK(r[key].get<double>() > 0);
  CHECK(close(r["request_goodput"].get<double>(), r["request_throughput"].get<double>()));
  CHECK(r["p99.9_ttft_ms"].is_null());
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
