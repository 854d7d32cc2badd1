#include "backend/observers.h"

#include <algorithm>
#include <map>
#include <utility>

namespace nano {

namespace {

// "blk.3.attn_q.weight" → "attn_q": the same for all layers.
std::string_view short_name(std::string_view tensor) {
  constexpr std::string_view kWeight = ".weight";
  if (tensor.ends_with(kWeight)) tensor.remove_suffix(kWeight.size());
  return tensor.substr(tensor.rfind('.') + 1);
}

// "linear attn_q+attn_k+attn_v"; parts of one fused tensor have one name.
std::string label(std::span<const QuantLinear* const> parts) {
  std::string text = "linear";
  std::string_view last;
  for (const QuantLinear* part : parts) {
    const std::string_view name = short_name(part->name);
    if (name == last) continue;
    text.append(last.empty() ? " " : "+").append(name);
    last = name;
  }
  return text;
}

// K and V of the positions that the rows of each sequence see, each once. With a sliding window the first row, at
// position len − rows, sees the oldest one.
int64_t kv_bytes(const KvLayer& kv, const Batch& batch, const AttentionShape& shape) {
  int64_t positions = 0;
  for (int32_t s = 0; s < batch.S; ++s) {
    const int32_t rows = batch.query_start[s + 1] - batch.query_start[s], len = batch.seq_len[s];
    const int32_t oldest = shape.sliding_window > 0 ? std::max(0, len - rows - shape.sliding_window + 1) : 0;
    positions += std::max(0, len - oldest);
  }
  return positions * 2 * shape.KVH * shape.D * dtype_bytes(kv.dtype);
}

class Profiled final : public Backend {
 public:
  Profiled(std::unique_ptr<Backend> backend, Profile& profile)
      : backend_(std::move(backend)), profile_(profile) {}

  const char* name() const override { return backend_->name(); }
  std::string describe() const override { return backend_->describe(); }
  void* allocate(int64_t bytes, Memory kind) override { return backend_->allocate(bytes, kind); }
  int64_t allocated(Memory kind) const override { return backend_->allocated(kind); }
  void upload(void* to, const void* from, int64_t bytes) override { backend_->upload(to, from, bytes); }
  const PackedLinear* pack(std::span<const QuantLinear* const> parts) override {
    const PackedLinear* packed = backend_->pack(parts);
    labels_[packed] = label(parts);
    return packed;
  }
  const PackedLinear* pack_embedding(const QuantLinear& table) override {
    return backend_->pack_embedding(table);
  }
  void reserve(const Limits& limits) override { backend_->reserve(limits); }
  int64_t scratch_bytes(const Limits& limits) const override { return backend_->scratch_bytes(limits); }
  void step(int32_t bucket, Call fn) override {
    const double begin = steady_seconds(), in_ops = in_ops_;
    backend_->step(bucket, [&] {
      backend_->parallel_for(2, [](int32_t) {});  // or the first op would be charged for the wait
      fn.fn(fn.self);
    });
    record("waking the team", 0, steady_seconds() - begin - (in_ops_ - in_ops));
  }
  float* to_host(Act x, int64_t count) override { return backend_->to_host(x, count); }

  void parallel_for(int32_t n, const std::function<void(int32_t)>& fn) override {
    timed("sampling", 0, [&] { backend_->parallel_for(n, fn); });
  }
  void embed(Act out, const int32_t* ids, int32_t T, const PackedLinear& table, float scale) override {
    timed("embed", 0, [&] { backend_->embed(out, ids, T, table, scale); });
  }
  void rmsnorm(Act out, Act x, const float* weight, float eps, int32_t M, int32_t C, bool add) override {
    timed("rmsnorm", 0, [&] { backend_->rmsnorm(out, x, weight, eps, M, C, add); });
  }
  void linear(Act out, Act x, int32_t M, const PackedLinear& w, Epilogue epilogue) override {
    timed(labels_.at(&w), w.bytes, [&] { backend_->linear(out, x, M, w, epilogue); });
  }
  void rope_table(float* cos_sin, const int32_t* positions, const float* inv_freq, int32_t T,
                  int32_t D) override {
    timed("rope_table", 0, [&] { backend_->rope_table(cos_sin, positions, inv_freq, T, D); });
  }
  void rope_kv_write(Act qkv, const float* cos_sin, const float* q_norm, const float* k_norm, float eps,
                     const KvLayer& kv, const int64_t* slot_mapping, int32_t T,
                     const AttentionShape& shape) override {
    timed("rope_kv_write", 0,
          [&] { backend_->rope_kv_write(qkv, cos_sin, q_norm, k_norm, eps, kv, slot_mapping, T, shape); });
  }
  void attention(Act out, Act qkv, const KvLayer& kv, const Batch& batch,
                 const AttentionShape& shape) override {
    timed("attention", kv_bytes(kv, batch, shape), [&] { backend_->attention(out, qkv, kv, batch, shape); });
  }
  void gather_rows(Act out, Act x, const int32_t* rows, int32_t R, int32_t C) override {
    timed("gather_rows", 0, [&] { backend_->gather_rows(out, x, rows, R, C); });
  }

 private:
  template <class Call>
  void timed(std::string_view op, int64_t bytes, Call call) {
    const double begin = steady_seconds();
    call();
    record(op, bytes, steady_seconds() - begin);
  }
  void record(std::string_view op, int64_t bytes, double seconds) {
    OpTime& time = profile_.of(op);
    ++time.calls;
    time.seconds += seconds;
    time.bytes += bytes;
    in_ops_ += seconds;
  }

  std::unique_ptr<Backend> backend_;
  Profile& profile_;
  std::map<const PackedLinear*, std::string> labels_;
  double in_ops_ = 0;  // all their seconds
};

}  // namespace

OpTime& Profile::of(std::string_view op) {
  for (OpTime& time : ops)
    if (time.op == op) return time;
  ops.emplace_back().op = op;
  return ops.back();
}

void Profile::clear() {
  ops.clear();
  since = steady_seconds();
}

std::unique_ptr<Backend> profiled(std::unique_ptr<Backend> backend, Profile& profile) {
  return std::make_unique<Profiled>(std::move(backend), profile);
}

}  // namespace nano
