#include "model/weights.h"

#include <memory>
#include <utility>

#include "base/error.h"  // NANO_CHECK

namespace nano {

bool Weights::has(std::string_view name) const {
  return linears_.count(name) != 0 || vectors_.count(name) != 0;
}

const std::vector<float>& Weights::vector(std::string_view name) const {
  auto it = vectors_.find(name);
  NANO_CHECK(it != vectors_.end(), "no vector of this name: " + std::string(name));
  return it->second;
}

const QuantLinear& Weights::entry(std::string_view name) const {
  const auto& from = stored_.count(name) != 0 ? stored_ : linears_;
  auto it = from.find(name);
  NANO_CHECK(it != from.end(), "no matrix of this name: " + std::string(name));
  return it->second;
}

int64_t Weights::embedding_bytes() const {
  const QuantLinear& w = entry("embed");
  return w.data == nullptr ? w.file_bytes() : 0;
}

QuantLinear Weights::as_stored(std::string_view name) const {
  QuantLinear w = entry(name);
  if (w.data == nullptr) generate(w, name);
  NANO_CHECK(w.data != nullptr, "a matrix without bytes: " + w.name);
  return w;
}

QuantLinear Weights::linear(std::string_view name) const {
  QuantLinear w = as_stored(name);
  if (stored_.count(name) == 0) return w;
  auto bytes = std::make_shared<std::vector<uint8_t>>(size_t(w.N) * size_t(w.K) * 4);
  // Straight into the bytes of a float array: a vector's storage is aligned for any type.
  decode_rows(w, 0, w.N, reinterpret_cast<float*>(bytes->data()));
  drop_pages(w);
  QuantLinear expanded = linears_.find(name)->second;
  expanded.data = bytes->data();
  expanded.owned = std::move(bytes);
  return expanded;
}

void Weights::expand_to_float32() {
  quantization.clear();
  for (auto& [name, w] : linears_) {
    if (only_looked_up(name)) continue;
    QuantLinear expanded = describe_dense(w.name, nullptr, DType::f32, w.N, w.K);
    expanded.bias = w.bias;
    expanded.permutation = w.permutation;
    stored_.emplace(name, std::exchange(w, std::move(expanded)));
  }
}

}  // namespace nano
