// Where the tests' data lie: tests/ under the repository root, or NANO_TEST_DATA.
#pragma once

#include <cstdlib>
#include <string>

// Is this built with a sanitizer that has an allocator of its own?
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define NANO_SANITIZER
#endif
#endif

namespace nano_test {

inline std::string data_path(const std::string& name) {
  const char* root = std::getenv("NANO_TEST_DATA");
  return (root ? std::string(root) : std::string("tests")) + "/" + name;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace nano_test
