// The backend: everything that touches numbers. It owns device memory, packed weights, scratch and threads, and
// keeps nothing that depends on a request. The model (model/transformer.cpp) is a list of these calls.
//
// Shapes: T tokens of the step, S sequences, M rows, C hidden, H heads, KVH kv heads, D head dim, F ffn, V vocab,
// B block size. Activations are row-major in the backend's activation type: float32 on ref and cpu.
//
// Arithmetic contract (what makes a result independent of the batch, the block size and the threads):
//  (a) linear: one accumulator chain over K for each (row, output), the same for every M and thread count.
//  (b) attention reads K and V from the cache only, in spans of 256 positions aligned to position 0. In a span:
//      dot over D in a fixed tree, the row's own maximum, Σexp in 16 partial sums by t mod 16, P·V ascending in
//      t. Spans merge in ascending order. Masked positions are skipped (stale KV may be NaN).
//  (c) no reassociation, fused multiply-add only where it is written.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/call.h"     // Call
#include "base/dtype.h"    // DType
#include "quant/linear.h"  // QuantLinear

namespace nano {

constexpr int32_t kSpan = 256;         // positions of one attention span
constexpr int32_t kMaxLogitRows = 64;  // the LM head runs in slices of at most this many rows

// A matrix of activations in the backend's memory. Shape and name are for who looks on (a debugger, an observer): ops
// are told what they need.
struct Act {
  void* data = nullptr;
  int64_t rows = 0, cols = 0;
  const char* name = "";
  float* f32() const { return static_cast<float*>(data); }
};

// One or more matrices that read the same input (q, k, v; gate, up), ready for computing. Each backend derives
// its own; only it knows the layout.
struct PackedLinear {
  int64_t N = 0, K = 0;  // N: outputs of all parts together
  int64_t bytes = 0;     // memory it takes (on ref: of the mapped file)
};

enum class Epilogue : uint8_t {
  store,     // out  = x·Wᵀ + bias
  add,       // out += x·Wᵀ + bias
  silu_mul,  // parts {gate, up}: out [M, N/2] = silu(x·gateᵀ) · (x·upᵀ)
  gelu_mul,  // the same with GELU (tanh form)
};

// The step's integers, in backend memory; filled by the runner before step(). On a device that replays graphs T,
// S and R are the bucket's sizes: padding rows have slot -1 and padding sequences have seq_len 0.
struct Batch {
  int32_t T = 0, S = 0, R = 0;
  int32_t* token_ids = nullptr;     // [T]
  int32_t* positions = nullptr;     // [T]
  int64_t* slot_mapping = nullptr;  // [T]  block · B + offset: where K and V of this token go
  int32_t* query_start = nullptr;   // [S+1]  rows of sequence s: query_start[s] .. query_start[s+1]-1
  int32_t* seq_len = nullptr;       // [S]  positions in the cache, this step's included
  int32_t* block_table = nullptr;   // [S, max_blocks]
  int32_t max_blocks = 0;
  int32_t* logit_rows = nullptr;  // [R]  rows whose logits are wanted
};

// One layer's cache: K and V as [block][B][KVH][D] each.
struct KvLayer {
  void* k = nullptr;
  void* v = nullptr;
  DType dtype = DType::f32;  // f32, f16, bf16 (fp8 later, with the scales)
  float k_scale = 1, v_scale = 1;
  int32_t B = 0;
};

struct AttentionShape {
  int32_t H = 0, KVH = 0, D = 0;
  float scale = 0;
  int32_t sliding_window = 0;  // a query at p sees positions > p − window; 0 = all
};

// What reserve() makes room for, once. After it a step allocates nothing (but on ref, which values plain loops more).
struct Limits {
  int32_t max_tokens = 0;  // T of one step
  int32_t max_model_len = 0;
  int32_t H = 0, KVH = 0, D = 0;
  int64_t max_K = 0, max_N = 0;  // largest input and output width of any linear
};

// --activation-dtype: what a quantised linear multiplies with, where the checkpoint does not say.
enum class ActivationDtype : uint8_t { float32, int8 };
enum class Memory : uint8_t { weights, kv_cache, scratch };

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;      // "ref", "cpu"
  virtual std::string describe() const = 0;  // "cpu: 2 threads, AVX-512 VNNI, int8 activations"

  // Set-up. Memory is zeroed and lives as long as the backend.
  virtual void* allocate(int64_t bytes, Memory kind) = 0;
  virtual int64_t allocated(Memory kind) const = 0;  // bytes so far; weights include packed ones
  virtual void upload(void* to, const void* from, int64_t bytes) = 0;
  virtual const PackedLinear* pack(std::span<const QuantLinear* const> parts) = 0;
  virtual const PackedLinear* pack_embedding(const QuantLinear& table) = 0;  // for embed() only
  virtual void reserve(const Limits& limits) = 0;
  // Scratch bytes that reserve() will take.
  virtual int64_t scratch_bytes(const Limits& limits) const = 0;

  // A step: cpu wakes its team, calls fn, lets it sleep. A graph device captures fn once a bucket and replays it,
  // so fn must not depend on the step's integers other than through `bucket`.
  virtual void step(int32_t bucket, Call fn) = 0;
  // fn(0) .. fn(n-1), perhaps in parallel: for work on the host such as sampling rows.
  virtual void parallel_for(int32_t n, const std::function<void(int32_t)>& fn) = 0;
  virtual float* to_host(Act x, int64_t count) = 0;  // readable and writable until the next op

  // Ops.
  // out [T, C] = table[ids] · scale
  virtual void embed(Act out, const int32_t* ids, int32_t T, const PackedLinear& table, float scale) = 0;
  // out [M, C] = x / sqrt(mean(x²) + eps) · weight;  add: out += that. out may be x when not adding.
  // Zhang & Sennrich 2019, eq. 4.
  virtual void rmsnorm(Act out, Act x, const float* weight, float eps, int32_t M, int32_t C, bool add) = 0;
  // out [M, N] (or [M, N/2]) from x [M, K], which must not overlap
  virtual void linear(Act out, Act x, int32_t M, const PackedLinear& w, Epilogue epilogue) = 0;
  // cos_sin [T, D]: cos of the D/2 angles position · inv_freq[i], then their sines. Su et al. 2021, eq. 34.
  virtual void rope_table(float* cos_sin, const int32_t* positions, const float* inv_freq, int32_t T,
                          int32_t D) = 0;
  // qkv [T, (H + 2·KVH)·D], in place: heads of q and k are normed (q_norm, k_norm [D], nullptr = not), rotated
  // (half-split pairs; cos_sin nullptr = not), then k and v are written to the cache at slot_mapping.
  virtual void rope_kv_write(Act qkv, const float* cos_sin, const float* q_norm, const float* k_norm,
                             float eps, const KvLayer& kv, const int64_t* slot_mapping, int32_t T,
                             const AttentionShape& shape) = 0;
  // out [T, H·D]: softmax(q·Kᵀ·scale)·V, causal, for the q part of qkv. One op for prefill, decode and verification.
  virtual void attention(Act out, Act qkv, const KvLayer& kv, const Batch& batch,
                         const AttentionShape& shape) = 0;
  // out [R, C] = x[rows]
  virtual void gather_rows(Act out, Act x, const int32_t* rows, int32_t R, int32_t C) = 0;
};

std::unique_ptr<Backend> make_ref_backend(ActivationDtype activations);
// threads: at most so many, 0 = what is there. exact_threads: just so many, 1 or more, though cores
// are fewer (for tests).
// isa: a level of instructions (backend/cpu/isa.h), auto = the best that is here. Error: unknown, or not here.
std::unique_ptr<Backend> make_cpu_backend(ActivationDtype activations, int32_t threads,
                                          bool exact_threads = false, const std::string& isa = "auto");
std::vector<std::string> cpu_isas();  // the levels that this machine has, the best one last

}  // namespace nano
