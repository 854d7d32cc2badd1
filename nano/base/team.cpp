#include "base/team.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
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

// Pins a thread to these; not being allowed to is no error, only slower.
void pin(pthread_t thread, const int32_t* cpus, size_t count) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (size_t i = 0; i < count; ++i) CPU_SET(size_t(cpus[i]), &set);
  pthread_setaffinity_np(thread, sizeof set, &set);
}

// How often another program took the core from the calling thread.
int64_t times_preempted() {
  rusage use;
  return getrusage(RUSAGE_THREAD, &use) == 0 ? int64_t(use.ru_nivcsw) : 0;
}

// Pins the caller while it is worker 0 and gives it back as it was.
class PinnedHere {
 public:
  PinnedHere(const std::vector<int32_t>& cpus, bool wanted)
      : pinned_(wanted && sched_getaffinity(0, sizeof before_, &before_) == 0) {
    if (pinned_) pin(pthread_self(), &cpus[0], 1);
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
    set_active(size);
  } catch (const std::system_error& error) {
    throw Error(std::string("cannot start a thread: ") + error.what(), "--threads",
                "a process limit? try fewer");
  }
}

Team::~Team() {
  set_active(size());
  start({}, size());
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(Call fn) {
  if (!cpus_.empty()) adapt();
  PinnedHere pinned(cpus_, !cpus_.empty() && active_ == size());
  FlushDenormals flush;
  if (active_ > 1)
    start({0, nullptr, nullptr, active_}, active_);  // nothing to do, but the workers wake up while fn begins
  fn.fn(fn.self);
}

// Who is left out sleeps, and the others go where the system finds room for them.
void Team::set_active(int32_t active) {
  wait_for_workers();
  const int32_t members = std::max<int32_t>(active_, active);
  joined_at_ = phase_;
  active_ = active;  // who then hears that it is out looks at this next
  active_.notify_all();
  start({0, nullptr, nullptr, active}, members);
  wait_for_workers();  // nobody misses the next change
  for (size_t i = 0; i < threads_.size() && !cpus_.empty(); ++i) {
    if (active == size())
      pin(threads_[i].native_handle(), &cpus_[i + 1], 1);
    else
      pin(threads_[i].native_handle(), cpus_.data(), cpus_.size());
  }
}

// An idle machine takes a core away for a moment a few times a second; a neighbour that computes, a hundred times.
void Team::adapt() {
  using namespace std::chrono_literals;
  constexpr auto kBetweenLooks = 50ms;
  constexpr int64_t kCrowded = 2;  // preemptions from one look to the next
  const Clock::time_point now = Clock::now();
  if (now < next_look_) return;
  const bool idle_before = now > next_look_ + kBetweenLooks * 10;  // says nothing
  const int64_t taken = preemptions_.load() + times_preempted(), news = taken - preemptions_seen_;
  preemptions_seen_ = taken;
  next_look_ = now + kBetweenLooks;
  if (idle_before) return;
  if (news > kCrowded && active_ > 1) {
    patience_ = std::clamp<Clock::duration>(patience_ * 2, 250ms, 4s);
    next_trial_ = now + patience_;
    set_active(active_ - 1);
  } else if (active_ < size() && now > next_trial_) {
    set_active(active_ + 1);
  } else if (active_ == size() && news <= kCrowded) {
    patience_ = 0ms;
  }
}

void Team::phase(const Task& task) {
  if (task.n <= 0) return;
  NANO_CHECK(pending_.load() == 0 || task_.n == 0, "a phase inside a phase");
  FlushDenormals flush;
  if (task.n == 1 || active_ == 1) return task.call(task.body, 0, task.n, 0);
  start(task, active_);
  do_range(0);
  wait_for_workers();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Team::start(const Task& task, int32_t members) {
  wait_for_workers();
  task_ = task;
  pending_.store(members - 1);
  phase_.fetch_add(1);
  phase_.notify_all();
}

void Team::wait_for_workers() {
  while (const int32_t left = pending_.load()) wait_for_change(pending_, left);
}

void Team::work(int32_t worker) {
  FlushDenormals flush;
  int64_t preemptions = 0;
  int32_t members = 0;  // nobody's turn yet
  for (uint32_t done = 0;; ++done) {
    if (worker >= members) {
      for (int32_t active; (active = active_) <= worker;) active_.wait(active);
      done = joined_at_;
    }
    wait_for_change(phase_, done);
    members = task_.members;
    if (members == 0) return;
    if (task_.n == 0) {  // a step begins
      const int64_t so_far = times_preempted();
      preemptions_ += so_far - std::exchange(preemptions, so_far);
    }
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
