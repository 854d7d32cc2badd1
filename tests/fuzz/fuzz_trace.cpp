// Any bytes as a trace: an Error, or a summary and a chart of it.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "app/cli.h"      // trace_summary_command
#include "base/error.h"   // Error
#include "memory_file.h"  // MemoryFile

namespace {

void summarise(const std::string& path, const char* form) {
  try {
    nano::trace_summary_command({path, form});
  } catch (const nano::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  if (std::freopen("/dev/null", "w", stdout) == nullptr) std::abort();  // the summaries
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const nano_test::MemoryFile file(data, size);
  summarise(file.path(), "--no-json");
  summarise(file.path(), "--json");
  return 0;
}
