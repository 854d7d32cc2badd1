// Random weights in the shape of a config (--load-format dummy): speed and memory of a 7B model without its files.
#include <array>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/rng.h"                 // random_bits
#include "checkpoint/tensor_names.h"  // model_tensors
#include "checkpoint/weights.h"       // Weights, open_dummy

namespace nano {

namespace {

// One mixing step of SplitMix64 (Steele, Lea and Flood 2014): good enough for weights that mean nothing, and
// ten times as fast as random_bits, which gives each row its start.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// The sum of four random bytes is nearly normal: mean 510, standard deviation 147.8. The table holds the weight
// for each sum, with deviation 0.02, already in the element type.
template <class T>
std::array<T, 1021> value_table(DType dtype) {
  std::array<T, 1021> table;
  for (int sum = 0; sum <= 1020; ++sum)
    store_f32(table.data(), dtype, sum, float(sum - 510) * (0.02f / 147.8f));
  return table;
}

// [N, K] random elements at `out`; row n depends on seed, matrix and n only.
template <class T>
void fill(T* out, int64_t N, int64_t K, uint64_t seed, uint32_t matrix, const std::array<T, 1021>& table) {
  for (int64_t n = 0; n < N; ++n) {
    uint64_t state = random_bits({seed, matrix}, uint64_t(n));
    for (int64_t k = 0; k < K; ++k) {
      const uint64_t bits = mix(state += 0x9e3779b97f4a7c15ull);
      out[n * K + k] = table[(bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24 & 255)];
    }
  }
}

class DummyWeights : public Weights {
 public:
  DummyWeights(const std::string& config_path, uint64_t seed) : seed_(seed) {
    format = "dummy";
    config = read_hf_config(config_path);
    for (const ModelTensor& t : model_tensors(config)) {
      if (t.K == 0) {
        vectors_[t.name].assign(size_t(t.N), 1.0f);
        continue;
      }
      QuantLinear w = describe_dense(t.name, nullptr, config.dtype, t.N, t.K);
      if (t.bias) w.bias.assign(size_t(t.N), 0.0f);
      linears_.emplace(t.name, std::move(w));
      numbers_.emplace(t.name, uint32_t(numbers_.size()));
    }
  }

  void drop_pages(const QuantLinear&) const override {}  // nothing lies in a file

 private:
  void generate(QuantLinear& w, std::string_view name) const override {
    const uint32_t number = numbers_.find(name)->second;
    auto bytes = std::make_shared<std::vector<uint8_t>>(size_t(w.file_bytes()));
    if (w.dtype == DType::f32)
      fill(reinterpret_cast<uint32_t*>(bytes->data()), w.N, w.K, seed_, number,
           value_table<uint32_t>(w.dtype));
    else
      fill(reinterpret_cast<uint16_t*>(bytes->data()), w.N, w.K, seed_, number,
           value_table<uint16_t>(w.dtype));
    w.data = bytes->data();
    w.owned = std::move(bytes);
  }

  uint64_t seed_;
  std::map<std::string, uint32_t, std::less<>> numbers_;  // of the matrices, in the table's order
};

}  // namespace

std::unique_ptr<Weights> open_dummy(const std::string& path, uint64_t seed) {
  namespace fs = std::filesystem;
  std::error_code unreadable;
  const std::string config =
      fs::is_directory(path, unreadable) ? (fs::path(path) / "config.json").string() : path;
  return std::make_unique<DummyWeights>(config, seed);
}

}  // namespace nano
