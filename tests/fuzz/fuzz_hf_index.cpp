// Any bytes as the model.safetensors.index.json of a checkpoint whose other files are good: an Error or the model.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/error.h"          // Error
#include "checkpoint/weights.h"  // open_hf
#include "checkpoint_files.h"    // TempDir, copy_checkpoint, write_bytes

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const nano_test::TempDir dir;
  if (!std::filesystem::exists(dir.file("config.json")))
    nano_test::copy_checkpoint("gemma3-fp32-sharded", dir);
  nano_test::write_bytes(dir.file("model.safetensors.index.json"),
                         std::string(reinterpret_cast<const char*>(data), size));
  try {
    nano::open_hf(dir.path());
  } catch (const nano::Error&) {
  }
  return 0;
}
