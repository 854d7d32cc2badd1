#include "bench/roofline.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>

#include <fmt/format.h>

#include "base/error.h"         // NANO_CHECK
#include "base/rng.h"           // random_bits
#include "base/team.h"          // team_size
#include "bench/stats.h"        // percentile
#include "quant/activations.h"  // scheme_of, is_int8

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

constexpr LinearFormat kFormats[] = {
    {"f32", DType::f32, 0, 0, ActivationScheme::none, "float32", "float32"},
    {"bf16", DType::bf16, 0, 0, ActivationScheme::none, "bfloat16", "float32"},
    {"W4A16", DType::f16, 4, 128, ActivationScheme::none, "4 bits, group 128", "float32"},
    {"W4A8", DType::f16, 4, 128, ActivationScheme::int8_per32, "4 bits, group 128", "int8, a scale per 32"},
    {"W8A8", DType::f32, 8, 0, ActivationScheme::int8_per_token, "int8, a scale per row",
     "int8, a scale per token"},
};

// Called until 5 calls and `seconds` are over, after one that only warms up.
double median_seconds(double seconds, const std::function<void()>& call) {
  call();
  std::vector<double> times;
  const double begin = steady_seconds();
  for (double last = begin; times.size() < 5 || last - begin < seconds;) {
    call();
    const double now = steady_seconds();
    times.push_back(now - last);
    last = now;
  }
  return percentile(times, 50);
}

uint64_t sum_of(const uint64_t* p, int64_t n) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += p[i];
  return sum;
}

}  // namespace

int64_t beyond_cache_bytes() {
  // sysconf knows it as well, but on virtual machines it says ten times too much.
  const std::string file = "/sys/devices/system/cpu/cpu0/cache/index3/size";
  std::string size;  // "32768K"
  std::ifstream(file) >> size;
  return std::max(size.empty() ? 0 : 4 * parse_human_int(size, file), int64_t(128) << 20);
}

std::span<const LinearFormat> linear_formats() { return kFormats; }

QuantLinear random_matrix(const LinearFormat& f, int64_t N, int64_t K) {
  const bool quantised = f.bits > 0;
  const int64_t group = f.group > 0 ? f.group : K, groups = quantised ? N * ((K + group - 1) / group) : 0;
  const int64_t codes = N * K * (quantised ? 1 : dtype_bytes(f.dtype));
  auto owned = std::make_shared<std::vector<uint8_t>>(size_t(codes + groups * dtype_bytes(f.dtype)));
  uint8_t* data = owned->data();
  for (int64_t i = 0; i < N * K; ++i) {
    const uint64_t bits = random_bits({}, uint64_t(i));
    if (quantised)
      data[i] = uint8_t(bits & ((1u << f.bits) - 1));
    else
      store_f32(data, f.dtype, i, float(bits & 0xffff) / 65536 - 0.5f);
  }
  for (int64_t g = 0; g < groups; ++g) store_f32(data + codes, f.dtype, g, 0.01f);

  QuantLinear w = describe_dense(f.name, data, f.dtype, N, K);
  if (quantised) {
    w.source = Source::arrays;
    w.row_bytes = K;
    w.bits = f.bits, w.group = group;
    w.scales = data + codes;
    w.code = f.bits == 8 ? Code::int8 : Code::unsigned_bits;
    if (f.bits < 8) w.offset = Offset::integer, w.zero = 1 << (f.bits - 1);
  }
  w.activations = f.activations;
  w.owned = std::move(owned);
  return w;
}

LinearBench::LinearBench(const EngineOptions& options, const LinearFormat& format, int64_t N, int64_t K,
                         int32_t max_rows, int64_t bytes)
    : backend_(make_backend(options)), x_(size_t(max_rows * K), 0.5f), out_(size_t(max_rows * N)) {
  constexpr int64_t kMost = 256;
  Limits limits;
  limits.max_tokens = max_rows, limits.max_model_len = 1, limits.H = limits.KVH = 1, limits.D = 16;
  limits.max_K = K, limits.max_N = N;
  backend_->reserve(limits);
  const QuantLinear w = random_matrix(format, N, K);
  const bool flag = choose_device(options).activations == ActivationDtype::int8;
  NANO_CHECK(scheme_of(w, flag) == format.activations, "--activation-dtype leaves the arithmetic as named");
  const QuantLinear* const parts[] = {&w};
  do copies_.push_back(backend_->pack(parts));
  while (num_copies() < kMost && num_copies() * weight_bytes() < bytes);
}

double LinearBench::seconds(int32_t M, double at_least) {
  size_t calls = 0;
  double median = 0;
  backend_->step(M, [&] {
    median = median_seconds(at_least, [&] {
      backend_->linear({out_.data()}, {x_.data()}, M, *copies_[calls++ % copies_.size()], Epilogue::store);
    });
  });
  return median;
}

double read_gb_per_second(const EngineOptions& options) {
  // A turn reads 8 MiB, about as much as a linear does: a neighbour that takes a core away spoils single turns of
  // either, and not the median.
  constexpr int64_t kSlice = int64_t(128) << 10, kTurn = 64;
  const std::unique_ptr<Backend> backend = make_backend(options);
  const int64_t slices = beyond_cache_bytes() / (kSlice * kTurn) * kTurn;
  auto* buffer = static_cast<uint8_t*>(backend->allocate(slices * kSlice, Memory::scratch));
  // Written first: pages that nobody has written are all the same page of zeros.
  std::memset(buffer, 1, size_t(slices * kSlice));
  std::vector<uint64_t> sums(size_t(slices), 0);  // kept, so that the reading is not optimised away
  int64_t first = 0;
  double seconds = 0;
  backend->step(0, [&] {
    seconds = median_seconds(0.2, [&] {
      backend->parallel_for(kTurn, [&](int32_t i) {
        const int64_t slice = first + i;
        sums[size_t(slice)] += sum_of(reinterpret_cast<const uint64_t*>(buffer + slice * kSlice), kSlice / 8);
      });
      first = (first + kTurn) % slices;
    });
  });
  const volatile uint64_t kept = sum_of(sums.data(), slices);
  (void)kept;
  return double(kTurn * kSlice) / seconds / 1e9;
}

double kernel_gmac_per_second(const EngineOptions& options, bool int8) {
  constexpr int32_t M = 64;
  const int64_t threads = choose_device(options).device == "ref" ? 1 : team_size(int32_t(options.threads));
  const int64_t K = 1024, N = threads * (int8 ? 256 : 64);  // 256 KiB a thread
  LinearBench bench(options, int8 ? kFormats[4] : kFormats[0], N, K, M, /*bytes=*/0);
  return double(M * N * K) / bench.seconds(M, 0.1) / 1e9;
}

Macs count_macs(const LoadedEngine& loaded) {
  const Weights& weights = *loaded.weights;
  const bool flag = loaded.resolved.device.activations == ActivationDtype::int8;
  const std::string head = weights.config.tied ? "embed" : "lm_head";
  Macs macs;
  int64_t by_int8 = 0;
  for (const auto& [name, w] : weights.linears()) {
    if (name == "embed" && name != head) continue;  // rows are looked up, not multiplied
    (name == head ? macs.head : macs.layers) += w.N * w.K;
    if (is_int8(scheme_of(w, flag))) by_int8 += w.N * w.K;
  }
  macs.int8 = 2 * by_int8 > macs.layers + macs.head;
  return macs;
}

Json profile_json(const Profile& profile) {
  const double wall = steady_seconds() - profile.since;
  std::vector<OpTime> ops = profile.ops;
  OpTime rest{"between the ops", 0, wall, 0};
  for (const OpTime& t : ops) rest.seconds -= t.seconds;
  ops.push_back(rest);
  Json list = Json::array();
  for (const OpTime& t : ops)
    list.push_back({{"op", t.op},
                    {"calls", t.calls},
                    {"seconds", t.seconds},
                    {"share", t.seconds / wall},
                    {"bytes", t.bytes},
                    {"gb_per_second", t.bytes > 0 ? Json(double(t.bytes) / t.seconds / 1e9) : Json()}});
  return list;
}

std::string profile_text(const Json& profile) {
  std::string text =
      fmt::format("\n{:<34} {:>9} {:>10} {:>7} {:>8}\n", "op", "calls", "seconds", "share", "GB/s");
  for (const Json& op : profile) {
    text +=
        fmt::format("{:<34} {:>9} {:>10.4f} {:>6.1f}%", op["op"].get<std::string>(),
                    op["calls"].get<int64_t>(), op["seconds"].get<double>(), 100 * op["share"].get<double>());
    if (!op["gb_per_second"].is_null()) text += fmt::format(" {:>8.2f}", op["gb_per_second"].get<double>());
    text += "\n";
  }
  return text +
         "GB/s: bytes that must be read at least (packed weights, K and V: once a call), by the op's time\n";
}

}  // namespace nano
