#include "checkpoint/weights.h"

#include <filesystem>

namespace nano {

std::unique_ptr<Weights> open_weights(const std::string& path, bool dummy, uint64_t seed) {
  if (dummy) return open_dummy(path, seed);
  std::error_code unreadable;  // then it is no directory for us, and opening the file says why
  if (std::filesystem::is_directory(path, unreadable)) return open_hf(path);
  return open_gguf(path);
}

}  // namespace nano
