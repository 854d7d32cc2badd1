#include "backend/cpu/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>

#include "base/error.h"  // Error

namespace nano {

namespace {
constexpr int64_t kHugePage = int64_t(2) << 20;
constexpr int64_t kMapping = 32 * kHugePage;
}  // namespace

Arena::~Arena() {
  for (const Mapping& m : mappings_) munmap(m.base, size_t(m.bytes));
}

void* Arena::allocate(int64_t bytes) {
  bytes = rounded(std::max<int64_t>(bytes, 1));
  if (bytes > left_) {
    // One huge page more than needed, to begin on a boundary. Pages that are never touched cost nothing.
    int64_t size = std::max(kMapping, (bytes + kHugePage - 1) / kHugePage * kHugePage) + kHugePage;
    void* base = mmap(nullptr, size_t(size), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
      throw Error("out of memory: " + std::to_string(bytes) + " bytes", "cpu backend",
                  "use a smaller model or cache");
    mappings_.push_back({base, size});
    uint8_t* aligned =
        static_cast<uint8_t*>(base) + (kHugePage - int64_t(uintptr_t(base) % kHugePage)) % kHugePage;
    madvise(aligned, size_t(size - kHugePage), MADV_HUGEPAGE);  // advice only: without it all still works
    free_ = aligned;
    left_ = size - kHugePage;
  }
  void* p = free_;
  free_ += bytes;
  left_ -= bytes;
  return p;
}

}  // namespace nano
