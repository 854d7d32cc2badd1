#include "checkpoint/foreign.h"

#include <cstring>

#include "base/error.h"  // Error

namespace nano {

std::string shown_name(std::string_view name) {
  constexpr size_t kShown = 80;
  std::string out = "'";
  for (char c : name.substr(0, kShown)) out += static_cast<unsigned char>(c) < 32 || c == 127 ? '?' : c;
  if (name.size() > kShown) out += "…";
  return out + "'";
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

void check_not_lfs_pointer(const uint8_t* data, size_t size, const std::string& path) {
  constexpr std::string_view kStart = "version https://git-lfs";
  if (size < kStart.size() || std::memcmp(data, kStart.data(), kStart.size()) != 0) return;
  throw Error("this is a Git LFS pointer, not the weights", path, "fetch the file itself: git lfs pull");
}

}  // namespace nano
