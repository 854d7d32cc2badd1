#include "bench/gemm.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"       // Error
#include "base/format.h"      // three_digits
#include "bench/roofline.h"   // LinearBench, linear_formats, read_gb_per_second
#include "llm/output_json.h"  // filled

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

void check_memory(const GemmOptions& o) {
  const double weights = 3 * 4.0 * double(o.n) * double(o.k) + double(beyond_cache_bytes());
  const double rows = 4.0 * o.most_rows() * double(o.k + o.n);
  if (weights + rows > double(physical_memory()) / 2)
    throw Error(
        fmt::format("{} × {} weights and {} rows do not fit half of the memory", o.n, o.k, o.most_rows()),
        "build/nano bench gemm", "give a smaller --k, --n or --m");
}

// One format at every M.
void measure_format(const GemmOptions& o, const LinearFormat& format, Json& rows, const Watch& watch) {
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
    if (watch.progress) watch.progress(int64_t(rows.size()), int64_t(linear_formats().size() * o.m.size()));
    if (watch.between_steps) watch.between_steps();
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
      for (size_t i = m; i < rows.size(); i += M) text += fmt::format(" {:>7}", three_digits(rows[i][key]));
  }
  return text + "\n";
}

}  // namespace

int32_t GemmOptions::most_rows() const { return *std::max_element(m.begin(), m.end()); }

Json measure_gemm(const GemmOptions& o, const Watch& watch) {
  check_memory(o);
  Json result = {{"k", o.k},
                 {"n", o.n},
                 {"device", device(o)},
                 {"read_gb_per_second", read_gb_per_second(o.engine)},
                 {"rows", Json::array()}};
  for (const LinearFormat& format : linear_formats()) measure_format(o, format, result["rows"], watch);
  return result;
}

std::string gemm_text(const GemmOptions& o, const Json& result) {
  return filled("x·Wᵀ, {k} → {n}, {device}\n", result) + legend(o, result["rows"]) +
         filled("These threads read {read_gb_per_second} GB/s from memory, measured now.\n\n", result) +
         table(o, result["rows"]);
}

}  // namespace nano
