// One linear: bring a chunk of rows into the forms that the parts want, then let each worker do a contiguous range of
// panels.
#include "backend/cpu/linear.h"

#include <algorithm>

#include "base/error.h"  // NANO_CHECK

namespace nano::NANO_ISA {

namespace {

// A job is what one epilogue needs: a panel, or the panels of gate and up with the same outputs.
struct Jobs {
  Jobs(const CpuLinear& w, Epilogue epilogue)
      : w(w),
        pair(epilogue == Epilogue::silu_mul || epilogue == Epilogue::gelu_mul),
        width(pair ? w.N / 2 : w.N) {
    NANO_CHECK(!pair || (w.parts.size() == 2 && w.parts[0].N == w.parts[1].N), "gate and up have one shape");
    for (const PackedPart& part : w.parts) count += part.panels;
    if (pair) count = w.parts[0].panels;
  }

  struct Place {
    const PackedPart* part;
    int64_t panel, column;  // column: of the part's first output
  };
  Place place(int64_t job, int half) const {
    if (pair) return {&w.parts[size_t(half)], job, 0};
    int64_t column = 0;
    for (const PackedPart& part : w.parts) {
      if (job < part.panels) return {&part, job, column};
      job -= part.panels;
      column += part.N;
    }
    NANO_CHECK(false, "job within the parts");
  }

  const CpuLinear& w;
  const bool pair;
  const int64_t width;  // of a row of out
  int64_t count = 0;
};

F activation(F gate, Epilogue epilogue) {
  return epilogue == Epilogue::silu_mul ? math::silu_of(gate) : math::gelu_of(gate);
}

// Rows of one job from the accumulators to out.
void finish(float* out, const Jobs& jobs, int64_t job, const float* acc, const float* acc_up, int64_t rows,
            Epilogue epilogue) {
  const Jobs::Place at = jobs.place(job, 0);
  auto with_bias = [&](F y, const PackedPart* part) {
    return part->bias ? y + load(part->bias + at.panel * kLanes) : y;
  };
  const int64_t valid = std::min<int64_t>(kLanes, at.part->N - at.panel * kLanes);
  out += at.column + at.panel * kLanes;
  for (int64_t r = 0; r < rows; ++r, out += jobs.width) {
    float edge[kLanes] = {};  // out is narrower than a vector in the last panel
    float* to = valid == kLanes ? out : edge;
    if (to == edge && epilogue == Epilogue::add) std::copy_n(out, valid, edge);
    F y = with_bias(load(acc + r * kLanes), at.part);
    if (jobs.pair)
      y = activation(y, epilogue) * with_bias(load(acc_up + r * kLanes), jobs.place(job, 1).part);
    if (epilogue == Epilogue::add) y = load(to) + y;
    store(to, y);
    if (to == edge) std::copy_n(edge, valid, out);
  }
}

struct WorkerScratch {
  float* acc;      // [kPanelsAtOnce][kChunkRows][L]
  float* weights;  // [kPanelsAtOnce][kChunkK][L]
  uint8_t* unpacked;
  static constexpr int64_t kAcc = kChunkRows * kLanes;
  static constexpr int64_t kFloats = kPanelsAtOnce * kAcc + kPanelsAtOnce * kChunkK * kLanes;
  WorkerScratch(const LinearScratch& s, int32_t worker)
      : acc(s.worker + worker * kFloats),
        weights(acc + kPanelsAtOnce * kAcc),
        unpacked(s.unpacked + worker * Arena::rounded(unpacked_bytes(s.max_K))) {}
};

}  // namespace

// The order of linear_scratch's pieces; next(bytes) gives the place of each.
template <class Next>
static LinearScratch lay_out(const Limits& limits, int32_t workers, Next next) {
  LinearScratch s;
  s.max_K = limits.max_K;
  const int64_t tiles = kChunkRows * num_tiles(s.max_K);
  for (FormRows& form : s.forms) {
    form.int8.q = reinterpret_cast<int8_t*>(next(tiles * kTile));
    form.int8.scale = reinterpret_cast<float*>(next(tiles * 4));
    for (int u = 0; u < 2; ++u) {
      form.int8.minus_sum[u] = reinterpret_cast<int32_t*>(next(tiles * 4 * (u + 1)));
      form.int8.minus_scaled_sum[u] = reinterpret_cast<float*>(next(tiles * 4 * (u + 1)));
    }
    form.moved = reinterpret_cast<float*>(next(kChunkRows * s.max_K * 4));
  }
  s.worker = reinterpret_cast<float*>(next(workers * WorkerScratch::kFloats * 4));
  s.unpacked = next(workers * Arena::rounded(unpacked_bytes(s.max_K)));
  return s;
}

int64_t linear_scratch_bytes(const Limits& limits, int32_t workers) {
  int64_t total = 0;
  lay_out(limits, workers, [&](int64_t bytes) -> uint8_t* {
    total += Arena::rounded(bytes);
    return nullptr;
  });
  return total;
}

LinearScratch linear_scratch(const Limits& limits, int32_t workers, uint8_t* memory, bool tiles) {
  LinearScratch s = lay_out(limits, workers, [&](int64_t bytes) {
    uint8_t* p = memory;
    memory += Arena::rounded(bytes);
    return p;
  });
  s.tiles = tiles;
  return s;
}

// Rows begin … end−1 of a chunk of `rows` rows at x, in the form that a part asks for.
static void prepare(const FormRows& out, const float* x, int64_t begin, int64_t end, int64_t rows, int64_t K,
                    const InputForm& form) {
  if (form.moves()) {
    for (int64_t m = begin; m < end; ++m) {
      float* to = out.moved + m * K;
      if (form.permutation.empty()) std::copy_n(x + m * K, K, to);
      for (size_t k = 0; k < form.permutation.size(); ++k) to[k] = x[m * K + form.permutation[k]];
      if (!is_int8(form.scheme)) round_activations(to, K, form.scheme, form.scale, form.zero);
    }
    x = out.moved;
  }
  if (is_int8(form.scheme)) quantize_rows(out.int8, x, begin, end, rows, K, form);
}

// Jobs begin … end−1 for one chunk of rows; x and out are at the chunk's first row.
static void do_jobs(float* out, const float* x, int64_t rows, const Jobs& jobs, int64_t begin, int64_t end,
                    Epilogue epilogue, const LinearScratch& scratch, const WorkerScratch& mine) {
  const int64_t K = jobs.w.K, halves = jobs.pair ? 2 : 1, step = kPanelsAtOnce / halves;
  for (int64_t job = begin; job < end; job += step) {
    const int64_t last = std::min(job + step, end);
    PanelRef floats[kPanelsAtOnce];
    int num_floats = 0, form = 0;
    auto run_floats = [&] {
      const float* in = jobs.w.forms[size_t(form)].moves() ? scratch.forms[form].moved : x;
      if (num_floats > 0) fma_panels(floats, num_floats, mine.weights, in, rows, K);
      num_floats = 0;
    };
    for (int64_t i = 0; i < (last - job) * halves; ++i) {
      const Jobs::Place at = jobs.place(job + i / halves, int(i % halves));
      const PanelRef ref{at.part, at.panel, mine.acc + i * WorkerScratch::kAcc};
      if (is_int8(jobs.w.forms[size_t(at.part->form)].scheme)) {
        dot_panel(ref, scratch.forms[at.part->form].int8, rows, K, mine.unpacked, scratch.tiles);
        continue;
      }
      if (at.part->form != form) run_floats();
      form = at.part->form;
      floats[num_floats++] = ref;
    }
    run_floats();
    for (int64_t j = job; j < last; ++j) {
      const float* acc = mine.acc + (j - job) * halves * WorkerScratch::kAcc;
      finish(out, jobs, j, acc, acc + WorkerScratch::kAcc, rows, epilogue);
    }
  }
}

void linear_cpu(float* out, const float* x, int32_t M, const CpuLinear& w, Epilogue epilogue,
                const LinearScratch& scratch, Team& team) {
  NANO_CHECK(w.K <= scratch.max_K, "reserve() came first and was told of this size");
  const Jobs jobs(w, epilogue);
  bool prepares = false;
  for (const InputForm& form : w.forms) prepares |= form.moves() || is_int8(form.scheme);
  for (int64_t row0 = 0; row0 < M;
       row0 += kChunkRows, x += kChunkRows * w.K, out += kChunkRows * jobs.width) {
    const int64_t rows = std::min<int64_t>(kChunkRows, M - row0);
    if (prepares) {
      team.each((rows + kBlockRows - 1) / kBlockRows, [&](int64_t begin, int64_t end, int32_t) {
        for (size_t i = 0; i < w.forms.size(); ++i)
          prepare(scratch.forms[i], x, begin * kBlockRows, std::min(end * kBlockRows, rows), rows, w.K,
                  w.forms[i]);
      });
    }
    team.each(jobs.count, [&](int64_t begin, int64_t end, int32_t worker) {
      do_jobs(out, x, rows, jobs, begin, end, epilogue, scratch, WorkerScratch(scratch, worker));
    });
  }
}

}  // namespace nano::NANO_ISA
