// bench/compare (the method: order of runs, noise, verdicts, knee, ladder), and bench compare and bench ladder from
// outside.
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/compare.h"  // run_order, noise_floor, verdict, knee, rungs_of
#include "llm/options.h"    // engine_flags
#include "catch.h"          // Catch2, version 2 or 3
#include "subprocess.h"     // run_nano

using nano_test::contains;
using nano_test::lines;
using nano_test::run_nano;
using nano_test::tiny;
using Json = nlohmann::json;
using Values = std::vector<double>;

namespace {

bool close(double a, double b) { return std::fabs(a - b) <= 1e-9; }

const Values kSame = {98, 100, 102};  // a noise floor of 4 %

// Three equal runs of each setting.
nano::Measured measured(const std::string& metric, const Values& values) {
  nano::Measured m{metric, kSame, {}};
  for (const double value : values) m.settings.push_back({value, value, value});
  return m;
}

// The subcommand on the small model, with a load that takes a moment.
nano_test::Ran bench(const std::string& command, std::vector<std::string> more) {
  std::vector<std::string> args = {"bench", command,         tiny(), "--device",     "ref", "--runs",
                                   "1",     "--input-len",   "4",    "--output-len", "3",   "--threads",
                                   "1",     "--num-prompts", "2"};
  args.insert(args.end(), more.begin(), more.end());
  return run_nano(args);
}

void check_error(const nano_test::Ran& ran, int exit_code, const std::string& part) {
  INFO(ran.err);
  CHECK(ran.exit_code == exit_code);
  CHECK(ran.out == "");
  CHECK(lines(ran.err) == 1);
  CHECK(ran.err.rfind("error: ", 0) == 0);
  INFO(part);
  CHECK(contains(ran.err, part));
}

}  // namespace

TEST_CASE("runs: a warm-up, A A for the noise, then there and back") {
  using Order = std::vector<size_t>;
  CHECK(nano::run_order(2, 4) == Order{0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 0});
  CHECK(nano::run_order(3, 2) == Order{0, 0, 0, 0, 1, 2, 2, 1, 0});
  CHECK(nano::run_order(2, 1) == Order{0, 0, 0, 0, 1});  // one run of A shows no noise: at least two
  CHECK(nano::same_runs(1) == 2);
  CHECK(nano::same_runs(5) == 5);
}

TEST_CASE("the noise floor is the range of A A as a share of their median") {
  CHECK(close(nano::noise_floor(measured("tokens_per_second", {1, 2})), 0.04));
  CHECK(close(nano::noise_floor({"x", {90, 100, 130, 95, 105}, {{1}, {2}}}), 0.4));
  CHECK(nano::noise_floor({"x", {0, 0}, {{1}, {2}}}) == 0);
}

TEST_CASE("a difference is beyond the noise, and nearly all pairs of runs agree on it") {
  auto differ = [](const Values& a, const Values& b) {
    return nano::differ({"x", kSame, {a, b}}, 0, 1) && nano::differ({"x", kSame, {b, a}}, 0, 1);
  };
  CHECK(differ({100, 101, 102}, {110, 111, 112}));
  CHECK(!differ({100, 100, 100}, {103, 103, 103}));                      // 3 % is less than 4 %
  CHECK(!differ({100, 101, 130}, {110, 111, 112}));                      // 6 of 9 pairs
  CHECK(!differ({100, 101, 102, 103, 112}, {110, 111, 112, 113, 114}));  // 22 of 25, and one pair is equal
  CHECK(differ({100, 101, 102, 103, 111}, {110, 111, 112, 113, 114}));   // 23 of 25
  CHECK(!differ({100, 100, 100}, {100, 100, 100}));
  CHECK(differ({0, 0, 0}, {1, 1, 1}));
  CHECK(!differ({0, 0, 0}, {0, 0, 0}));
}

TEST_CASE("one or two runs tell nothing, however far apart they are") {
  for (const Values& slow : {Values{1}, Values{1, 1}}) {
    const Values fast(slow.size(), 100);
    const nano::Measured two{"tokens_per_second", kSame, {slow, fast}},
        three{"tokens_per_second", kSame, {slow, fast, fast}};
    CHECK(!nano::differ(two, 0, 1));
    CHECK(!nano::knee(three));
    CHECK(std::isnan(nano::rungs_of(three)[1].share));
    const std::string runs = slow.size() == 1 ? "one run" : "2 runs";
    const std::string said = runs + " of each setting cannot tell a difference from noise; give --runs 5";
    CHECK(nano::verdict(two, {"A", "B"}) == said);
    CHECK(nano::verdict(three, {"A", "B", "C"}) == said);
    nlohmann::ordered_json json;
    CHECK(contains(nano::report(three, {"all off", "+ A", "+ B"}, true, json), said));
    CHECK(!contains(nano::report(three, {"all off", "+ A", "+ B"}, true, json), "no difference seen"));
  }
}

TEST_CASE("verdicts: the better one first, in which sense, or no difference") {
  auto verdict = [](const std::string& metric, const Values& values) {
    return nano::verdict(measured(metric, values), {"A", "B"});
  };
  CHECK(verdict("tokens_per_second", {180, 100}) == "A is 1.80x B (more is better)");
  CHECK(verdict("tokens_per_second", {100, 180}) == "B is 1.80x A (more is better)");
  CHECK(verdict("avg_latency", {180, 100}) == "B is 1/1.80 of A (less is better)");
  CHECK(verdict("p99_itl_ms", {100, 250}) == "A is 1/2.50 of B (less is better)");
  CHECK(verdict("total_num_tokens", {100, 250}) ==
        "B is 2.50x A (neither more nor less is known to be better)");
  CHECK(nano::verdict({"avg_latency", kSame, {{100, 101, 130}, {110, 111, 112}}}, {"A", "B"}) ==
        "undecided: the medians are 9.9 % apart, but single runs do not agree on which is more; more --runs "
        "may "
        "tell");
  CHECK(verdict("tokens_per_second", {100, 103}) ==
        "no difference seen: the medians are 3.0 % apart, and runs of one setting 4.0 %");
  CHECK(verdict("tokens_per_second", {0, 0}) ==
        "no difference seen: the medians are 0.0 % apart, and runs of one setting 4.0 %");
}

TEST_CASE("which way a metric is better is in its name") {
  using nano::Better;
  for (const char* more : {"tokens_per_second", "output_throughput", "achieved_gb_per_second",
                           "request_goodput", "prefill_tokens_per_second"})
    CHECK(nano::better_of(more) == Better::more);
  for (const char* less : {"avg_latency", "percentiles_99", "elapsed_time", "mean_ttft_ms", "p99_tpot_ms",
                           "duration", "bytes_per_token"})
    CHECK(nano::better_of(less) == Better::less);
  CHECK(nano::better_of("num_requests") == Better::unknown);
}

TEST_CASE("the knee is the last value that loses less than 5 % or the noise") {
  const std::vector<std::string> names = {"a", "b", "c", "d"};
  const nano::Measured falling =
      measured("tokens_per_second", {100, 104, 99, 60});  // 99 loses 4.8 % against 104
  CHECK(nano::knee(falling) == 2);
  CHECK(nano::verdict(falling, names) == "knee at c: the last one within 5.0 % of the best, b");
  CHECK(nano::knee(measured("tokens_per_second", {100, 104, 98, 60})) == 1);
  CHECK(nano::knee(measured("avg_latency", {1, 0.97, 1.01, 2})) == 2);
  nano::Measured noisy = falling;
  noisy.same = {80, 100, 130};  // 50 %: 60 loses 42 %
  CHECK(nano::knee(noisy) == 3);
  CHECK(nano::verdict(noisy, names) ==
        "no knee: the last one is still within 50.0 % of the best, b; walk on, or the other way");
  CHECK(!nano::knee(measured("num_requests", {1, 2, 3})));
  CHECK(contains(nano::verdict(measured("num_requests", {1, 2, 3}), {"a", "b", "c"}), "no knee: neither"));
  CHECK(nano::verdict(measured("tokens_per_second", {100, 101, 102, 100}), names) ==
        "no difference seen: the medians are 2.0 % apart, and runs of one setting 4.0 %");
  CHECK(!nano::knee(measured("tokens_per_second", {100, 101, 102, 100})));
}

TEST_CASE("shares of a ladder: factors multiply, shares add up to 1") {
  const auto rungs =
      nano::rungs_of(measured("tokens_per_second", {100, 200, 202, 1600}));  // 2 · 1.01 · 7.92 = 16
  REQUIRE(rungs.size() == 3);
  CHECK(close(rungs[0].factor, 2));
  CHECK(close(rungs[0].share, 0.25));  // log 2 / log 16
  CHECK(rungs[0].seen);
  CHECK(close(rungs[1].factor, 1.01));
  CHECK(!rungs[1].seen);
  CHECK(close(rungs[0].share + rungs[1].share + rungs[2].share, 1));
  const auto faster = nano::rungs_of(measured("avg_latency", {8, 4, 5, 2}));
  CHECK(close(faster[0].factor, 2));
  CHECK(close(faster[1].factor, 0.8));
  CHECK(close(faster[2].factor, 2.5));
  CHECK(faster[1].share < 0);
  CHECK(std::isnan(
      nano::rungs_of(measured("tokens_per_second", {100, 150, 101}))[0].share));  // nothing to share
  // A factor that is not beyond the noise is not shown beside words that deny it.
  nlohmann::ordered_json json;
  const std::string text =
      nano::report(measured("tokens_per_second", {100, 200, 202}), {"all off", "+ A", "+ B"}, true, json);
  CHECK(contains(text, "   2.00x    99 %\n"));
  CHECK(contains(text, "       202  not beyond the noise\n"));
  CHECK(!contains(text, "1.01x"));
  CHECK(close(json["settings"][2]["factor"].get<double>(), 1.01));
}

TEST_CASE("runs of one group must have the same ids") {
  const std::vector<size_t> groups = {0, 0, 1, 1, 0};
  CHECK(!nano::different_ids(groups, {"a", "a", "b", "b", "a"}));
  CHECK(nano::different_ids(groups, {"a", "a", "b", "b", "b"}) == std::pair<size_t, size_t>(0, 4));
  CHECK(nano::different_ids(groups, {"a", "a", "b", "a"}) == std::pair<size_t, size_t>(2, 3));
}

TEST_CASE("flags: names, on and off, and which are lossless") {
  CHECK(nano::flag_name("--max_num_seqs=4_000") == "max-num-seqs");
  CHECK(nano::flag_name("--no-paged-kv") == "paged-kv");
  CHECK(nano::flag_name("tiny") == "");
  CHECK(nano::flag_argument("paged-kv", "on") == "--paged-kv");
  CHECK(nano::flag_argument("paged-kv", "off") == "--no-paged-kv");
  CHECK(nano::flag_argument("block-size", "8") == "--block-size=8");
  // A flag is in one of the two lists, so a new one has to be put there.
  std::set<std::string> lossy = {
      "device",        "dtype", "load-format",    "quantization", "quantized-linear",  "activation-dtype",
      "max-model-len", "seed",  "kv-cache-dtype", "sampler",      "generation-config", "cpu-isa"};
  int lossless = 0;
  for (const nano::Flag& flag : nano::engine_flags()) {
    CAPTURE(flag.name);
    CHECK(nano::is_lossless(flag.name) == (lossy.erase(flag.name) == 0));
    lossless += nano::is_lossless(flag.name);
  }
  CHECK(lossy.empty());
  CHECK(lossless == 19);  // all of the list are flags
  for (const char* none : {"kv", "cache", ""}) CHECK(!nano::is_lossless(none));
}

TEST_CASE("medians of 0: a count that is gone, one that appears, and A A around 0") {
  auto verdict = [](const std::string& metric, const Values& values) {
    nano::Measured m = measured(metric, values);
    m.same = {0, 0};
    return nano::verdict(
        m, values.size() == 2 ? std::vector<std::string>{"A", "B"} : std::vector<std::string>{"a", "b", "c"});
  };
  CHECK(verdict("preemptions", {16, 0}) == "B has 0.00, A has 16.0 (less is better)");
  CHECK(verdict("preemptions", {0, 16}) == "A has 0.00, B has 16.0 (less is better)");
  CHECK(verdict("output_throughput", {0, 16}) == "B has 16.0, A has 0.00 (more is better)");
  CHECK(verdict("preemptions", {0, 0}) ==
        "no difference seen: the medians are 0.0 % apart, and runs of one setting 0.0 %");
  CHECK(verdict("preemptions", {0, 0, 16}) == "knee at b: the last one within 5.0 % of the best, a");
  nano::Measured around = measured("preemptions", {0, 16});
  around.same = {0, 0, 1};
  CHECK(nano::verdict(around, {"A", "B"}) ==
        "no difference seen: the medians are more than any % of 0 apart, and runs of one setting more than "
        "any % of 0");
  nlohmann::ordered_json json;
  nano::Measured ladder = measured("preemptions", {16, 8, 0});
  ladder.same = {16, 16};
  const std::string text = nano::report(ladder, {"all off", "+ A", "+ B"}, true, json);
  CHECK(contains(text, "   2.00x\n"));
  CHECK(contains(text, "  from or to 0\n"));
  CHECK(contains(text, "all on has 0.00, all off has 16.0 (less is better)"));
  CHECK(!contains(text, "inf"));
  CHECK(!contains(text, "nan"));
}

TEST_CASE("bench compare runs both settings and says what it saw") {
  const auto ran =
      bench("compare", {"--vary", "enable-chunked-prefill=on,off", "--json", "--metric",
                        "elapsed_time,tokens_per_second", "--metric", "num_requests", "--runs", "3"});
  INFO(ran.err);
  REQUIRE(ran.exit_code == 0);
  CHECK(ran.err == "");
  const Json out = Json::parse(ran.out);
  CHECK(out["output_ids"] == "the same in all runs");
  REQUIRE(out["metrics"].size() == 3);
  const Json& speed = out["metrics"][1];
  CHECK(speed["metric"] == "tokens_per_second");
  CHECK(speed["better"] == "more is better");
  CHECK(speed["same_setting_values"].size() == 3);
  REQUIRE(speed["settings"].size() == 2);
  CHECK(speed["settings"][0]["name"] == "enable-chunked-prefill=on");
  CHECK(speed["settings"][1]["name"] == "enable-chunked-prefill=off");
  CHECK(speed["settings"][1]["values"].size() == 3);
  CHECK(speed["settings"][1]["median"].get<double>() > 0);
  CHECK(out["metrics"][2]["verdict"] ==
        "no difference seen: the medians are 0.0 % apart, and runs of one setting 0.0 %");
  CHECK(!speed.contains("knee"));

  // The flag reaches the runs, and so does the load: what they are asked for is in what they count.
  const auto curve =
      bench("compare", {"--vary=num-prompts=1,2,3", "--num-prompts=9", "--metric=num_requests"});
  check_error(curve, 2, "--num-prompts is given to all runs");
  const auto latency =
      run_nano({"bench", "compare", "--vary", "batch-size=1,2,3", "--metric", "bytes_per_token", "--runs",
                "3", "--load", "latency --input-len 2 --output-len 3 --device ref", tiny()});
  INFO(latency.err);
  REQUIRE(latency.exit_code == 0);
  CHECK(contains(latency.out, "build/nano bench latency "));
  CHECK(contains(latency.out, "output ids: not the same in all runs"));
  CHECK(contains(latency.out, "  batch-size=1                   "));
  CHECK(contains(latency.out, " ██████████████████████████████\n"));  // the longest bar is that of the most
  CHECK(contains(latency.out, "no knee: the last one is still within 5.0 % of the best, batch-size=3"));
}

TEST_CASE("bench compare varies one flag, and refuses two") {
  check_error(bench("compare", {"--vary", "block-size=8,16", "--vary", "max-num-seqs=1,2"}), 2,
              "block-size and max-num-seqs are to vary: one variable at a time");
  check_error(bench("compare", {"--vary", "threads=1,2"}), 2,
              "--threads is given to all runs, and is also to vary");
  check_error(bench("compare", {"--vary", "paged-kv=on,off", "--no-paged_kv"}), 2, "one variable at a time");
  check_error(bench("compare", {"--vary", "n=1,2", "--load", "throughput --n=2"}), 2,
              "one variable at a time");
  check_error(bench("compare", {}), 2, "--vary FLAG=a,b is missing");
  for (const char* text : {"block-size", "block-size=8", "block-size=8,", "block-size=,8,16"})
    check_error(bench("compare", {"--vary", text}), 2, "'" + std::string(text) + "' is not FLAG=a,b");
  check_error(bench("compare", {"--vary", "block-size=8,16", "--load", "serf"}), 2,
              "latency, throughput or serve");
}

TEST_CASE("a flag to vary has no dashes and no no-") {
  check_error(bench("compare", {"--vary", "no-paged-kv=on,off"}), 2, "the flag is paged-kv, with on and off");
  check_error(bench("compare", {"--vary", "no_paged_kv=on,off"}), 2, "the flag is paged-kv, with on and off");
  check_error(bench("compare", {"--vary", "--max-num-seqs=8,4"}), 2, "a flag without its dashes");
  check_error(bench("ladder", {"no-paged-kv=off:on"}), 2, "the flag is paged-kv, with on and off");
}

TEST_CASE("--metric has no empty part") {
  for (const char* metric : {",", "", "elapsed_time,"})
    check_error(bench("compare", {"--vary", "block-size=8,16", "--metric", metric}), 2,
                "--metric: '" + std::string(metric) + "' has an empty part");
}

TEST_CASE("--output-json gets the comparison, not a run") {
  const std::string file = nano_test::temporary_file("");
  const auto ran = bench("compare", {"--vary", "block-size=8,16", "--json", "--output-json", file});
  INFO(ran.err);
  CHECK(ran.exit_code == 0);
  const Json written = Json::parse(nano_test::take_file(file), nullptr, false);
  CHECK(written == Json::parse(ran.out));
  CHECK(written.contains("metrics"));
  CHECK(bench("ladder", {"block-size=8:16", "--output-json=" + file}).exit_code == 0);
  CHECK(contains(nano_test::take_file(file), "\"all off\""));

  auto refused = [](std::vector<std::string> more, const std::string& part) {
    more.insert(more.end(), {"--vary", "block-size=8,16"});
    check_error(bench("compare", more), 2, part);
  };
  for (const char* flag : {"output-json", "result-filename", "result-dir", "save-result"})
    refused({"--load", "serve --" + std::string(flag) + " x"}, "--" + std::string(flag) + " of every run");
  refused({"--result_filename", file}, "--result-filename of every run");
  check_error(bench("compare", {"--vary", "result-filename=a,b"}), 2, "--result-filename of every run");
  refused({"--output-json", "/no/such/dir/x"}, "/no/such/dir/x: cannot be written");
  refused({"--output-json", file, "--trace", file}, "is named by another argument too");
  refused({"--output-json", file, "--trace=" + file}, "is named by another argument too");
  CHECK(nano_test::take_file(file) == "");

  const std::string dir = file + ".dir", gguf = dir + "/copy.gguf", config = dir + "/config.json";
  std::filesystem::copy(nano_test::data_path("golden/checkpoints/llama-bf16"), dir);
  std::filesystem::copy(tiny(), gguf);
  auto overwrite = [](const std::string& model, const std::string& output) {
    return run_nano({"bench", "compare", model, "--vary", "block-size=8,16", "--output-json", output});
  };
  check_error(overwrite(gguf, gguf), 2, "is named by another argument too");
  check_error(overwrite("--model=" + gguf, gguf), 2, "is named by another argument too");
  check_error(overwrite(dir, config), 2, "is a file of the model");
  std::filesystem::remove_all(dir);
}

TEST_CASE("bench compare stops where the output ids differ") {
  check_error(bench("compare", {"--vary", "seed=1,2", "--same-ids"}), 1,
              "run 5 (seed=2) gave other output ids than run 1 (seed=1)");
  const auto lossy = bench("compare", {"--vary", "seed=1,2"});
  CHECK(lossy.exit_code == 0);
  CHECK(contains(lossy.out, "output ids: not the same in all runs"));
  check_error(bench("ladder", {"block-size=8:16", "seed=1:2", "--same-ids"}), 1,
              "run 6 (+ seed=2) gave other");
}

TEST_CASE("bench compare passes on what a run complains of") {
  check_error(bench("compare", {"--vary", "block-sise=8,16"}), 2, "'--block-sise=8' is not one of its flags");
  // Every setting is looked at before the first run: what a flag takes, and what fits the model.
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& [vary, part] : std::vector<std::pair<std::string, std::string>>{
           {"scheduling=static,foo",
            "error: scheduling=foo: build/nano bench throughput --scheduling: 'foo'"},
           {"block-size=16,0", "error: block-size=0: --block-size: 0 is out of range"},
           {"max-model-len=256,99999", "error: max-model-len=99999: "},
           {"output-len=3,500000", "error: output-len=500000: "}}) {
    auto args =
        std::vector<std::string>{"bench", "compare", tiny(), "--vary", vary, "--num-prompts", "100000"};
    check_error(run_nano(args), 2, part);
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));  // a run takes minutes
  check_error(bench("ladder", {"n=1:3", "scheduling=static:foo"}), 2, "error: + scheduling=foo: ");
  check_error(bench("compare", {"--vary", "block-size=8,16", "--metric", "speed"}), 2,
              "'speed' is no number in the results (there are: elapsed_time, gmac_per_second,");
  const std::string out = nano_test::temporary_file("");  // no run can write its results
  const std::string command =
      "bash -c 'ulimit -f 0; " + nano_test::nano_binary() + " bench compare " + tiny() +
      " --vary block-size=8,16 --num-prompts 1 --device ref 2>&1 | cat' | cat > " + out;
  CHECK(std::system(command.c_str()) == 0);
  CHECK(nano_test::take_file(out) ==
        "error: run 1 (block-size=8): crashed, File size limit exceeded: it said nothing\n");
}

TEST_CASE("a run that fails after its start ends bench compare with its exit code") {
  check_error(run_nano({"bench", "compare", tiny(), "--vary", "block-size=8,16", "--runs", "1", "--load",
                        "serve --num-prompts 1 --random-input-len 999999 --device ref"}),
              1, "run 1 (block-size=8): 1 of 1 requests failed");
  // A signal to the run alone. bash has Ctrl-C ignored in the background: env heals that.
  auto killed_by = [](const std::string& signal) {
    const std::string out = nano_test::temporary_file("");
    const std::string command =
        "bash -c 'env --default-signal=INT " + nano_test::nano_binary() + " bench compare " + tiny() +
        " --vary block-size=8,16 --num-prompts 2000 --device ref >" + out + " 2>&1 & " +
        "run() { cat /proc/$!/task/$!/children; }; " +
        "for i in {1..500}; do [ \"$(run)\" ] && break; sleep 0.01; done; " +  // until there is one
        "sleep 0.2; kill -" + signal + " $(run); wait $!; echo $? >>" + out + "'";
    CHECK(std::system(command.c_str()) == 0);
    return nano_test::take_file(out);
  };
  const std::string error = "error: run 1 (block-size=8): ";
  CHECK(killed_by("KILL") == error + "crashed, Killed: it said nothing\n1\n");
  CHECK(killed_by("INT") == error + "interrupted\n130\n");
  CHECK(killed_by("TERM") == error + "interrupted\n143\n");
}

TEST_CASE("bench ladder adds one lever at a time") {
  const auto ran = bench("ladder", {"scheduling=static:continuous", "enable_chunked_prefill=off:on", "n=1:3",
                                    "--metric", "total_num_output_tokens", "--json", "--runs", "3"});
  INFO(ran.err);
  REQUIRE(ran.exit_code == 0);
  const Json out = Json::parse(ran.out), m = out["metrics"][0];
  CHECK(out["output_ids"] == "not the same in all runs (nor need they be)");
  REQUIRE(m["settings"].size() == 4);
  CHECK(m["settings"][0]["name"] == "all off");
  CHECK(m["settings"][1]["name"] == "+ scheduling=continuous");
  CHECK(m["settings"][2]["name"] == "+ enable-chunked-prefill=on");
  CHECK(m["settings"][3]["name"] == "+ n=3");
  CHECK(m["settings"][3]["median"] == 18);  // 2 prompts, 3 answers, 3 tokens
  CHECK(m["settings"][2]["factor"] == 1);
  CHECK(m["settings"][3]["factor"] == 3);
  CHECK(close(m["settings"][3]["share"].get<double>(), 1));
  CHECK(contains(m["verdict"].get<std::string>(), "all on is 3.00x all off"));

  const auto text = bench("ladder", {"n=1:3", "--metric", "total_num_output_tokens", "--runs", "3"});
  CHECK(contains(text.out, "   3.00x   100 %\n"));
  CHECK(contains(text.out, "\nThe order matters: "));
  check_error(bench("ladder", {"n=1:2", "n=1:3"}), 2, "n is two levers");
  for (const std::string text : {"n=1", "n=1:2:3", "n=:1", "n=1:", "my-model=v2"})
    check_error(bench("ladder", {text}), 2,
                "'" + text + "' is not FLAG=off:on, a flag and two values; as MODEL write ./" + text);
  check_error(bench("ladder", {}), 2, "no lever");
  check_error(bench("ladder", {"threads=1:2"}), 2, "one variable at a time");
}
