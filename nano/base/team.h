// The thread team: one thread per core that work together on a step.
//
// run(fn) wakes the workers once and calls fn on the caller's thread, who is worker 0. Inside, each(n, body) is a
// phase: [0, n) is cut into one contiguous range per worker, body runs on all of them, and each() returns when the
// last is done. Between phases the workers spin (a phase then starts in well under a microsecond) but never
// longer than 50 µs; after that they sleep, so an idle team costs nothing and a busy neighbour is not starved.
//
// All workers, and the caller inside run and each, treat denormal floats as zero: a weight full of denormals is
// else a hundred times slower, and rows must not depend on which thread computed them.
// OpenMP would do, but its spinning cannot be set from code and ThreadSanitizer does not understand it.
// It does not balance: ranges are fixed, so that which worker does what never depends on time.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/call.h"  // Call

namespace nano {

// CPUs this process may use, one per physical core, in order: the affinity mask without second hyperthreads.
std::vector<int32_t> allowed_cpus();
// What a team of `requested` threads gets (0 = as many as there are): at least 1, never more than cores and quota.
int32_t team_size(int32_t requested);

// Invariants: 1. at most one thread is in run() or each() at a time. 2. task_ changes only while pending_ is 0, and
// each worker does each task once.
class Team {
 public:
  // As in team_size. exact: just so many, 1 or more, though cores are fewer, and nobody is pinned. That is slow; it
  // lets tests see on any machine how many workers share.
  explicit Team(int32_t threads, bool exact = false);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int32_t size() const { return int32_t(threads_.size()) + 1; }

  // What each(n, …) gives to a worker: [begin, end).
  int64_t range_begin(int64_t n, int32_t worker) const { return n * worker / size(); }
  int64_t range_end(int64_t n, int32_t worker) const { return range_begin(n, worker + 1); }

  // REQUIRES: not inside run() or each(). An exception of fn passes through.
  void run(Call fn);

  // body(begin, end, worker) on each worker with a non-empty range; n = 1 stays on the caller. The first exception
  // is thrown again here, after all have finished. REQUIRES: not inside a body.
  template <class Body>
  void each(int64_t n, Body&& body) {
    using B = std::remove_reference_t<Body>;
    auto call = [](const void* b, int64_t begin, int64_t end, int32_t worker) {
      (*static_cast<B*>(const_cast<void*>(b)))(begin, end, worker);
    };
    phase({n, call, &body});
  }

 private:
  Team() = default;  // nobody but the caller
  struct Task {      // a view of the body: nothing is allocated for a phase
    int64_t n = 0;
    void (*call)(const void* body, int64_t begin, int64_t end, int32_t worker) = nullptr;
    const void* body = nullptr;
    bool stop = false;
  };
  void phase(const Task& task);
  void start(const Task& task);  // for all workers, once they have done the last one
  void wait_for_workers();
  void do_range(int32_t worker);  // its part of task_
  void work(int32_t worker);      // a worker's thread

  std::vector<int32_t> cpus_;  // worker i is pinned to cpus_[i]; empty = nobody is pinned
  std::vector<std::thread> threads_;
  // Two cache lines: what the caller writes and the workers read, and the other way round.
  alignas(64) Task task_;
  std::atomic<uint32_t> phase_{0};               // + 1 with each task
  alignas(64) std::atomic<int32_t> pending_{0};  // workers not yet done with it
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

}  // namespace nano
