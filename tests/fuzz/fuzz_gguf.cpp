// Any bytes as a GGUF file: an Error or values that can all be read, and then an Error or a model of them.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/error.h"          // Error
#include "checkpoint/gguf.h"     // GgufFile
#include "checkpoint/weights.h"  // open_gguf
#include "memory_file.h"         // MemoryFile

namespace {

// Those of the corpus: a mutation changes their values more often than their names.
constexpr const char* kKeys[] = {
    "general.architecture", "llama.block_count", "general.alignment", "tokens", "f", "b", "scores",
    "split.count"};

template <class F>
void tolerate(F f) {
  try {
    f();
  } catch (const nano::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tolerate([&] {
    const nano::GgufFile file(data, size, "fuzz.gguf");
    uint64_t sum = 0;
    for (const nano::GgufTensor& t : file.tensors()) sum += t.data[0] + t.data[t.bytes - 1];
    for (const char* key : kKeys) {
      tolerate([&] { sum += uint64_t(file.get_int(key)); });
      tolerate([&] { sum += file.get_float(key) > 0; });
      tolerate([&] { sum += file.get_bool(key, false); });
      tolerate([&] { sum += file.get_strings(key).size(); });
      tolerate([&] { sum += file.get_ints(key).size(); });
      tolerate([&] { sum += file.get_floats(key).size(); });
      tolerate([&] { sum += file.get_bools(key).size(); });
    }
    volatile uint64_t keep = sum;  // so that the reads are not optimised away
    (void)keep;
  });
  const nano_test::MemoryFile same(data, size);
  tolerate([&] {
    const std::unique_ptr<nano::Weights> weights = nano::open_gguf(same.path());
    for (const auto& [name, w] : weights->linears()) {
      std::vector<float> row(size_t(w.K));
      nano::decode_rows(w, w.N - 1, 1, row.data());
    }
  });
  return 0;
}
