#include "base/team.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <system_error>
#include <utility>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "base/error.h"  // Error, NANO_CHECK

namespace nano {

namespace {

constexpr auto kSpinTime = std::chrono::microseconds(50);

void cpu_relax() {
#if defined(__SSE2__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

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
  explicit PinnedHere(const std::vector<int32_t>& cpus) {
    if (cpus.empty() || sched_getaffinity(0, sizeof before_, &before_) != 0) return;
    pinned_ = true;
    pin(cpus[0]);
  }
  ~PinnedHere() {
    if (pinned_) sched_setaffinity(0, sizeof before_, &before_);
  }
  PinnedHere(const PinnedHere&) = delete;
  PinnedHere& operator=(const PinnedHere&) = delete;

 private:
  cpu_set_t before_;
  bool pinned_ = false;
};

// Quota of one control group folder: v2 has "max 100000" or "150000 100000", v1 two files, -1 for no limit.
double folder_quota(const std::string& folder) {
  double quota = 0, period = 0;
  std::string first;
  if (std::ifstream v2(folder + "/cpu.max"); v2 >> first >> period) {
    quota = first == "max" ? 0 : std::atof(first.c_str());
  } else {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

#if defined(__SSE2__)
FlushDenormals::FlushDenormals() : before_(_mm_getcsr()) {
  _mm_setcsr(uint32_t(before_) | 0x8040);
}  // FTZ | DAZ
FlushDenormals::~FlushDenormals() { _mm_setcsr(uint32_t(before_)); }
#elif defined(__aarch64__)
FlushDenormals::FlushDenormals() {
  asm volatile("mrs %0, fpcr" : "=r"(before_));
  asm volatile("msr fpcr, %0" : : "r"(before_ | (uint64_t(1) << 24)));  // FZ
}
FlushDenormals::~FlushDenormals() { asm volatile("msr fpcr, %0" : : "r"(before_)); }
#else
FlushDenormals::FlushDenormals() : before_(0) {}
FlushDenormals::~FlushDenormals() {}
#endif

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

double cgroup_cpu_quota(const std::string& root) {
  double least = 0;
  auto visit = [&](const std::string& folder) {
    double quota = folder_quota(folder);
    if (quota > 0 && (least == 0 || quota < least)) least = quota;
  };
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,cpuacct:/a/b" (v1) or "0::/a/b" (v2)
    size_t a = line.find(':'), b = line.find(':', a + 1);
    if (b == std::string::npos) continue;
    std::string controllers = "," + line.substr(a + 1, b - a - 1) + ",", path = line.substr(b + 1);
    bool v2 = controllers == ",,";
    if (!v2 && controllers.find(",cpu,") == std::string::npos) continue;
    // In a container the path may be the host's and not exist here; then the root of the mount counts.
    for (;; path.resize(path.find_last_of('/'))) {
      if (path == "/") path.clear();
      if (v2) visit(root + "/sys/fs/cgroup" + path);
      if (!v2) visit(root + "/sys/fs/cgroup/cpu" + path);
      if (path.find('/') == std::string::npos) break;
    }
  }
  return least;
}

int32_t team_size(int32_t requested) {
  int32_t most = std::max<int32_t>(1, int32_t(allowed_cpus().size()));
  double quota = cgroup_cpu_quota();
  if (quota > 0)
    most = std::min(most, std::max(1, int32_t(quota)));  // rounded down: a throttled team is slower
  return requested > 0 ? std::min(requested, most) : most;
}

Team::Team(int32_t threads) {
  int32_t size = team_size(threads);
  if (size > 1) cpus_ = allowed_cpus();  // a single thread goes where the scheduler likes
  try {
    for (int32_t worker = 1; worker < size; ++worker) threads_.emplace_back([this, worker] { work(worker); });
  } catch (const std::system_error& error) {
    stop();
    throw Error(std::string("cannot start a thread: ") + error.what(), "--threads", "a process limit? try fewer");
  }
}

Team::~Team() { stop(); }

void Team::stop() {
  stop_.store(true);
  phase_.fetch_add(1);
  wake();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(const std::function<void()>& fn) {
  PinnedHere pinned(cpus_);
  FlushDenormals flush;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++rouse_;
  }
  if (!threads_.empty()) awake_.notify_all();
  fn();
}

void Team::phase(const Task& task) {
  if (task.n <= 0) return;
  NANO_CHECK(pending_.load() == 0, "a phase inside a phase");
  FlushDenormals flush;
  if (task.n == 1 || threads_.empty()) {
    task.call(task.body, 0, task.n, 0);
    return;
  }
  task_ = task;
  pending_.store(int32_t(threads_.size()));
  phase_.fetch_add(1);
  wake();
  do_range(0);
  wait([this] { return pending_.load() == 0; }, false);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Team::work(int32_t worker) {
  pin(cpus_[size_t(worker)]);
  FlushDenormals flush;
  for (uint32_t seen = 0;; ++seen) {
    wait([&] { return phase_.load() != seen; }, true);
    if (stop_.load()) return;
    do_range(worker);
    if (pending_.fetch_sub(1) == 1) wake();
  }
}

void Team::do_range(int32_t worker) {
  const int64_t begin = range_begin(task_.n, worker), end = range_end(task_.n, worker);
  if (begin == end) return;
  try {
    task_.call(task_.body, begin, end, worker);
  } catch (...) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

template <class Ready>
void Team::wait(Ready ready, bool rousable) {
  for (;;) {
    auto until = std::chrono::steady_clock::now() + kSpinTime;
    do {
      for (int i = 0; i < 64; ++i) {
        if (ready()) return;
        cpu_relax();
      }
    } while (std::chrono::steady_clock::now() < until);
    // wake() changes what ready() reads and then looks at sleeping_; here it is the other way round (both
    // sequentially consistent), so one of the two sees the other.
    std::unique_lock<std::mutex> lock(mutex_);
    uint64_t rouse = rouse_;
    sleeping_.fetch_add(1);
    awake_.wait(lock, [&] { return ready() || (rousable && rouse != rouse_); });
    sleeping_.fetch_sub(1);
  }
}

void Team::wake() {
  if (sleeping_.load() == 0) return;
  std::lock_guard<std::mutex> lock(mutex_);  // a sleeper is either before its check or in wait()
  awake_.notify_all();
}

}  // namespace nano
