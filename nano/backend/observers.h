// Observers: decorators over a Backend that look at each op and change no number. One so far: profiled(), which times
// every op. (To come: recording activations for calibration, and the difference of two devices.)
// An observer goes between the backend and all that uses it, so it is put there where the backend is made
// (llm/loader.h); where there is none, nothing is paid for it.
// They do not look inside an op: what its threads do in that time is a profiler's business (perf).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"  // Backend
#include "base/clock.h"       // steady_seconds

namespace nano {

// All calls of one op. The linears of all layers that have the same name in the file are one op.
struct OpTime {
  std::string op;  // "attention", "linear attn_q+attn_k+attn_v"
  int64_t calls = 0;
  double seconds = 0;
  // What they had to read at the very least: a linear its packed weights once a call, attention the K and V of the
  // positions that a sequence sees once a call. 0 = not counted.
  int64_t bytes = 0;
};

struct Profile {
  std::vector<OpTime> ops;          // in the order of their first call
  double since = steady_seconds();  // when it began: the time that is in no op is known as well
  OpTime& of(std::string_view op);
  void clear();  // begins anew: what warmed up does not count
};

// The same backend, timed: an op's time is that of the calling thread, which takes part in each and waits for the
// others. parallel_for counts as "sampling", its only use; what a step takes beside its ops (the threads wake up and
// are bound to their cores) as "waking the team". REQUIRES: `profile` outlives what is returned.
std::unique_ptr<Backend> profiled(std::unique_ptr<Backend> backend, Profile& profile);

}  // namespace nano
