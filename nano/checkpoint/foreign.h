// Small helpers for files that others wrote: names made safe for messages, pointers taken for weights, and tensors
// that must lie one after the other. It knows no file format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nano {

// The name between quotes: at most 80 bytes of it, control bytes shown as '?'.
std::string shown_name(std::string_view name);
// "a b c" taken apart: for lists of names.
std::vector<std::string> words(const std::string& text);
// The value, if it is from 1 to `most`, or a positive number that a float can hold; else an Error that names the key.
int32_t checked_size(int64_t value, int32_t most, const std::string& key, const std::string& path);
double checked_positive(double value, const std::string& key, const std::string& path);
// Error with both shapes when they differ; `asker` is who wants the other: "config.json asks".
void check_shape(const std::string& name, const std::vector<int64_t>& shape,
                 const std::vector<int64_t>& wanted, const char* asker, const std::string& path);
// Error naming both when the vocabulary under `key` is not as many rows as the embedding has.
void check_vocabulary(int64_t vocabulary, const std::string& key, const std::string& embedding, int64_t rows,
                      const std::string& path);

struct TensorPlace {
  std::string name;
  uint64_t begin, bytes;  // offset from the start of the data
};
// The next multiple of `alignment`, a power of two.
constexpr uint64_t aligned(uint64_t offset, uint64_t alignment) {
  return (offset + alignment - 1) & ~(alignment - 1);
}
// Error, naming the tensor, unless each begins where the one before it ends (after padding), and all end within the
// file, whose data begin at data_start.
void check_places(const std::vector<TensorPlace>& places, uint64_t alignment, uint64_t data_start,
                  uint64_t file_size, const std::string& path);

}  // namespace nano
