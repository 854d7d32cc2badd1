// What the control groups (v1 or v2) that this process is in allow it: containers and batch systems set limits there
// that are far below the machine's own. A limit of an outer group holds for the inner ones too, so the least counts.
// `root` stands before /sys/fs/cgroup and /proc/self/cgroup (tests). Not here: the affinity mask (base/team.h).
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

namespace nano {

// The least of the limits that read(folder) finds along the path of this controller's groups; 0 = no limit.
template <class Read>
double least_cgroup_limit(const std::string& controller, const std::string& root, Read&& read) {
  double least = 0;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,cpuacct:/a/b" (v1) or "0::/a/b" (v2)
    const size_t a = line.find(':'), b = line.find(':', a + 1);
    if (b == std::string::npos) continue;
    const std::string controllers = "," + line.substr(a + 1, b - a - 1) + ",";
    const bool v2 = controllers == ",,";
    if (!v2 && controllers.find("," + controller + ",") == std::string::npos) continue;
    // In a container the path may be the host's and not exist here; then the root of the mount counts.
    std::filesystem::path path = line.substr(b + 1), last;
    for (; path != last; last = std::exchange(path, path.parent_path())) {
      const double limit = read(root + "/sys/fs/cgroup" + (v2 ? "" : "/" + controller) + path.string());
      if (limit > 0 && (least == 0 || limit < least)) least = limit;
    }
  }
  return least;
}

// CPUs' worth of time, a fraction perhaps; 0 = no limit.
inline double cgroup_cpu_quota(const std::string& root = "") {
  return least_cgroup_limit("cpu", root, [](const std::string& folder) {
    double quota = 0, period = 0;
    std::string first;
    if (std::ifstream v2(folder + "/cpu.max"); v2 >> first >> period) {  // "max 100000" or "150000 100000"
      quota = std::atof(first.c_str());                                  // "max": 0
    } else {                                                             // two files, -1 for no limit
      std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
      std::ifstream(folder + "/cpu.cfs_period_us") >> period;
    }
    return quota > 0 && period > 0 ? quota / period : 0;
  });
}

// Bytes; 0 = no limit.
inline double cgroup_memory_limit(const std::string& root = "") {
  return least_cgroup_limit("memory", root, [](const std::string& folder) {
    double bytes = 0;
    for (const char* file : {"/memory.max", "/memory.limit_in_bytes"})
      if (std::ifstream in(folder + file); in) in >> bytes;  // "max": 0
    return bytes;
  });
}

}  // namespace nano
