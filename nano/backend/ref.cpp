// The reference backend: plain loops over float32, the oracle of every other device and the one to step through.
// No SIMD, no threads; std::exp where cpu has a polynomial of its own.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "backend/backend.h"     // Backend
#include "backend/ref_linear.h"  // RefLinear, ref_matmul, ref_dot
#include "base/error.h"          // Error, NANO_CHECK
#include "quant/activations.h"   // check_scheme

namespace nano {

namespace {

// One span's share of an attention row: its own maximum, Σexp and Σexp·V.
struct SpanState {
  float max = -INFINITY, sum = 0;
  std::vector<float> acc;  // [D]
};

float silu(float x) { return x / (1.0f + std::exp(-x)); }
float gelu_tanh(float x) {  // Hendrycks & Gimpel 2016, the tanh form
  return 0.5f * x * (1.0f + std::tanh(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

class RefBackend final : public Backend {
 public:
  explicit RefBackend(ActivationDtype activations) : activations_(activations) {}

  const char* name() const override { return "ref"; }
  std::string describe() const override {
    return std::string("ref: plain loops, 1 thread, ") +
           (activations_ == ActivationDtype::int8 ? "int8" : "float32") + " activations";
  }

  void* allocate(int64_t bytes, Memory kind) override {
    void* p = std::calloc(size_t(bytes) + 1, 1);
    if (p == nullptr) throw Error("out of memory: " + std::to_string(bytes) + " bytes", "ref backend");
    buffers_.emplace_back(p);
    allocated_[int(kind)] += bytes;
    return p;
  }
  int64_t allocated(Memory kind) const override { return allocated_[int(kind)]; }
  void upload(void* to, const void* from, int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, size_t(bytes));  // an empty vector has no address
  }

  const PackedLinear* pack(std::span<const QuantLinear* const> parts) override {
    auto linear = std::make_unique<RefLinear>();
    for (const QuantLinear* w : parts) {
      NANO_CHECK(w->K == parts[0]->K, "parts of one linear read the same input");
      if (w->source == Source::arrays) check_arrays(*w);
      check_scheme(*w);
      linear->parts.push_back(*w);
      linear->N += w->N;
      linear->bytes += w->file_bytes();
    }
    linear->K = parts[0]->K;
    allocated_[int(Memory::weights)] += linear->bytes;
    linears_.push_back(std::move(linear));
    return linears_.back().get();
  }
  const PackedLinear* pack_embedding(const QuantLinear& table) override {
    for (const auto& packed : linears_)  // the head of a tied model reads the same bytes
      if (packed->parts[0].data == table.data) return packed.get();
    auto linear = std::make_unique<RefLinear>();
    linear->parts.push_back(table);
    linear->N = table.N, linear->K = table.K;
    if (table.owned) allocated_[int(Memory::weights)] += table.file_bytes();  // else rows are in the file
    linears_.push_back(std::move(linear));
    return linears_.back().get();
  }
  int64_t scratch_bytes(const Limits& limits) const override {
    return kRows * limits.max_N * int64_t(sizeof(float));
  }
  void reserve(const Limits& limits) override {
    y_.resize(size_t(kRows * limits.max_N));
    allocated_[int(Memory::scratch)] += scratch_bytes(limits);
  }

  void step(int32_t, Call fn) override { fn.fn(fn.self); }
  void parallel_for(int32_t n, const std::function<void(int32_t)>& fn) override {
    for (int32_t i = 0; i < n; ++i) fn(i);
  }
  float* to_host(Act x, int64_t) override { return x.f32(); }

  void embed(Act out, const int32_t* ids, int32_t T, const PackedLinear& table, float scale) override {
    const QuantLinear& w = static_cast<const RefLinear&>(table).parts[0];
    for (int64_t t = 0; t < T; ++t) {
      float* row = out.f32() + t * w.K;
      decode_rows(w, ids[t], 1, row);
      for (int64_t c = 0; c < w.K; ++c) row[c] *= scale;
    }
  }

  void rmsnorm(Act out, Act x, const float* weight, float eps, int32_t M, int32_t C, bool add) override {
    for (int64_t m = 0; m < M; ++m) norm_row(out.f32() + m * C, x.f32() + m * C, weight, eps, C, add);
  }

  void linear(Act out, Act x, int32_t M, const PackedLinear& packed, Epilogue epilogue) override {
    const auto& w = static_cast<const RefLinear&>(packed);
    const bool pair = epilogue == Epilogue::silu_mul || epilogue == Epilogue::gelu_mul;
    y_.resize(std::max(y_.size(), size_t(kRows * w.N)));
    for (int32_t m = 0; m < M; m += kRows) {
      const int32_t rows = std::min(kRows, M - m);
      int64_t column = 0;
      for (const QuantLinear& part : w.parts) {
        ref_matmul(y_.data() + column, w.N, x.f32() + m * w.K, rows, part, activations_);
        column += part.N;
      }
      const int64_t width = pair ? w.N / 2 : w.N;
      for (int64_t r = 0; r < rows; ++r)
        finish_row(out.f32() + (m + r) * width, y_.data() + r * w.N, width, epilogue);
    }
  }

  void rope_table(float* cos_sin, const int32_t* positions, const float* inv_freq, int32_t T,
                  int32_t D) override {
    for (int64_t t = 0; t < T; ++t)
      for (int64_t i = 0; i < D / 2; ++i) {
        const float angle = float(positions[t]) * inv_freq[i];
        cos_sin[t * D + i] = std::cos(angle);
        cos_sin[t * D + D / 2 + i] = std::sin(angle);
      }
  }

  void rope_kv_write(Act qkv, const float* cos_sin, const float* q_norm, const float* k_norm, float eps,
                     const KvLayer& kv, const int64_t* slot_mapping, int32_t T,
                     const AttentionShape& shape) override {
    const int64_t D = shape.D, row_width = (shape.H + 2 * shape.KVH) * D;
    for (int64_t t = 0; t < T; ++t) {
      float* q = qkv.f32() + t * row_width;
      float* k = q + shape.H * D;
      const float* v = k + shape.KVH * D;
      for (int64_t h = 0; h < shape.H + shape.KVH; ++h) {
        float* head = q + h * D;  // k follows q
        const float* norm = h < shape.H ? q_norm : k_norm;
        if (norm != nullptr) norm_row(head, head, norm, eps, D, /*add=*/false);
        if (cos_sin != nullptr) rotate(head, cos_sin + t * D, D);
      }
      if (slot_mapping[t] < 0) continue;  // padding
      for (int64_t i = 0; i < shape.KVH * D; ++i) {
        const int64_t at = slot_mapping[t] * shape.KVH * D + i;
        store_f32(kv.k, kv.dtype, at, k[i]);
        store_f32(kv.v, kv.dtype, at, v[i]);
      }
    }
  }

  void attention(Act out, Act qkv, const KvLayer& kv, const Batch& batch,
                 const AttentionShape& shape) override {
    const int64_t D = shape.D, row_width = (shape.H + 2 * shape.KVH) * D;
    for (int32_t s = 0; s < batch.S; ++s) {
      const int32_t begin = batch.query_start[s], end = batch.query_start[s + 1];
      const int32_t* table = batch.block_table + int64_t(s) * batch.max_blocks;
      for (int32_t t = begin; t < end; ++t) {
        const int32_t position = batch.seq_len[s] - (end - t);
        for (int32_t h = 0; h < shape.H; ++h)
          attend(out.f32() + (int64_t(t) * shape.H + h) * D, qkv.f32() + t * row_width + h * D, position,
                 h / (shape.H / shape.KVH), table, kv, shape);
      }
    }
  }

  void gather_rows(Act out, Act x, const int32_t* rows, int32_t R, int32_t C) override {
    for (int64_t r = 0; r < R; ++r)
      std::memcpy(out.f32() + r * C, x.f32() + int64_t(rows[r]) * C, size_t(C) * sizeof(float));
  }

 private:
  static constexpr int32_t kRows = 64;  // rows of a linear at a time: y_ stays small

  // y [width], or [2 · width] = gate, up, becomes a row of out.
  static void finish_row(float* out, const float* y, int64_t width, Epilogue epilogue) {
    for (int64_t n = 0; n < width; ++n) switch (epilogue) {
        case Epilogue::store: out[n] = y[n]; break;
        case Epilogue::add: out[n] += y[n]; break;
        case Epilogue::silu_mul: out[n] = silu(y[n]) * y[width + n]; break;
        case Epilogue::gelu_mul: out[n] = gelu_tanh(y[n]) * y[width + n]; break;
      }
  }

  static void norm_row(float* out, const float* x, const float* weight, float eps, int64_t n, bool add) {
    const float inverse = 1.0f / std::sqrt(ref_dot(x, x, n) / float(n) + eps);
    for (int64_t i = 0; i < n; ++i) out[i] = (add ? out[i] : 0.0f) + x[i] * inverse * weight[i];
  }

  static void rotate(float* head, const float* cos_sin, int64_t D) {
    for (int64_t i = 0; i < D / 2; ++i) {
      const float a = head[i], b = head[i + D / 2], c = cos_sin[i], s = cos_sin[i + D / 2];
      head[i] = a * c - b * s;
      head[i + D / 2] = b * c + a * s;
    }
  }

  // One query row of one head: softmax over the visible positions, span by span.
  static void attend(float* out, const float* q, int32_t position, int32_t kv_head, const int32_t* table,
                     const KvLayer& kv, const AttentionShape& shape) {
    const int32_t first = shape.sliding_window > 0 ? std::max(0, position - shape.sliding_window + 1) : 0;
    SpanState total;
    total.acc.assign(size_t(shape.D), 0.0f);
    for (int32_t span = first / kSpan; span <= position / kSpan; ++span) {
      const int32_t lo = std::max(first, span * kSpan), hi = std::min(position + 1, (span + 1) * kSpan);
      const SpanState part = attend_span(q, lo, hi, kv_head, table, kv, shape);
      // Online softmax (Milakov & Gimelshein 2018): rescale both sides to the common maximum.
      const float max = std::max(total.max, part.max);
      const float keep = std::exp(total.max - max), take = std::exp(part.max - max);
      for (int32_t d = 0; d < shape.D; ++d)
        total.acc[size_t(d)] = total.acc[size_t(d)] * keep + part.acc[size_t(d)] * take;
      total.sum = total.sum * keep + part.sum * take;
      total.max = max;
    }
    for (int32_t d = 0; d < shape.D; ++d) out[d] = total.acc[size_t(d)] / total.sum;
  }

  static SpanState attend_span(const float* q, int32_t lo, int32_t hi, int32_t kv_head, const int32_t* table,
                               const KvLayer& kv, const AttentionShape& shape) {
    const int64_t D = shape.D;
    // Element 0 of this head's K (or V) at position t.
    auto at = [&](int32_t t) {
      return ((int64_t(table[t / kv.B]) * kv.B + t % kv.B) * shape.KVH + kv_head) * D;
    };
    SpanState span;
    span.acc.assign(size_t(D), 0.0f);
    std::vector<float> row(static_cast<size_t>(D)), score(static_cast<size_t>(hi - lo));
    for (int32_t t = lo; t < hi; ++t) {
      for (int64_t d = 0; d < D; ++d) row[size_t(d)] = load_f32(kv.k, kv.dtype, at(t) + d);
      score[size_t(t - lo)] = ref_dot(q, row.data(), D) * shape.scale;
      span.max = std::max(span.max, score[size_t(t - lo)]);
    }
    float partial[16] = {};
    for (int32_t t = lo; t < hi; ++t) {
      const float p = std::exp(score[size_t(t - lo)] - span.max);
      partial[t % 16] += p;
      for (int64_t d = 0; d < D; ++d) span.acc[size_t(d)] += p * load_f32(kv.v, kv.dtype, at(t) + d);
    }
    for (int width = 8; width > 0; width /= 2)
      for (int l = 0; l < width; ++l) partial[l] += partial[l + width];
    span.sum = partial[0];
    return span;
  }

  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  ActivationDtype activations_;
  std::vector<float> y_;  // [kRows, N]: a linear before its epilogue
  std::vector<std::unique_ptr<void, Free>> buffers_;
  std::vector<std::unique_ptr<RefLinear>> linears_;
  int64_t allocated_[3] = {};
};

}  // namespace

std::unique_ptr<Backend> make_ref_backend(ActivationDtype activations) {
  return std::make_unique<RefBackend>(activations);
}

}  // namespace nano
