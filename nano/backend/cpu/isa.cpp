#include "backend/cpu/isa.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"  // Error

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace nano {

namespace {

struct Feature {
  const char* name;  // as in /proc/cpuinfo
  bool here;
};

#if defined(__x86_64__)
enum Register { eax, ebx, ecx, edx };

bool cpuid_bit(uint32_t leaf, uint32_t subleaf, Register from, int bit) {
  uint32_t r[4];
  return __get_cpuid_count(leaf, subleaf, &r[eax], &r[ebx], &r[ecx], &r[edx]) && (r[from] >> bit & 1);
}

// Registers that the system saves when it switches threads: XCR0 (Intel SDM vol. 1, ch. 13).
bool system_saves(uint32_t mask) {
  if (!cpuid_bit(1, 0, ecx, 27)) return false;
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & mask) == mask;
}
constexpr uint32_t kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000;

// Linux gives a program the tiles when it asks.
bool tiles_allowed() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return system_saves(kTiles) && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// What each level's flags in the Makefile let the compiler use, beyond the levels that it builds on.
std::vector<Feature> features_of(const std::string& level) {
  if (level == "avx2")
    return {{"avx2", system_saves(kYmm) && cpuid_bit(7, 0, ebx, 5)},
            {"fma", cpuid_bit(1, 0, ecx, 12)},
            {"f16c", cpuid_bit(1, 0, ecx, 29)}};
  if (level == "avxvnni") return {{"avx_vnni", cpuid_bit(7, 1, eax, 4)}};
  if (level == "avx512")
    return {{"avx512f", system_saves(kZmm) && cpuid_bit(7, 0, ebx, 16)},
            {"avx512bw", cpuid_bit(7, 0, ebx, 30)},
            {"avx512vl", cpuid_bit(7, 0, ebx, 31)},
            {"avx512_vnni", cpuid_bit(7, 0, ecx, 11)}};
  if (level == "amx")
    return {{"amx_tile", tiles_allowed() && cpuid_bit(7, 0, edx, 24)},
            {"amx_int8", cpuid_bit(7, 0, edx, 25)}};
  return {};
}
#elif defined(__aarch64__)
std::vector<Feature> features_of(const std::string& level) {
  const unsigned long hwcap = getauxval(AT_HWCAP);
  if (level == "neon")
    return {{"asimddp", (hwcap & HWCAP_ASIMDDP) != 0}, {"asimdhp", (hwcap & HWCAP_ASIMDHP) != 0}};
  return {};
}
#else
std::vector<Feature> features_of(const std::string&) { return {}; }
#endif

struct Level {
  const char *name, *builds_on;
  std::unique_ptr<Backend> (*make)(ActivationDtype, int32_t, bool, bool);
  bool tiles;
};

// Each is better than those before it.
const Level kLevels[] = {
    {"plain", "", plain::make_backend, false},
#if defined(__x86_64__)
    {"avx2", "plain", avx2::make_backend, false},    {"avxvnni", "avx2", avxvnni::make_backend, false},
    {"avx512", "avx2", avx512::make_backend, false}, {"amx", "avx512", avx512::make_backend, true},
#elif defined(__aarch64__)
    {"neon", "plain", neon::make_backend, false},
#endif
};

const Level* find(const std::string& name) {
  const auto* it =
      std::find_if(std::begin(kLevels), std::end(kLevels), [&](const Level& l) { return l.name == name; });
  return it == std::end(kLevels) ? nullptr : it;
}

// The names of what the machine lacks; "" = nothing.
std::string missing(const Level& level) {
  std::string names = *level.builds_on ? missing(*find(level.builds_on)) : "";
  for (const Feature& feature : features_of(level.name))
    if (!feature.here) names += (names.empty() ? "" : ", ") + std::string(feature.name);
  return names;
}

}  // namespace

std::vector<std::string> cpu_isas() {
  std::vector<std::string> names;
  for (const Level& level : kLevels)
    if (missing(level).empty()) names.push_back(level.name);
  return names;
}

std::unique_ptr<Backend> make_cpu_backend(ActivationDtype activations, int32_t threads, bool exact_threads,
                                          const std::string& isa) {
  const Level* level = find(isa == "auto" ? cpu_isas().back() : isa);
  if (level == nullptr) {
    std::string names;
    for (const Level& l : kLevels) names += std::string(names.empty() ? "" : ", ") + l.name;
    throw Error("'" + isa + "' is no level of this processor family", "--cpu-isa",
                "there are: auto, " + names);
  }
  if (const std::string names = missing(*level); !names.empty())
    throw Error("this machine, or its system, has no " + names, "--cpu-isa " + isa,
                "leave the flag out: the best that is here is " + cpu_isas().back());
  return level->make(activations, threads, exact_threads, level->tiles);
}

}  // namespace nano
