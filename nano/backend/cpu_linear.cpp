// One linear: quantise the rows if a part wants int8, then let each worker do a contiguous range of panels.
#include "backend/cpu_linear.h"

#include <algorithm>

#include "base/error.h"  // NANO_CHECK

namespace nano {

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
    return part->bias ? add(y, load(part->bias + at.panel * kLanes)) : y;
  };
  const int64_t valid = std::min<int64_t>(kLanes, at.part->N - at.panel * kLanes);
  out += at.column + at.panel * kLanes;
  for (int64_t r = 0; r < rows; ++r, out += jobs.width) {
    float edge[kLanes] = {};  // out is narrower than a vector in the last panel
    float* to = valid == kLanes ? out : edge;
    if (to == edge && epilogue == Epilogue::add) std::copy_n(out, valid, edge);
    F y = with_bias(load(acc + r * kLanes), at.part);
    if (jobs.pair)
      y = mul(activation(y, epilogue), with_bias(load(acc_up + r * kLanes), jobs.place(job, 1).part));
    if (epilogue == Epilogue::add) y = add(load(to), y);
    store(to, y);
    if (to == edge) std::copy_n(edge, valid, out);
  }
}

struct WorkerScratch {
  float *acc, *spare,
      *weights;  // [kPanelsAtOnce][kChunkRows][L], [kChunkRows][L], [kPanelsAtOnce][kChunkK][L]
  static constexpr int64_t kAcc = kChunkRows * kLanes;
  static constexpr int64_t kFloats = (kPanelsAtOnce + 1) * kAcc + kPanelsAtOnce * kChunkK * kLanes;
  WorkerScratch(const LinearScratch& s, int32_t worker)
      : acc(s.worker + worker * kFloats), spare(acc + kPanelsAtOnce * kAcc), weights(spare + kAcc) {}
};

}  // namespace

// The order of linear_scratch's pieces; next(bytes) gives the place of each.
template <class Next>
static LinearScratch lay_out(const Limits& limits, int32_t workers, Next next) {
  LinearScratch s;
  s.max_tokens = limits.max_tokens;
  s.max_K = limits.max_K;
  const int64_t tiles = s.max_tokens * ((s.max_K + kTile - 1) / kTile);
  s.rows.q = reinterpret_cast<int8_t*>(next(tiles * kTile));
  s.rows.scale = reinterpret_cast<float*>(next(tiles * 4));
  for (int u = 0; u < 2; ++u) {
    s.rows.minus_sum[u] = reinterpret_cast<int32_t*>(next(tiles * 4 * (u + 1)));
    s.rows.minus_scaled_sum[u] = reinterpret_cast<float*>(next(tiles * 4 * (u + 1)));
  }
  s.worker = reinterpret_cast<float*>(next(workers * WorkerScratch::kFloats * 4));
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

LinearScratch linear_scratch(const Limits& limits, int32_t workers, uint8_t* memory) {
  return lay_out(limits, workers, [&](int64_t bytes) {
    uint8_t* p = memory;
    memory += Arena::rounded(bytes);
    return p;
  });
}

void linear_cpu(float* out, const float* x, int32_t M, const CpuLinear& w, Epilogue epilogue,
                ActivationDtype activations, const LinearScratch& scratch, Team& team) {
  NANO_CHECK(M <= scratch.max_tokens && w.K <= scratch.max_K,
             "reserve() came first and was told of this size");
  const Jobs jobs(w, epilogue);
  if (w.has_unit[0] || w.has_unit[1]) {
    team.each((M + 7) / 8, [&](int64_t begin, int64_t end, int32_t) {
      quantize_rows(scratch.rows, x, begin * 8, std::min<int64_t>(end * 8, M) - begin * 8, M, w.K,
                    w.has_unit);
    });
  }
  const int halves = jobs.pair ? 2 : 1;
  const int64_t step = kPanelsAtOnce / halves;
  team.each(jobs.count, [&](int64_t begin, int64_t end, int32_t worker) {
    const WorkerScratch mine(scratch, worker);
    for (int64_t row0 = 0; row0 < M; row0 += kChunkRows) {
      const int64_t rows = std::min<int64_t>(kChunkRows, M - row0);
      for (int64_t job = begin; job < end; job += step) {
        PanelRef floats[kPanelsAtOnce];
        int num_floats = 0;
        const int64_t last = std::min(job + step, end);
        for (int64_t i = 0; i < (last - job) * halves; ++i) {
          const Jobs::Place at = jobs.place(job + i / halves, int(i % halves));
          const PanelRef ref{at.part, at.panel, mine.acc + i * WorkerScratch::kAcc};
          if (activations == ActivationDtype::float32 || at.part->format >= kFirstDense)
            floats[num_floats++] = ref;
          else
            dot_panel(ref, scratch.rows, row0, rows, M, w.K);
        }
        if (num_floats > 0)
          fma_panels(floats, num_floats, mine.weights, mine.spare, x + row0 * w.K, rows, w.K);
        for (int64_t j = job; j < last; ++j) {
          const float* acc = mine.acc + (j - job) * halves * WorkerScratch::kAcc;
          finish(out + row0 * jobs.width, jobs, j, acc, acc + WorkerScratch::kAcc, rows, epilogue);
        }
      }
    }
  });
}

}  // namespace nano
