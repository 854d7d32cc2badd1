// Any bytes as a safetensors file: an Error or tensors that lie within the bytes.
#include <cstddef>
#include <cstdint>

#include "base/error.h"              // Error
#include "checkpoint/safetensors.h"  // SafetensorsFile

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const nano::SafetensorsFile file(data, size, "fuzz.safetensors");
    uint64_t sum = 0;
    for (const std::string& name : file.names()) {
      const nano::Tensor* t = file.find(name);  // Error for types that cannot be read
      if (t->bytes() == 0) continue;
      const uint8_t* bytes = static_cast<const uint8_t*>(t->data);
      sum += bytes[0] + bytes[t->bytes() - 1];
    }
    volatile uint64_t keep = sum;  // so that the reads are not optimised away
    (void)keep;
  } catch (const nano::Error&) {
  }
  return 0;
}
