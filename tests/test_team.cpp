// The thread team: ranges, waking and sleeping, exceptions, limits of the machine. Run under TSan too.
#include "base/team.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <stdexcept>

#include "base/cgroup.h"  // cgroup_cpu_quota, cgroup_memory_limit
#include "catch.h"

using namespace nano;

namespace {

double cpu_seconds() {  // of this process, all threads
  rusage use;
  getrusage(RUSAGE_SELF, &use);
  auto seconds = [](timeval t) { return double(t.tv_sec) + 1e-6 * double(t.tv_usec); };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

// Sizes that are tried on every machine; most have fewer cores than the largest.
constexpr int32_t kSizes[] = {1, 2, 3, 5, 8};

float half_of_the_smallest_normal() {
  volatile float x = 1.17549435e-38f;
  return x * 0.5f;
}

// A folder with the given files under it, removed at the end.
struct FakeRoot {
  std::string path;
  explicit FakeRoot(const std::vector<std::pair<std::string, std::string>>& files) {
    char name[] = "/tmp/nano_test_XXXXXX";
    path = mkdtemp(name);
    for (const auto& [file, text] : files) {
      std::filesystem::path full = path + file;
      std::filesystem::create_directories(full.parent_path());
      std::ofstream(full) << text;
    }
  }
  ~FakeRoot() { std::filesystem::remove_all(path); }
};

}  // namespace

TEST_CASE("each covers [0, n) once, in contiguous ranges, whatever n and the number of workers") {
  for (int32_t size : kSizes) {
    Team team(size, /*exact=*/true);
    REQUIRE(team.size() == size);
    for (int64_t n : {0, 1, 2, 3, 7, 100, 1001}) {
      CAPTURE(n, size);
      std::vector<int> hits(size_t(n), 0);
      std::vector<int> calls(size_t(size), 0);
      std::vector<std::thread::id> threads(static_cast<size_t>(size));
      team.run([&] {
        team.each(n, [&](int64_t begin, int64_t end, int32_t worker) {
          ++calls[size_t(worker)];
          threads[size_t(worker)] = std::this_thread::get_id();
          for (int64_t i = begin; i < end; ++i) ++hits[size_t(i)];
        });
      });
      CHECK(std::count(hits.begin(), hits.end(), 1) == n);
      CHECK(std::count(calls.begin(), calls.end(), 1) == std::min<int64_t>(n, size));
      for (int c : calls) CHECK(c <= 1);
      if (n < size) continue;
      std::sort(threads.begin(), threads.end());
      CHECK(std::unique(threads.begin(), threads.end()) == threads.end());  // each worker is a thread
    }
  }
}

TEST_CASE("members that sit out get nothing, the others all of it, and whoever comes back works again") {
  for (int32_t size : kSizes) {
    Team team(size, /*exact=*/true);
    uint32_t random = 1;
    for (int turn = 0; turn < 300; ++turn) {
      random = random * 1664525 + 1013904223;
      const int32_t active = 1 + int32_t(random >> 16) % size;
      team.set_active(active);
      CAPTURE(size, turn, active);
      std::vector<int> done(101), workers(size_t(size), 0);
      auto step = [&] {
        for (int phase = 0; phase < int(random >> 8) % 3; ++phase)
          team.each(101, [&](int64_t begin, int64_t end, int32_t worker) {
            ++workers[size_t(worker)];
            for (int64_t i = begin; i < end; ++i) ++done[size_t(i)];
          });
      };
      team.run({[](void* f) { (*static_cast<decltype(step)*>(f))(); }, &step});
      const int phases = int(random >> 8) % 3;
      REQUIRE(team.active() == active);
      REQUIRE(done == std::vector<int>(101, phases));
      for (int32_t worker = 0; worker < size; ++worker)
        REQUIRE(workers[size_t(worker)] == (worker < active ? phases : 0));
    }
  }
}

TEST_CASE("phases see each other's writes: many short phases in a step") {
  auto count = [](Team& team, int phases) {
    std::vector<int64_t> values(64, 1), sums(64, 0);
    team.run([&] {
      for (int phase = 0; phase < phases; ++phase) {
        team.each(64, [&](int64_t begin, int64_t end, int32_t) {
          for (int64_t i = begin; i < end; ++i) sums[size_t(i)] = values[size_t(63 - i)] + 1;
        });
        team.each(64, [&](int64_t begin, int64_t end, int32_t) {
          for (int64_t i = begin; i < end; ++i) values[size_t(i)] = sums[size_t(i)];
        });
      }
    });
    CHECK(std::accumulate(values.begin(), values.end(), int64_t(0)) == 64 * (phases + 1));
  };
  Team cores(0), crowd(5, /*exact=*/true);
  count(cores, 2000);
  count(crowd, 200);
}

TEST_CASE("a team works outside run, and from another thread later") {
  Team team(2);
  std::atomic<int64_t> sum{0};
  auto add = [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t i = begin; i < end; ++i) sum += i;
  };
  team.each(10, add);
  std::thread([&] { team.run([&] { team.each(10, add); }); }).join();
  CHECK(sum.load() == 90);
}

TEST_CASE("an exception of any worker arrives at the caller and the team goes on") {
  Team team(3, /*exact=*/true);
  for (int64_t bad : {0, 4, 9}) {  // the first is the caller's, the others are other workers'
    auto body = [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t i = begin; i < end; ++i)
        if (i == bad) throw std::runtime_error("item");
    };
    CHECK_THROWS_AS(team.each(10, body), std::runtime_error);
    CHECK_THROWS_AS(team.run([&] { team.each(10, body); }), std::runtime_error);
  }
  std::atomic<int> done{0};
  team.each(10, [&](int64_t begin, int64_t end, int32_t) { done += int(end - begin); });
  CHECK(done.load() == 10);
}

TEST_CASE("an idle team uses no CPU") {
  Team team(0);
  team.run([&] { team.each(2, [](int64_t, int64_t, int32_t) {}); });
  usleep(5000);  // the 50 µs of spinning are over
  double before = cpu_seconds();
  usleep(200000);
  CHECK(cpu_seconds() - before < 0.05);
}

TEST_CASE("a worker waits asleep while the caller computes alone inside a step") {
  Team team(2);
  double spent = 0;
  team.run([&] {
    usleep(5000);
    double before = cpu_seconds();
    usleep(100000);
    spent = cpu_seconds() - before;
    team.each(2, [](int64_t, int64_t, int32_t) {});
  });
  CHECK(spent < 0.05);
}

TEST_CASE("denormals are zero for every worker, and for the caller only inside") {
  Team team(3, /*exact=*/true);
  CHECK(half_of_the_smallest_normal() != 0.0f);
#if defined(__SSE2__) || defined(__aarch64__)
  std::vector<float> seen(size_t(team.size()), 1.0f);
  auto look = [&](int64_t, int64_t, int32_t worker) { seen[size_t(worker)] = half_of_the_smallest_normal(); };
  team.each(64, look);
  for (float x : seen) CHECK(x == 0.0f);
  float in_step = 1.0f;
  team.run([&] { in_step = half_of_the_smallest_normal(); });
  CHECK(in_step == 0.0f);
#endif
  CHECK(half_of_the_smallest_normal() != 0.0f);
}

TEST_CASE("the caller's affinity is as before after a step") {
  cpu_set_t before, after;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  Team team(0);
  int inside = 0;
  team.run([&] {
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    inside = CPU_COUNT(&set);
  });
  if (team.size() > 1) CHECK(inside == 1);
  REQUIRE(sched_getaffinity(0, sizeof after, &after) == 0);
  CHECK(CPU_EQUAL(&before, &after));
}

TEST_CASE("an exact team has more threads than cores, and none is pinned") {
  cpu_set_t all;
  REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
  std::thread([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(size_t(allowed_cpus()[0]), &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
    CHECK(Team(8, /*exact=*/true).size() == 8);
  }).join();
  Team team(8, /*exact=*/true);
  std::vector<int> cpus(8, 0);
  team.run([&] {
    team.each(8, [&](int64_t, int64_t, int32_t worker) {
      cpu_set_t mine;
      sched_getaffinity(0, sizeof mine, &mine);
      cpus[size_t(worker)] = CPU_COUNT(&mine);
    });
  });
  CHECK(cpus == std::vector<int>(8, CPU_COUNT(&all)));
}

TEST_CASE("never more threads than the affinity mask allows") {
  CHECK(team_size(1) == 1);
  CHECK(team_size(100000) == team_size(0));
  std::thread([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(size_t(allowed_cpus()[0]), &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
    CHECK(team_size(0) == 1);
    Team team(8);
    CHECK(team.size() == 1);
  }).join();
}

TEST_CASE("the quota of control groups, v1 and v2, is the least along the path") {
  FakeRoot v2({{"/proc/self/cgroup", "0::/a/b\n"},
               {"/sys/fs/cgroup/a/b/cpu.max", "max 100000\n"},
               {"/sys/fs/cgroup/a/cpu.max", "150000 100000\n"},
               {"/sys/fs/cgroup/cpu.max", "400000 100000\n"}});
  CHECK(cgroup_cpu_quota(v2.path) == 1.5);
  FakeRoot container({{"/proc/self/cgroup", "0::/\n"}, {"/sys/fs/cgroup/cpu.max", "50000 100000\n"}});
  CHECK(cgroup_cpu_quota(container.path) == 0.5);
  FakeRoot v1({{"/proc/self/cgroup", "4:cpu,cpuacct:/docker/x\n2:cpuset:/\n"},
               {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n"},
               {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}});
  CHECK(cgroup_cpu_quota(v1.path) == 3.0);
  FakeRoot unlimited({{"/proc/self/cgroup", "4:cpu:/\n0::/\n"},
                      {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
                      {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}});
  CHECK(cgroup_cpu_quota(unlimited.path) == 0.0);
  CHECK(cgroup_cpu_quota("/nowhere") == 0.0);
}

TEST_CASE("so is the memory that they allow") {
  FakeRoot v2({{"/proc/self/cgroup", "0::/a/b\n"},
               {"/sys/fs/cgroup/a/b/memory.max", "max\n"},
               {"/sys/fs/cgroup/a/memory.max", "3000000000\n"},
               {"/sys/fs/cgroup/memory.max", "4000000000\n"}});
  CHECK(cgroup_memory_limit(v2.path) == 3e9);
  FakeRoot container({{"/proc/self/cgroup", "0::/\n"}, {"/sys/fs/cgroup/memory.max", "500000\n"}});
  CHECK(cgroup_memory_limit(container.path) == 5e5);
  FakeRoot v1({{"/proc/self/cgroup", "4:cpu,cpuacct:/docker/y\n2:memory:/docker/x\n0::/\n"},
               {"/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "700000\n"},
               {"/sys/fs/cgroup/memory/docker/y/memory.limit_in_bytes", "100\n"},
               {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"}});
  CHECK(cgroup_memory_limit(v1.path) == 7e5);
  FakeRoot unlimited({{"/proc/self/cgroup", "0::/a\n"}, {"/sys/fs/cgroup/a/memory.max", "max\n"}});
  CHECK(cgroup_memory_limit(unlimited.path) == 0.0);
  CHECK(cgroup_memory_limit("/nowhere") == 0.0);
}
