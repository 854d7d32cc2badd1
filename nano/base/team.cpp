#include "base/team.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <set>
#include <system_error>
#include <utility>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "base/cgroup.h"  // cgroup_cpu_quota
#include "base/error.h"   // Error, NANO_CHECK

namespace nano {

namespace {

#if defined(__SSE2__)
constexpr uint64_t kFlush = 0x8040;  // FTZ | DAZ
uint64_t fp_control() { return _mm_getcsr(); }
void set_fp_control(uint64_t bits) { _mm_setcsr(uint32_t(bits)); }
void cpu_relax() { _mm_pause(); }
#elif defined(__aarch64__)
constexpr uint64_t kFlush = uint64_t(1) << 24;  // FZ
uint64_t fp_control() {
  uint64_t bits;
  asm volatile("mrs %0, fpcr" : "=r"(bits));
  return bits;
}
void set_fp_control(uint64_t bits) { asm volatile("msr fpcr, %0" : : "r"(bits)); }
void cpu_relax() { asm volatile("yield"); }
#endif

// Treats denormals as zero from here to the end of the scope, on this thread.
class FlushDenormals {
 public:
  FlushDenormals() { set_fp_control(before_ | kFlush); }
  ~FlushDenormals() { set_fp_control(before_); }

 private:
  const uint64_t before_ = fp_control();
};

// Pins the calling thread; not being allowed to is no error, only slower.
void pin(int32_t cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(size_t(cpu), &set);
  sched_setaffinity(0, sizeof set, &set);
}

// Pins the caller while it is worker 0 and gives it back as it was.
class PinnedHere {
 public:
  explicit PinnedHere(const std::vector<int32_t>& cpus)
      : pinned_(!cpus.empty() && sched_getaffinity(0, sizeof before_, &before_) == 0) {
    if (pinned_) pin(cpus[0]);
  }
  ~PinnedHere() {
    if (pinned_) sched_setaffinity(0, sizeof before_, &before_);
  }

 private:
  cpu_set_t before_;
  const bool pinned_;
};

// Returns once `value` is not `old`: spins for at most 50 µs, then sleeps until notified.
template <class T>
void wait_for_change(const std::atomic<T>& value, T old) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
  do {
    for (int i = 0; i < 64; ++i, cpu_relax())
      if (value.load() != old) return;
  } while (std::chrono::steady_clock::now() < until);
  value.wait(old);
}

}  // namespace

std::vector<int32_t> allowed_cpus() {
  cpu_set_t mask;
  std::vector<int32_t> cpus;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return {0};
  std::set<std::string> cores;  // the list of siblings names a core
  for (int32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(size_t(cpu), &mask)) continue;
    std::string siblings = std::to_string(cpu);
    std::ifstream("/sys/devices/system/cpu/cpu" + siblings + "/topology/thread_siblings_list") >> siblings;
    if (cores.insert(siblings).second) cpus.push_back(cpu);
  }
  return cpus;
}

int32_t team_size(int32_t requested) {
  int32_t most = std::max<int32_t>(1, int32_t(allowed_cpus().size()));
  const double quota = cgroup_cpu_quota();  // rounded down: a throttled team is slower
  if (quota > 0) most = std::min(most, std::max(1, int32_t(quota)));
  return requested > 0 ? std::min(requested, most) : most;
}

Team::Team(int32_t threads, bool exact) : Team() {  // from here on the destructor runs, whatever is thrown
  NANO_CHECK(!exact || threads >= 1, "an exact number of threads");
  const int32_t size = exact ? threads : team_size(threads);
  if (size > 1 && !exact) cpus_ = allowed_cpus();  // a single thread goes where the scheduler likes
  try {
    for (int32_t worker = 1; worker < size; ++worker) threads_.emplace_back([this, worker] { work(worker); });
  } catch (const std::system_error& error) {
    throw Error(std::string("cannot start a thread: ") + error.what(), "--threads",
                "a process limit? try fewer");
  }
}

Team::~Team() {
  Task last;
  last.stop = true;
  start(last);
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(Call fn) {
  PinnedHere pinned(cpus_);
  FlushDenormals flush;
  if (!threads_.empty()) start({});  // nothing to do, but the workers wake up while fn begins
  fn.fn(fn.self);
}

void Team::phase(const Task& task) {
  if (task.n <= 0) return;
  NANO_CHECK(pending_.load() == 0 || task_.n == 0, "a phase inside a phase");
  FlushDenormals flush;
  if (task.n == 1 || threads_.empty()) return task.call(task.body, 0, task.n, 0);
  start(task);
  do_range(0);
  wait_for_workers();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Team::start(const Task& task) {
  wait_for_workers();
  task_ = task;
  pending_.store(int32_t(threads_.size()));
  phase_.fetch_add(1);
  phase_.notify_all();
}

void Team::wait_for_workers() {
  while (const int32_t left = pending_.load()) wait_for_change(pending_, left);
}

void Team::work(int32_t worker) {
  if (!cpus_.empty()) pin(cpus_[size_t(worker)]);
  FlushDenormals flush;
  for (uint32_t done = 0;; ++done) {
    wait_for_change(phase_, done);
    if (task_.stop) return;
    do_range(worker);
    if (pending_.fetch_sub(1) == 1) pending_.notify_one();
  }
}

void Team::do_range(int32_t worker) {
  const int64_t begin = range_begin(task_.n, worker), end = range_end(task_.n, worker);
  if (begin == end) return;
  try {
    task_.call(task_.body, begin, end, worker);
  } catch (...) {
    std::lock_guard<std::mutex> lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

}  // namespace nano
