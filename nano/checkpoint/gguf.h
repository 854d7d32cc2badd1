// GGUF v2/v3 files: metadata and tensor views over the mapped bytes.
// Source: ggml-org/ggml docs/gguf.md. Every count, offset and size is checked before use; a hostile file is an
// Error that names the key or tensor and the offset.
//
// As strict as llama.cpp: tensors lie in the order of their descriptions without holes or overlaps, keys and names
// are unique, arrays hold no arrays. Looser in one point: the padding after the last tensor may be missing.
// Not here: what the keys mean (weights_gguf.cpp, text/tokenizer), split files, big-endian files.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"  // MappedFile
#include "quant/linear.h"      // Source, DType

namespace nano {

struct GgufTensor {
  std::string name;
  Source source = Source::dense;  // of which block format
  DType dtype = DType::f32;       // of the elements of a dense one
  std::vector<int64_t> shape;     // row-major like everywhere in nano: [out, in] (the file stores [in, out])
  const uint8_t* data = nullptr;
  int64_t bytes = 0;
};

class GgufFile {
 public:
  explicit GgufFile(const std::string& path);                           // opens and checks everything
  GgufFile(const uint8_t* data, size_t size, const std::string& name);  // over memory (tests, fuzzing)

  const std::string& path() const { return path_; }
  const MappedFile* mapping() const { return file_.get(); }  // nullptr over memory
  // In file order; empty for a vocabulary-only file.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find(std::string_view name) const;
  bool has(std::string_view key) const { return values_.find(key) != values_.end(); }
  bool is_array(std::string_view key) const;

  // Typed access. Integers of any width and sign convert when the value fits; Error names the key when it is
  // missing (no default given) or of another type. A list of one is what a scalar gives.
  std::vector<int64_t> get_ints(std::string_view key) const;
  std::vector<double> get_floats(std::string_view key) const;
  std::vector<bool> get_bools(std::string_view key) const;
  std::vector<double> get_numbers(std::string_view key) const;  // any of the three
  std::vector<std::string> get_strings(std::string_view key) const;
  int64_t get_int(std::string_view key) const { return get_ints(scalar(key))[0]; }
  double get_float(std::string_view key) const { return get_floats(scalar(key))[0]; }
  std::string get_string(std::string_view key) const { return get_strings(scalar(key))[0]; }
  int64_t get_int(std::string_view key, int64_t fallback) const { return has(key) ? get_int(key) : fallback; }
  double get_float(std::string_view key, double fallback) const {
    return has(key) ? get_float(key) : fallback;
  }
  bool get_bool(std::string_view key, bool fallback) const {
    return has(key) ? bool(get_bools(scalar(key))[0]) : fallback;
  }
  std::string get_string(std::string_view key, std::string_view fallback) const {
    return has(key) ? get_string(key) : std::string(fallback);
  }

 private:
  // A value stays where it is in the file; it was walked once, so reading it again cannot run out of bounds.
  struct Value {
    uint32_t type = 0;  // of the value, or of each element
    bool array = false;
    int64_t count = 1;
    const uint8_t* data = nullptr;
  };
  struct Reader;

  void parse();
  void check_start() const;
  Value read_value(Reader& in, const std::string& key) const;
  GgufTensor read_tensor_info(Reader& in, uint64_t& offset) const;
  const Value& require(std::string_view key) const;
  std::string_view scalar(std::string_view key) const;  // the key itself; Error when it holds an array
  [[noreturn]] void wrong_type(std::string_view key, const Value& value, const char* wanted) const;
  [[noreturn]] void fail(const std::string& problem, const std::string& hint = "") const;

  std::unique_ptr<MappedFile> file_;
  const uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
  std::string path_;
  std::map<std::string, Value, std::less<>> values_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;  // name → position in tensors_
};

}  // namespace nano
