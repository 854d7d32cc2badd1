#include "checkpoint/weights.h"

#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/error.h"  // Error, NANO_CHECK

namespace nano {

const QuantLinear& Weights::linear(std::string_view name) const {
  auto it = linears_.find(name);
  NANO_CHECK(it != linears_.end(), "no matrix of this name: " + std::string(name));
  return it->second;
}

bool Weights::has(std::string_view name) const {
  return linears_.count(name) != 0 || vectors_.count(name) != 0;
}

std::vector<float> Weights::vector(std::string_view name) const {
  auto it = vectors_.find(name);
  NANO_CHECK(it != vectors_.end(), "no vector of this name: " + std::string(name));
  return it->second;
}

std::unique_ptr<Weights> open_weights(const std::string& path, bool dummy, uint64_t seed) {
  if (dummy) return open_dummy(path, seed);
  std::error_code unreadable;  // then it is no directory for us, and opening the file says why
  if (std::filesystem::is_directory(path, unreadable)) return open_hf(path);
  return open_gguf(path);
}

void expand_to_float32(Weights& weights) {
  weights.quantization.clear();
  for (auto& [name, w] : weights.linears_) {
    auto bytes = std::make_shared<std::vector<uint8_t>>(size_t(w.N) * size_t(w.K) * 4);
    // Straight into the bytes of a float array: a vector's storage is aligned for any type.
    decode_rows(w, 0, w.N, reinterpret_cast<float*>(bytes->data()));
    QuantLinear expanded = describe_dense(w.name, bytes->data(), DType::f32, w.N, w.K);
    expanded.bias = std::move(w.bias);
    expanded.permutation = w.permutation;
    expanded.owned = std::move(bytes);
    weights.drop_pages(w);
    w = std::move(expanded);
  }
}

}  // namespace nano
