// bench/roofline and bench gemm, and what they add to bench latency and throughput. No speed is expected here, only that
// the figures are there, positive, and fit together.
#include <cmath>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "bench/roofline.h"     // random_matrix, count_macs, linear_formats
#include "catch.h"              // Catch2, version 2 or 3
#include "engine_fixture.h"     // micro_options
#include "quant/activations.h"  // check_scheme
#include "subprocess.h"         // run_nano, tiny

using namespace nano_test;
using Json = nlohmann::json;

namespace {

Json json_of(std::vector<std::string> args) {
  args.push_back("--json");
  const auto ran = run_nano(args);
  INFO(ran.err);
  REQUIRE(ran.exit_code == 0);
  return Json::parse(ran.out);
}

bool near(double a, double b) { return std::fabs(a - b) <= 1e-6 * std::fabs(b); }

}  // namespace

TEST_CASE("bench gemm has every format at every M") {
  const Json out = json_of({"bench", "gemm", "--k", "256", "--n", "200", "--m", "1,3,64", "--threads", "1"});
  CHECK(out["k"] == 256);
  CHECK(out["read_gb_per_second"].get<double>() > 0);
  CHECK(!contains(out["device"].get<std::string>(), "activations"));  // each row says its own
  std::set<std::pair<std::string, int>> seen;
  std::map<std::string, double> bits;
  for (const Json& row : out["rows"]) {
    seen.emplace(row["format"].get<std::string>(), row["m"].get<int>());
    const double seconds = row["seconds"];
    CHECK(seconds > 0);
    CHECK(near(row["gb_per_second"].get<double>(), row["weight_bytes"].get<double>() / seconds / 1e9));
    CHECK(near(row["gmac_per_second"].get<double>(), row["m"].get<double>() * 256 * 200 / seconds / 1e9));
    CHECK(row["copies"] == 256);  // the most: they are small
    bits[row["format"]] = row["weight_bytes"].get<double>() * 8 / (256 * 200);
  }
  CHECK(out["rows"].size() == 15);
  CHECK(seen.size() == 15);
  CHECK(bits["f32"] >= 32);
  CHECK(bits["bf16"] < 20);
  CHECK(bits["W8A8"] < 10);
  CHECK(bits["W4A16"] < 5.5);
  CHECK(bits["W4A8"] == bits["W4A16"]);
}

TEST_CASE("bench gemm's table names the arithmetic, and says when the cache could hold the weights") {
  const auto ran = run_nano({"bench", "gemm", "--k", "64", "--n", "64", "--m", "2"});
  REQUIRE(ran.exit_code == 0);
  for (const char* part : {"W4A16: weights 4 bits, group 128", "activations float32",
                           "int8, a scale per token", "GB/s", "GMAC/s", "NOT the memory's bandwidth"}) {
    CAPTURE(part, ran.out);
    CHECK(contains(ran.out, part));
  }
}

TEST_CASE("bench gemm refuses lists and sizes that it cannot measure, in one line") {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--m", "0"}, "--m: 0 is out of range: from 1 to 65536"},
      {{"--m", "1,,2"}, "--m: '' is not"},
      {{"--m", "1,x"}, "--m: 'x' is not"},
      {{"--m", "-1"}, "--m: -1 is out of range"},
      {{"--m", "65537"}, "--m: 65537 is out of range"},
      {{"--m", ""}, "--m: '' is not"},
      {{"--k", "0"}, "--k: 0 is out of range"},
      {{"--threads", "-1"}, "--threads: must be from 0 to 4096"},
      {{"--k", "1048576", "--n", "1048576"}, "give a smaller --k, --n or --m"},
  };
  for (const auto& [flags, part] : cases) {
    std::vector<std::string> args = {"bench", "gemm"};
    args.insert(args.end(), flags.begin(), flags.end());
    const auto ran = run_nano(args);
    CAPTURE(part, ran.err);
    CHECK(ran.exit_code == 2);
    CHECK(ran.out == "");
    CHECK(lines(ran.err) == 1);
    CHECK(contains(ran.err, part));
  }
}

TEST_CASE("the matrices of the benchmarks are what their names say") {
  std::map<std::string, nano::ActivationScheme> schemes;
  for (const nano::LinearFormat& format : nano::linear_formats()) {
    CAPTURE(format.name);
    const nano::QuantLinear w = nano::random_matrix(format, 6, 320);
    nano::check_scheme(w);
    if (w.source == nano::Source::arrays) nano::check_arrays(w);
    // With float32 asked for, as bench gemm does, the name alone decides.
    schemes[format.name] = nano::scheme_of(w, false);
    std::vector<float> rows(6 * 320);
    nano::decode_rows(w, 0, 6, rows.data());
    float low = 0, high = 0;
    for (float v : rows) low = std::min(low, v), high = std::max(high, v);
    CHECK((low < -0.05f && low > -2));
    CHECK((high > 0.05f && high < 2));
  }
  CHECK(schemes["W4A16"] == nano::ActivationScheme::none);
  CHECK(schemes["W4A8"] == nano::ActivationScheme::int8_per32);
  CHECK(schemes["W8A8"] == nano::ActivationScheme::int8_per_token);
  CHECK(schemes["bf16"] == nano::ActivationScheme::none);
}

TEST_CASE("multiply-adds of a token: each matrix once, and int8 where a matrix has integer codes") {
  nano::EngineOptions options = micro_options("cpu");
  const auto dense = nano::load_engine(options);
  const nano::ModelConfig& c = dense->model->config;
  const nano::Macs macs = nano::count_macs(*dense);
  CHECK(macs.layers == int64_t(c.L) * c.C * ((c.H + 2 * c.KVH) * c.D + c.H * c.D + 3 * c.F));
  CHECK(macs.head == int64_t(c.V) * c.C);
  CHECK(!macs.int8);
  options = nano::EngineOptions();
  options.model = tiny(), options.device = "cpu", options.kv_cache_memory_bytes = 16 << 20;
  for (const char* dtype : {"int8", "float32"}) {
    options.activation_dtype = dtype;
    CHECK(nano::count_macs(*nano::load_engine(options)).int8 == (std::string(dtype) == "int8"));
  }
}

TEST_CASE(
    "bench latency says what share of the memory's bandwidth it reached, and with --profile where the time "
    "went") {
  std::vector<std::string> args = {"bench",        "latency", tiny(),         "--no-stats",
                                   "--input-len",  "4",       "--output-len", "3",
                                   "--batch-size", "2",       "--num-iters",  "2"};
  const Json plain = json_of(args);
  CHECK(plain["read_gb_per_second"].get<double>() > 0);
  CHECK(near(plain["bandwidth_share"].get<double>(),
             plain["achieved_gb_per_second"].get<double>() / plain["read_gb_per_second"].get<double>()));
  CHECK(!plain.contains("profile"));

  args.push_back("--profile");
  const Json profile = json_of(args)["profile"];
  for (const Json& op : profile) {
    CHECK(op["seconds"].get<double>() >= 0);  // "between the ops" as well: the ops take no more than the time
    if (op["op"] == "embed") CHECK(op["calls"] == 2 * 3);  // iterations · steps: what warmed up is not in it
    if (op["op"] == "attention") CHECK(op["gb_per_second"].get<double>() > 0);
  }
  CHECK(profile.back()["op"] == "between the ops");

  const auto text = run_nano(args);
  for (const char* part :
       {"that these threads read from memory", "between the ops", "linear attn_q+attn_k+attn_v"}) {
    CAPTURE(part, text.out);
    CHECK(contains(text.out, part));
  }
}

TEST_CASE("bench throughput says what share of its kernel's speed it reached") {
  std::vector<std::string> args = {
      "bench",        "throughput", tiny(),          "--no-stats", "--input-len",       "6",
      "--output-len", "3",          "--num-prompts", "4",          "--activation-dtype"};
  for (const std::string dtype : {"int8", "float32"}) {
    std::vector<std::string> one = args;
    one.insert(one.end(), {dtype, "--profile"});
    const Json out = json_of(one);
    CHECK(out["kernel"] == dtype);
    CHECK(out["kernel_gmac_per_second"].get<double>() > 0);
    CHECK(near(out["kernel_share"].get<double>(),
               out["gmac_per_second"].get<double>() / out["kernel_gmac_per_second"].get<double>()));
    // 6 tokens of the prompt and 2 of 3 of the answer go through the layers.
    nano::EngineOptions options;
    options.model = tiny();
    const nano::Macs macs = nano::count_macs(*nano::load_engine(options));
    const double expected = 4 * (8.0 * double(macs.layers) + 3.0 * double(macs.head)) / 1e9;
    CHECK(near(out["gmac_per_second"].get<double>() * out["elapsed_time"].get<double>(), expected));
    CHECK(out["profile"].size() > 5);
  }
}
