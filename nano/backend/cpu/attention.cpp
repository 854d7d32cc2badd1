#include "backend/cpu/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "backend/cpu/simd.h"  // F, load, fma, …
#include "base/error.h"        // NANO_CHECK

namespace nano::NANO_ISA {

namespace {

constexpr int64_t kTileQueries = 32;  // query rows times heads that share a pass over K and V
constexpr int32_t kSub = 32;  // positions of K or V that are converted to float32 at a time, in the L1 cache

int64_t padded(int64_t D) { return (D + kLanes - 1) / kLanes * kLanes; }

// Softmax of a span, or of all spans so far, for the queries of a tile: own maximum, Σexp, Σexp·V.
struct State {
  float *max, *sum, *acc;  // [queries], [queries], [queries, padded D]
  State(float* memory, const AttentionScratch& s) : max(memory), sum(max + s.queries), acc(sum + s.queries) {}
  static int64_t floats(const AttentionScratch& s) { return s.queries * (2 + s.padded_D); }
};

struct Worker {
  float *queries, *rows, *scores;  // [queries, padded D], [kSub, padded D], [queries, kSpan]
  State span, total;
  float* partials;  // [2, max_spans] states: of the range's first item and of its last
  Worker(const AttentionScratch& s, int32_t worker)
      : queries(reinterpret_cast<float*>(s.worker + worker * s.worker_bytes)),
        rows(queries + s.queries * s.padded_D),
        scores(rows + kSub * s.padded_D),
        span(scores + s.queries * kSpan, s),
        total(scores + s.queries * kSpan + State::floats(s), s),
        partials(scores + s.queries * kSpan + 2 * State::floats(s)) {}
  static int64_t floats(const AttentionScratch& s) {
    return (s.queries + kSub) * s.padded_D + s.queries * kSpan + (2 + 2 * s.max_spans) * State::floats(s);
  }
};

// One op's arguments and what follows from them.
struct Op {
  const float* qkv;
  float* out;
  const KvLayer& kv;
  const Batch& batch;
  const AttentionShape& shape;
  const AttentionScratch& scratch;
  int64_t group = shape.H / shape.KVH;  // query heads of a kv head
  int64_t D = shape.D, Dp = padded(shape.D);
  int32_t num_tiles = 0;
  int64_t num_units = 0;
};

// An item and the unit it begins with.
struct Item {
  const AttentionTile* tile;
  int64_t kv_head, first_unit;
};
Item item_of(const Op& op, int64_t unit) {
  const AttentionTile* tiles = op.scratch.tiles;
  const AttentionTile* next = std::upper_bound(
      tiles, tiles + op.num_tiles, unit, [](int64_t u, const AttentionTile& t) { return u < t.first_unit; });
  const AttentionTile* tile = next - 1;
  const int64_t head = (unit - tile->first_unit) / tile->spans;
  return {tile, head, tile->first_unit + head * tile->spans};
}

// Positions of `span` that the query at `position` sees, relative to its begin.
struct Visible {
  int32_t lo, hi;
};
Visible visible(const Op& op, int32_t position, int32_t span) {
  const int32_t first = op.shape.sliding_window > 0 ? position - op.shape.sliding_window + 1 : 0;
  return {std::max(0, first - span * kSpan), std::min(kSpan, position + 1 - span * kSpan)};
}

// Converted rows lie as [D / L][kSub][L]: all distances inside a kernel are then constants.
template <class Load>
void convert_row(float* out, const char* row, int64_t D, int64_t size, DType type, Load load_vector) {
  int64_t d = 0;
  for (; d + kLanes <= D; d += kLanes) store(out + d * kSub, load_vector(row + d * size));
  for (int64_t i = 0; d + i < D; ++i)
    out[d * kSub + i] = load_f32(row, type, d + i);  // what is behind stays zero
}

// Positions [t, end) of one kv head from the paged cache, block by block, to out [D / L][kSub][L] from its second
// index on. Asks for the rows that come kSub later, before `prefetch_end`, already now.
void gather(float* out, const void* cache, const Op& op, const int32_t* block_table, int64_t kv_head,
            int32_t t, int32_t end, int32_t prefetch_end) {
  const DType type = op.kv.dtype;
  const int64_t size = dtype_bytes(type), stride = op.shape.KVH * op.D * size;
  const int32_t B = op.kv.B;
  auto at = [&](int32_t position) {
    const int64_t slot = int64_t(block_table[position / B]) * B + position % B;
    return static_cast<const char*>(cache) + slot * stride + kv_head * op.D * size;
  };
  while (t < end) {
    const int32_t run = std::min(end - t, B - t % B);
    const char* row = at(t);
    const char* later = t + kSub < prefetch_end ? at(t + kSub) : row;
    for (int32_t i = 0; i < run; ++i, row += stride, later += stride, out += kLanes) {
      for (int64_t line = 0; line < op.D * size; line += 64) __builtin_prefetch(later + line);
      if (type == DType::f32)
        convert_row(out, row, op.D, size, type,
                    [](const char* p) { return load(reinterpret_cast<const float*>(p)); });
      else if (type == DType::f16)
        convert_row(out, row, op.D, size, type, [](const char* p) { return load_f16(p); });
      else
        convert_row(out, row, op.D, size, type, [](const char* p) { return load_bf16(p); });
    }
    t += run;
  }
}

// scores[0 … L) = q · rows[0 … L), each a sum over lanes of one chain along D.
void score_block(float* scores, const float* q, const float* rows, int64_t Dp, float scale) {
  F dot[kLanes];
  NANO_UNROLL
  for (int i = 0; i < kLanes; ++i) dot[i] = zero_f();
  for (int64_t d = 0; d < Dp; d += kLanes) {
    F qd = load(q + d);
    NANO_UNROLL
    for (int i = 0; i < kLanes; ++i) dot[i] = fma(qd, load(rows + d * kSub + i * kLanes), dot[i]);
  }
  store(scores, sum_lanes(dot) * set(scale));
}

// For QUERIES queries: acc[0 … N·L) += Σ p[t] · rows[t], t ascending. What is loaded serves all of them.
template <int QUERIES, int N>
void add_rows(float* acc, int64_t Dp, const float* p, const float* rows, int32_t n) {
  F a[QUERIES][N];
  NANO_UNROLL
  for (int q = 0; q < QUERIES; ++q) {
    NANO_UNROLL
    for (int i = 0; i < N; ++i) a[q][i] = load(acc + q * Dp + i * kLanes);
  }
  for (int32_t t = 0; t < n; ++t) {
    F row[N];
    NANO_UNROLL
    for (int i = 0; i < N; ++i) row[i] = load(rows + (i * kSub + t) * kLanes);
    NANO_UNROLL
    for (int q = 0; q < QUERIES; ++q) {
      const F pt = set(p[q * kSpan + t]);
      NANO_UNROLL
      for (int i = 0; i < N; ++i) a[q][i] = fma(pt, row[i], a[q][i]);
    }
  }
  NANO_UNROLL
  for (int q = 0; q < QUERIES; ++q) {
    NANO_UNROLL
    for (int i = 0; i < N; ++i) store(acc + q * Dp + i * kLanes, a[q][i]);
  }
}

// By queries − 1 and log2 of N: as many as registers hold (4·4 sums, 4 rows and a weight of 32; 2·4 of 16).
constexpr int kQueriesAtOnce = kRegisters >= 32 ? 4 : 2, kMaxLog2N = 2;
using AddRows = void (*)(float*, int64_t, const float*, const float*, int32_t);
template <int... I>
constexpr std::array<std::array<AddRows, kMaxLog2N + 1>, kQueriesAtOnce> add_rows_table(
    std::integer_sequence<int, I...>) {
  return {{{add_rows<I + 1, 1>, add_rows<I + 1, 2>, add_rows<I + 1, 4>}...}};
}
constexpr auto kAddRows = add_rows_table(std::make_integer_sequence<int, kQueriesAtOnce>());

// scores[lo … hi) become exp(score − max). Returns the maximum and the sum in 16 parts by t mod 16.
void softmax_span(float* scores, Visible see, float& max_out, float& sum_out) {
  const int32_t begin = see.lo / 16 * 16, end = (see.hi + 15) / 16 * 16;
  std::fill(scores + begin, scores + see.lo,
            -INFINITY);  // exp makes these exactly 0: adding them changes nothing
  std::fill(scores + see.hi, scores + end, -INFINITY);
  F most = set(-INFINITY);
  for (int32_t t = begin; t < end; t += kLanes) most = max(load(scores + t), most);
  float lane[kLanes], largest = -INFINITY;
  store(lane, most);
  for (float x : lane) largest = x > largest ? x : largest;
  F parts[16 / kLanes];
  for (F& part : parts) part = zero_f();
  for (int32_t t = begin; t < end; t += 16) {
    for (int i = 0; i < 16 / kLanes; ++i) {
      F p = math::exp_of(load(scores + t + i * kLanes) - set(largest));
      store(scores + t + i * kLanes, p);
      parts[i] = parts[i] + p;
    }
  }
  float partial[16];
  for (int i = 0; i < 16 / kLanes; ++i) store(partial + i * kLanes, parts[i]);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) partial[i] += partial[i + width];
  max_out = largest;
  sum_out = partial[0];
}

// Query i of a tile is row i / group, head i mod group of the kv head's.
void attend_span(State& result, const Op& op, const Item& item, int32_t span, const Worker& mine) {
  const AttentionTile& tile = *item.tile;
  const int32_t* table = op.batch.block_table + int64_t(tile.sequence) * op.batch.max_blocks;
  const int32_t base = span * kSpan;
  const int32_t lo = visible(op, tile.position0, span).lo,
                hi = visible(op, tile.position0 + tile.rows - 1, span).hi;
  const int64_t Q = tile.rows * op.group;
  auto seen_by = [&](int64_t query) { return visible(op, tile.position0 + int32_t(query / op.group), span); };
  // For groups of up to kQueriesAtOnce queries: the positions [a, b) that all of them see of the rows at hand.
  auto each_pass = [&](const void* cache, auto&& use) {
    for (int32_t t0 = lo / kSub * kSub; t0 < hi; t0 += kSub) {
      const int32_t from = std::max(t0, lo), to = std::min(t0 + kSub, hi);
      gather(mine.rows + (from - t0) * kLanes, cache, op, table, item.kv_head, base + from, base + to,
             base + hi);
      auto seen_of_rows = [&](int64_t i) -> Visible {
        const Visible see = seen_by(i);
        return {std::max(from, see.lo), std::min(to, see.hi)};
      };
      for (int64_t i = 0, n; i < Q; i += n) {
        const auto [a, b] = seen_of_rows(i);
        for (n = 1; n < kQueriesAtOnce && i + n < Q; ++n)
          if (const Visible next = seen_of_rows(i + n); next.lo != a || next.hi != b) break;
        if (a < b) use(i, n, t0, a, b);
      }
    }
  };
  each_pass(op.kv.k, [&](int64_t first, int64_t n, int32_t t0, int32_t a, int32_t b) {
    for (int64_t i = first; i < first + n; ++i)
      for (int32_t t = a / kLanes * kLanes; t < b; t += kLanes)
        score_block(mine.scores + i * kSpan + t, mine.queries + i * op.Dp, mine.rows + (t - t0) * kLanes,
                    op.Dp, op.shape.scale);
  });
  for (int64_t i = 0; i < Q; ++i) {
    result.sum[i] = 0;
    const Visible see = seen_by(i);
    if (see.lo < see.hi) softmax_span(mine.scores + i * kSpan, see, result.max[i], result.sum[i]);
  }
  std::fill_n(result.acc, Q * op.Dp, 0.0f);
  each_pass(op.kv.v, [&](int64_t first, int64_t queries, int32_t t0, int32_t a, int32_t b) {
    const float *p = mine.scores + first * kSpan + a, *rows = mine.rows + (a - t0) * kLanes;
    float* acc = result.acc + first * op.Dp;
    for (int64_t left = op.Dp / kLanes; left > 0;) {
      const int log2_n = left >= 4 ? 2 : left >= 2 ? 1 : 0;
      kAddRows[size_t(queries - 1)][size_t(log2_n)](acc, op.Dp, p, rows, b - a);
      const int64_t n = int64_t(1) << log2_n;
      acc += n * kLanes, rows += n * kSub * kLanes, left -= n;
    }
  });
}

// Online softmax (Milakov & Gimelshein 2018): both sides rescaled to the common maximum.
void merge(State& total, const State& span, int64_t Q, int64_t Dp) {
  for (int64_t i = 0; i < Q; ++i) {
    if (span.sum[i] == 0) continue;  // this query saw nothing of the span
    const float most = std::max(total.max[i], span.max[i]);
    const F keep = math::exp_of(set(total.max[i] - most)), take = math::exp_of(set(span.max[i] - most));
    total.max[i] = most;
    total.sum[i] = total.sum[i] * keep.v[0] + span.sum[i] * take.v[0];
    for (int64_t d = i * Dp; d < (i + 1) * Dp; d += kLanes) {
      F kept = load(total.acc + d) * keep;
      store(total.acc + d, kept + load(span.acc + d) * take);
    }
  }
}

void clear(State& total, int64_t Q, int64_t Dp) {
  std::fill_n(total.max, Q, -INFINITY);
  std::fill_n(total.sum, Q, 0.0f);
  std::fill_n(total.acc, Q * Dp, 0.0f);
}

void write_out(const State& total, const Op& op, const Item& item) {
  for (int64_t i = 0; i < item.tile->rows * op.group; ++i) {
    const int64_t row = item.tile->row0 + i / op.group, head = item.kv_head * op.group + i % op.group;
    float* out = op.out + (row * op.shape.H + head) * op.D;
    for (int64_t d = 0; d < op.D; ++d) out[d] = total.acc[i * op.Dp + d] / total.sum[i];
  }
}

void load_queries(const Op& op, const Item& item, float* queries) {
  const int64_t row_width = (op.shape.H + 2 * op.shape.KVH) * op.D;
  for (int64_t i = 0; i < item.tile->rows * op.group; ++i) {
    const int64_t row = item.tile->row0 + i / op.group, head = item.kv_head * op.group + i % op.group;
    std::memcpy(queries + i * op.Dp, op.qkv + row * row_width + head * op.D, size_t(op.D) * 4);
  }
}

void attend_units(const Op& op, int64_t begin, int64_t end, const Worker& mine) {
  Worker w = mine;
  for (int64_t unit = begin, stop; unit < end; unit = stop) {
    const Item item = item_of(op, unit);
    const int64_t Q = item.tile->rows * op.group, item_end = item.first_unit + item.tile->spans;
    stop = std::min(end, item_end);
    load_queries(op, item, w.queries);
    const bool cut = unit != item.first_unit || stop != item_end;
    if (!cut) clear(w.total, Q, op.Dp);
    for (int64_t u = unit; u < stop; ++u) {
      const int32_t span = item.tile->first_span + int32_t(u - item.first_unit);
      const int64_t place = unit == begin ? u - begin : op.scratch.max_spans + (u - item.first_unit);
      State partial(w.partials + place * State::floats(op.scratch), op.scratch);
      attend_span(cut ? partial : w.span, op, item, span, w);
      if (!cut) merge(w.total, w.span, Q, op.Dp);
    }
    if (!cut) write_out(w.total, op, item);
  }
}

// Items that lie across the end of a worker's range, each once, their spans in order.
void merge_cut_items(const Op& op, Team& team) {
  int64_t done = 0;  // units before this are merged
  for (int32_t worker = 0; worker + 1 < team.active(); ++worker) {
    const int64_t boundary = team.range_end(op.num_units, worker);
    if (boundary < done || boundary == 0 || boundary == op.num_units) continue;
    const Item item = item_of(op, boundary);
    if (item.first_unit == boundary) continue;
    const int64_t Q = item.tile->rows * op.group;
    Worker own(op.scratch, 0);
    clear(own.total, Q, op.Dp);
    int32_t holder = 0;
    done = item.first_unit + item.tile->spans;
    for (int64_t u = item.first_unit; u < done; ++u) {
      while (team.range_end(op.num_units, holder) <= u) ++holder;
      const int64_t begin = team.range_begin(op.num_units, holder);
      const int64_t place =
          item.first_unit <= begin ? u - begin : op.scratch.max_spans + (u - item.first_unit);
      const Worker from(op.scratch, holder);
      merge(own.total, State(from.partials + place * State::floats(op.scratch), op.scratch), Q, op.Dp);
    }
    write_out(own.total, op, item);
  }
}

void make_tiles(Op& op) {
  const int32_t rows_at_once = int32_t(std::max<int64_t>(1, op.scratch.queries / op.group));
  for (int32_t s = 0; s < op.batch.S; ++s) {
    const int32_t begin = op.batch.query_start[s], end = op.batch.query_start[s + 1];
    if (op.batch.seq_len[s] == 0) continue;  // padding
    for (int32_t row = begin; row < end; row += rows_at_once) {
      AttentionTile& tile = op.scratch.tiles[op.num_tiles++];
      tile = {s, row,         std::min(rows_at_once, end - row), op.batch.seq_len[s] - (end - row), 0,
              0, op.num_units};
      const int32_t window = op.shape.sliding_window;
      tile.first_span = window > 0 ? std::max(0, tile.position0 - window + 1) / kSpan : 0;
      tile.spans = (tile.position0 + tile.rows - 1) / kSpan - tile.first_span + 1;
      op.num_units += int64_t(tile.spans) * op.shape.KVH;
    }
  }
}

AttentionScratch sizes(const Limits& limits) {
  AttentionScratch s;
  s.max_tokens = limits.max_tokens;
  s.max_spans = (int64_t(limits.max_model_len) + kSpan - 1) / kSpan;
  s.queries = std::max<int64_t>(kTileQueries, limits.KVH > 0 ? limits.H / limits.KVH : 1);
  s.padded_D = padded(limits.D);
  s.worker_bytes = Arena::rounded(Worker::floats(s) * int64_t(sizeof(float)));
  return s;
}

int64_t tile_table_bytes(const AttentionScratch& s) {
  return Arena::rounded(s.max_tokens * int64_t(sizeof(AttentionTile)));
}

}  // namespace

int64_t attention_scratch_bytes(const Limits& limits, int32_t workers) {
  const AttentionScratch s = sizes(limits);
  return tile_table_bytes(s) + workers * s.worker_bytes;
}

AttentionScratch attention_scratch(const Limits& limits, uint8_t* memory) {
  AttentionScratch s = sizes(limits);
  s.tiles = reinterpret_cast<AttentionTile*>(memory);
  s.worker = memory + tile_table_bytes(s);
  return s;
}

void attention_cpu(float* out, const float* qkv, const KvLayer& kv, const Batch& batch,
                   const AttentionShape& shape, const AttentionScratch& scratch, Team& team) {
  NANO_CHECK(batch.T <= scratch.max_tokens && padded(shape.D) == scratch.padded_D, "reserve() came first");
  NANO_CHECK(kv.dtype == DType::f32 || kv.dtype == DType::f16 || kv.dtype == DType::bf16,
             "type of the KV cache");
  Op op{qkv, out, kv, batch, shape, scratch};
  make_tiles(op);
  for (int32_t i = 0; i < op.num_tiles; ++i)
    NANO_CHECK(scratch.tiles[i].spans <= scratch.max_spans, "sequence longer than max_model_len");
  team.each(op.num_units, [&](int64_t begin, int64_t end, int32_t worker) {
    attend_units(op, begin, end, Worker(scratch, worker));
  });
  team.each(1, [&](int64_t, int64_t, int32_t) { merge_cut_items(op, team); });
}

}  // namespace nano::NANO_ISA
