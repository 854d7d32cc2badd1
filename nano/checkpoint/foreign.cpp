#include "checkpoint/foreign.h"

#include <cfloat>
#include <iterator>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"  // Error

namespace nano {

std::string shown_name(std::string_view name) {
  constexpr size_t kShown = 80;
  std::string out = "'";
  for (char c : name.substr(0, kShown)) out += static_cast<unsigned char>(c) < 32 || c == 127 ? '?' : c;
  if (name.size() > kShown) out += "…";
  return out + "'";
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

int32_t checked_size(int64_t value, int32_t most, const std::string& key, const std::string& path) {
  if (value < 1 || value > most)
    throw Error(fmt::format("{} is {}, outside 1 … {}", shown_name(key), value, most), path);
  return int32_t(value);
}

double checked_positive(double value, const std::string& key, const std::string& path) {
  if (!(value >= FLT_MIN && value <= FLT_MAX))  // NaN fails too
    throw Error(fmt::format("{} is {}, not a positive finite number", shown_name(key), value), path);
  return value;
}

void check_shape(const std::string& name, const std::vector<int64_t>& shape,
                 const std::vector<int64_t>& wanted, const char* asker, const std::string& path) {
  if (shape != wanted)
    throw Error(fmt::format("tensor {} has shape {}, but {} for {}", shown_name(name), shape, asker, wanted),
                path);
}

void check_vocabulary(int64_t vocabulary, const std::string& key, const std::string& embedding, int64_t rows,
                      const std::string& path) {
  if (vocabulary != rows)
    throw Error(fmt::format("{} is {}, but tensor {} has {} rows", shown_name(key), vocabulary,
                            shown_name(embedding), rows),
                path);
}

void check_places(const std::vector<TensorPlace>& places, uint64_t alignment, uint64_t data_start,
                  uint64_t file_size, const std::string& path) {
  constexpr uint64_t kMost = uint64_t(1) << 62;  // far from overflow, and from any file
  uint64_t end = 0;
  for (const TensorPlace& p : places) {
    const uint64_t expected = aligned(end, alignment);
    if (p.begin != expected)
      throw Error(
          fmt::format("tensor {} lies at offset {} of the data, not at {}: tensors {}", shown_name(p.name),
                      p.begin, expected, p.begin < expected ? "overlap" : "leave a hole"),
          path);
    if (p.bytes > kMost - p.begin)
      throw Error("sizes up to tensor " + shown_name(p.name) + " overflow", path);
    end = p.begin + p.bytes;
  }
  for (const TensorPlace& p : places)
    if (data_start + p.begin + p.bytes > file_size)
      throw Error(
          fmt::format("truncated: tensor {} ends at byte {}; the file should have {} bytes but has {}",
                      shown_name(p.name), data_start + p.begin + p.bytes, data_start + end, file_size),
          path, "the download was cut short: fetch it again");
}

}  // namespace nano
