// bench gemm: the linear alone. One matrix in five formats and 1 … 512 rows: with one row the time is that of reading
// the weights, so GB/s stays and fewer bits are faster (storage); with many rows it is that of multiplying, so GMAC/s
// stays and only int8 activations are faster (arithmetic).
#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "app/cli.h"          // ArgParser, parse_id_list
#include "llm/output_json.h"  // json_text
#include "bench/roofline.h"     // LinearBench, linear_formats, read_gb_per_second
#include "app/terminal.h"     // ProgressBar
#include "base/error.h"       // Error

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

struct GemmOptions {
  EngineOptions engine;  // --threads
  int64_t k = 4096, n = 4096;
  std::vector<int32_t> m = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
  bool json = false;

  int32_t most_rows() const { return *std::max_element(m.begin(), m.end()); }
};

std::vector<int32_t> parse_rows(const std::string& text, const std::string& where) {
  constexpr int32_t kMost = 65536;
  std::vector<int32_t> rows = parse_id_list(text, where);
  for (int32_t m : rows)
    if (m < 1 || m > kMost) throw Error(fmt::format("{} is out of range: from 1 to {}", m, kMost), where);
  return rows;
}

void check_memory(const GemmOptions& o) {
  const double weights = 3 * 4.0 * double(o.n) * double(o.k) + double(beyond_cache_bytes());
  const double rows = 4.0 * o.most_rows() * double(o.k + o.n);
  if (weights + rows > double(physical_memory()) / 2)
    throw Error(
        fmt::format("{} × {} weights and {} rows do not fit half of the memory", o.n, o.k, o.most_rows()),
        "build/nano bench gemm", "give a smaller --k, --n or --m");
}

// One format at every M.
void measure(const GemmOptions& o, const LinearFormat& format, Json& rows, ProgressBar& bar) {
  LinearBench bench(o.engine, format, o.n, o.k, o.most_rows(), beyond_cache_bytes());
  const auto bytes = double(bench.weight_bytes()), weights = double(o.n) * double(o.k);
  for (int32_t m : o.m) {
    const double seconds = bench.seconds(m, 0.1);
    rows.push_back({{"format", format.name},
                    {"weights", format.weights_text},
                    {"activations", format.activations_text},
                    {"m", m},
                    {"weight_bytes", bench.weight_bytes()},
                    {"copies", bench.num_copies()},
                    {"seconds", seconds},
                    {"gb_per_second", bytes / seconds / 1e9},
                    {"gmac_per_second", m * weights / seconds / 1e9}});
    bar.show(int64_t(rows.size()), int64_t(linear_formats().size() * o.m.size()));
  }
}

// "cpu: 2 threads, AVX-512 VNNI": without the activations.
std::string device(const GemmOptions& o) {
  const std::string text = make_backend(o.engine)->describe();
  return text.substr(0, text.rfind(", "));
}

// What each format is, and whether the copies are more than a cache holds.
std::string legend(const GemmOptions& o, const Json& rows) {
  std::string text;
  bool beyond = true;
  for (size_t i = 0; i < rows.size(); i += o.m.size()) {
    const Json& row = rows[i];
    const int64_t bytes = row["weight_bytes"], copies = row["copies"];
    beyond = beyond && bytes * copies >= beyond_cache_bytes();
    text +=
        filled("{format:>6}: weights {weights} ({weight_bytes}, ", row) +
        fmt::format("{:.2f} bits each, {} copies in turn)", 8.0 * double(bytes) / double(o.k * o.n), copies) +
        filled(", activations {activations}\n", row);
  }
  return text +
         (beyond
              ? "All copies are larger than the last-level cache: with M = 1 the weights come from memory.\n"
              : "The copies may fit the cache: M = 1 is NOT the memory's bandwidth; give larger --k, --n.\n");
}

std::string table(const GemmOptions& o, const Json& rows) {
  const size_t M = o.m.size();
  std::string text =
      fmt::format("{:>6} {:<40} {:<40}\n{:>6}", "", "GB/s: weight bytes / time", "GMAC/s: M·N·K / time", "M");
  for (int column = 0; column < 2; ++column)
    for (const LinearFormat& format : linear_formats()) text += fmt::format(" {:>7}", format.name);
  for (size_t m = 0; m < M; ++m) {
    text += fmt::format("\n{:>6}", o.m[m]);
    for (const char* key : {"gb_per_second", "gmac_per_second"})
      for (size_t i = m; i < rows.size(); i += M)
        text += fmt::format(" {:>7.4g}", rows[i][key].get<double>());
  }
  return text + "\n";
}

}  // namespace

int bench_gemm_command(const Args& args) {
  GemmOptions o;
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
  parser.add("json", o.json, "the results as JSON on stdout");
  if (!parser.parse(args)) return 0;
  check_memory(o);

  Json result = {{"k", o.k},
                 {"n", o.n},
                 {"device", device(o)},
                 {"read_gb_per_second", read_gb_per_second(o.engine)},
                 {"rows", Json::array()}};
  Json& rows = result["rows"];
  {
    ProgressBar bar("gemm");
    for (const LinearFormat& format : linear_formats()) measure(o, format, rows, bar);
  }
  if (o.json)
    fmt::print("{}\n", json_text(result));
  else
    fmt::print(
        "{}{}{}\n{}", filled("x·Wᵀ, {k} → {n}, {device}\n", result), legend(o, rows),
        filled("These threads read {read_gb_per_second:.2f} GB/s from memory, measured now.\n", result),
        table(o, rows));
  return 0;
}

}  // namespace nano
