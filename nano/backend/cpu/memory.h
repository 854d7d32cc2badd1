// Memory of the cpu backend: zeroed, 64-aligned, in few large mappings of huge pages (a plain 4 KB mapping costs a
// third of the bandwidth when weights are streamed). Nothing is freed before the end.
#pragma once

#include <cstdint>
#include <vector>

namespace nano {

class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* allocate(int64_t bytes);  // Error when the system has no more
  static int64_t rounded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

 private:
  struct Mapping {
    void* base;
    int64_t bytes;
  };
  std::vector<Mapping> mappings_;
  uint8_t* free_ = nullptr;  // rest of the newest mapping
  int64_t left_ = 0;
};

}  // namespace nano
