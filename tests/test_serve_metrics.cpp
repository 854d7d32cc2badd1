// bench/serve_metrics: the arithmetic of bench serve against values worked out by hand.
#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>
#include "bench/serve_metrics.h"  // times_of, report_requests, StepStats
#include "catch.h"                // Catch2, version 2 or 3
#include "data.h"                 // data_path
#include "subprocess.h"           // contains

using namespace nano;
using nano_test::contains;
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

Json with_steps(Json report) {
  report.update(StepStats(10, 4, 100).report());
  return report;
}

StepResult took(double seconds) {
  StepResult result;
  result.forward_seconds = seconds;
  return result;
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
  // The second one never answered, and has no error either: it is shown apart.
  const Json one = report_requests({answered(0, {{0.5, 1}}), answered(0, {})}, {});
  CHECK(close(one["mean_ttft_ms"].get<double>(), 500));
  CHECK(close(one["mean_e2el_ms"].get<double>(), 500));
  CHECK((one["completed"] == 1 && one["failed"] == 0 && one["empty"] == 1));
  CHECK((one["total_input_tokens"] == 10 && close(one["request_throughput"].get<double>(), 2)));
  const std::string table = serve_text(with_steps(one), {});
  CHECK(contains(table, "Successful requests:                     1\n"));
  CHECK(contains(table, "Replies without a token (left out):      1\n"));
  CHECK(!contains(serve_text(with_steps(report_requests(four_requests(), {})), {}), "Replies without"));
  for (const char* key : {"mean_tpot_ms", "std_tpot_ms", "p99_tpot_ms", "mean_itl_ms", "max_gap_ms"})
    CHECK(one[key].is_null());
  const Json none = report_requests({}, {});
  for (const char* key : {"mean_ttft_ms", "p50_ttft_ms", "request_throughput", "output_throughput"})
    CHECK(none[key].is_null());
}

TEST_CASE("the report of four requests, worked out by hand") {
  ReportOptions options;
  options.percentiles = {50, 75, 99.9, 100};
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
  CHECK(r["p75_ttft_ms"].is_null());  // of three
  CHECK(close(r["p100_ttft_ms"].get<double>(), 500));
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
