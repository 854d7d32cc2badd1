#include "bench/gemm.h"

#include <cstdio>

#include <fmt/format.h>

#include "app/bench.h"        // watch
#include "base/error.h"       // Error
#include "llm/output_json.h"  // json_text

namespace nano {

namespace {

std::vector<int32_t> parse_rows(const std::string& text, const std::string& where) {
  constexpr int32_t kMostRows = 65536;
  std::vector<int32_t> rows = parse_id_list(text, where);
  for (int32_t m : rows)
    if (m < 1 || m > kMostRows)
      throw Error(fmt::format("{} is out of range: from 1 to {}", m, kMostRows), where);
  return rows;
}

}  // namespace

int bench_gemm_command(const Args& args) {
  GemmOptions o;
  bool json = false;
  o.engine.device = "cpu";
  o.engine.activation_dtype = "float32";  // each format says its own
  ArgParser parser(
      "bench gemm",
      "The cpu backend's linear alone, on random weights: bytes, bandwidth and arithmetic apart.");
  parser.add("k", o.k, "inputs of the matrix", 1, 1 << 20);
  parser.add("n", o.n, "outputs of the matrix", 1, 1 << 20);
  parser.option("m", "LIST", fmt::format("rows of x [{}]", fmt::join(o.m, ",")),
                [&](const std::string& text) { o.m = parse_rows(text, parser.where("m")); });
  parser.add("threads", o.engine.threads, "0 = cores within affinity and quota");
  parser.add("json", json, "the results as JSON on stdout");
  if (!parser.parse(args)) return 0;

  Interrupt interrupt;
  nlohmann::ordered_json result;
  {
    ProgressBar bar("gemm");
    result = measure_gemm(o, watch(bar, interrupt));
  }
  fmt::print("{}", json ? json_text(result) + "\n" : gemm_text(o, result));
  return 0;
}

}  // namespace nano
