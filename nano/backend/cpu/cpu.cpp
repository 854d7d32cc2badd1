// The cpu backend: a thread team, an arena, and the ops. The two that take the time are in linear.cpp and
// attention.cpp; the rest is here. All of it is compiled once for each level of instructions (isa.h).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "backend/backend.h"        // Backend
#include "backend/cpu/attention.h"  // attention_cpu
#include "backend/cpu/isa.h"        // make_backend
#include "backend/cpu/linear.h"     // linear_cpu, pack_cpu
#include "backend/cpu/memory.h"     // Arena
#include "backend/cpu/simd.h"       // kSimdName, store_f16
#include "backend/cpu/tile_unit.h"  // kTileModel
#include "base/error.h"             // NANO_CHECK
#include "base/team.h"              // Team

namespace nano::NANO_ISA {

namespace {

// Zhang & Sennrich 2019, eq. 4. The sum in 16 parts and a fixed tree, which compilers turn into vectors.
void norm_row(float* out, const float* x, const float* weight, float eps, int64_t n, bool add) {
  float part[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int l = 0; l < 16; ++l) part[l] += x[i + l] * x[i + l];
  for (int l = 0; i < n; ++i, ++l) part[l] += x[i] * x[i];
  for (int width = 8; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) part[l] += part[l + width];
  const float inverse = 1.0f / std::sqrt(part[0] / float(n) + eps);
  if (add)
    for (i = 0; i < n; ++i) out[i] += x[i] * inverse * weight[i];
  else
    for (i = 0; i < n; ++i) out[i] = x[i] * inverse * weight[i];
}

// Su et al. 2021, eq. 34, for the pairs (i, i + D/2).
void rotate(float* head, const float* cos_sin, int64_t D) {
  for (int64_t i = 0; i < D / 2; ++i) {
    const float a = head[i], b = head[i + D / 2], c = cos_sin[i], s = cos_sin[i + D / 2];
    head[i] = a * c - b * s;
    head[i + D / 2] = b * c + a * s;
  }
}

void store_row(void* cache, DType dtype, int64_t at, const float* x, int64_t n) {
  int64_t i = 0;
  if (dtype == DType::f16)
    for (; i + kLanes <= n; i += kLanes) store_f16(static_cast<uint16_t*>(cache) + at + i, load(x + i));
  for (; i < n; ++i) store_f32(cache, dtype, at + i, x[i]);
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(ActivationDtype activations, int32_t threads, bool exact_threads, bool tiles)
      : activations_(activations), tiles_(tiles || kTileModel), team_(threads, exact_threads) {}

  const char* name() const override { return "cpu"; }
  std::string describe() const override {
    return "cpu: " + std::to_string(team_.size()) + (team_.size() == 1 ? " thread, " : " threads, ") +
           kSimdName + (tiles_ ? ", AMX" : "") +
           (activations_ == ActivationDtype::int8 ? ", int8" : ", float32") + " activations";
  }

  void* allocate(int64_t bytes, Memory kind) override {
    void* p = arena_.allocate(bytes);
    allocated_[int(kind)] += bytes;
    return p;
  }
  int64_t allocated(Memory kind) const override { return allocated_[int(kind)]; }
  void upload(void* to, const void* from, int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, size_t(bytes));  // an empty vector has no address
  }

  const PackedLinear* pack(std::span<const QuantLinear* const> parts) override {
    auto linear = std::make_unique<CpuLinear>();
    pack_cpu(*linear, parts, activations_, team_, arena_);
    allocated_[int(Memory::weights)] += linear->bytes;
    return linears_.emplace_back(std::move(linear)).get();
  }
  // Rows are decoded from the file when a token needs them: no bytes of our own, if there is a file.
  const PackedLinear* pack_embedding(const QuantLinear& table) override {
    auto linear = std::make_unique<CpuLinear>();
    linear->table = table;
    linear->N = table.N, linear->K = table.K;
    if (table.owned) allocated_[int(Memory::weights)] += table.file_bytes();
    return linears_.emplace_back(std::move(linear)).get();
  }

  int64_t scratch_bytes(const Limits& limits) const override {
    return linear_scratch_bytes(limits, team_.size()) + attention_scratch_bytes(limits, team_.size());
  }
  void reserve(const Limits& limits) override {
    auto* memory = static_cast<uint8_t*>(allocate(scratch_bytes(limits), Memory::scratch));
    linear_scratch_ = linear_scratch(limits, team_.size(), memory, tiles_);
    attention_scratch_ = attention_scratch(limits, memory + linear_scratch_bytes(limits, team_.size()));
  }

  void step(int32_t, Call fn) override { team_.run(fn); }
  void parallel_for(int32_t n, const std::function<void(int32_t)>& fn) override {
    each(n, [&](int64_t i) { fn(int32_t(i)); });
  }
  float* to_host(Act x, int64_t) override { return x.f32(); }

  void embed(Act out, const int32_t* ids, int32_t T, const PackedLinear& packed, float scale) override {
    const QuantLinear& table = static_cast<const CpuLinear&>(packed).table;
    each(T, [&](int64_t t) {
      float* row = out.f32() + t * table.K;
      decode_rows(table, ids[t], 1, row);
      for (int64_t c = 0; c < table.K; ++c) row[c] *= scale;
    });
  }

  void rmsnorm(Act out, Act x, const float* weight, float eps, int32_t M, int32_t C, bool add) override {
    each(M, [&](int64_t m) { norm_row(out.f32() + m * C, x.f32() + m * C, weight, eps, C, add); });
  }

  void linear(Act out, Act x, int32_t M, const PackedLinear& w, Epilogue epilogue) override {
    linear_cpu(out.f32(), x.f32(), M, static_cast<const CpuLinear&>(w), epilogue, linear_scratch_, team_);
  }

  void rope_table(float* cos_sin, const int32_t* positions, const float* inv_freq, int32_t T,
                  int32_t D) override {
    each(T, [&](int64_t t) {
      for (int64_t i = 0; i < D / 2; ++i) {
        const float angle = float(positions[t]) * inv_freq[i];
        cos_sin[t * D + i] = std::cos(angle);
        cos_sin[t * D + D / 2 + i] = std::sin(angle);
      }
    });
  }

  void rope_kv_write(Act qkv, const float* cos_sin, const float* q_norm, const float* k_norm, float eps,
                     const KvLayer& kv, const int64_t* slot_mapping, int32_t T,
                     const AttentionShape& shape) override {
    const int64_t D = shape.D, kv_width = shape.KVH * D;
    each(T, [&](int64_t t) {
      float* q = qkv.f32() + t * (shape.H * D + 2 * kv_width);
      float* k = q + shape.H * D;
      for (int64_t h = 0; h < shape.H + shape.KVH; ++h) {
        float* head = q + h * D;  // k follows q
        const float* norm = h < shape.H ? q_norm : k_norm;
        if (norm != nullptr) norm_row(head, head, norm, eps, D, /*add=*/false);
        if (cos_sin != nullptr) rotate(head, cos_sin + t * D, D);
      }
      if (slot_mapping[t] < 0) return;  // padding
      store_row(kv.k, kv.dtype, slot_mapping[t] * kv_width, k, kv_width);
      store_row(kv.v, kv.dtype, slot_mapping[t] * kv_width, k + kv_width, kv_width);
    });
  }

  void attention(Act out, Act qkv, const KvLayer& kv, const Batch& batch,
                 const AttentionShape& shape) override {
    attention_cpu(out.f32(), qkv.f32(), kv, batch, shape, attention_scratch_, team_);
  }

  void gather_rows(Act out, Act x, const int32_t* rows, int32_t R, int32_t C) override {
    each(R, [&](int64_t r) {
      std::memcpy(out.f32() + r * C, x.f32() + int64_t(rows[r]) * C, size_t(C) * sizeof(float));
    });
  }

 private:
  template <class Row>
  void each(int64_t n, Row row) {
    team_.each(n, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t i = begin; i < end; ++i) row(i);
    });
  }

  const ActivationDtype activations_;
  const bool tiles_;
  Team team_;
  Arena arena_;
  std::vector<std::unique_ptr<CpuLinear>> linears_;
  LinearScratch linear_scratch_;
  AttentionScratch attention_scratch_;
  int64_t allocated_[3] = {};
};

}  // namespace

std::unique_ptr<Backend> make_backend(ActivationDtype activations, int32_t threads, bool exact_threads,
                                      bool tiles) {
  return std::make_unique<CpuBackend>(activations, threads, exact_threads, tiles);
}

}  // namespace nano::NANO_ISA
