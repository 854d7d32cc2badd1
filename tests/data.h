// Where the tests' data lie: tests/ under the repository root, or NANO_TEST_DATA.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "backend/backend.h"  // cpu_isas

// Is this built with a sanitizer that has an allocator of its own?
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define NANO_SANITIZER
#endif
#endif

namespace nano_test {

// Levels of instructions to test at: all that the machine has; under a sanitizer, which is slow, only the best.
inline std::vector<std::string> tested_isas() {
  std::vector<std::string> isas = nano::cpu_isas();
#ifdef NANO_SANITIZER
  isas = {isas.back()};
#endif
  return isas;
}

inline std::string data_path(const std::string& name) {
  const char* root = std::getenv("NANO_TEST_DATA");
  return (root ? std::string(root) : std::string("tests")) + "/" + name;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace nano_test
