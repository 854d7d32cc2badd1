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

namespace nano {

// GGML block types that can be read; the number is the id in the file.
enum class GgmlType : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  bf16 = 30
};
const char* ggml_type_name(GgmlType type);  // "Q4_0"
int64_t ggml_block_elems(GgmlType type);    // 1, 32 or 256
int64_t ggml_block_bytes(GgmlType type);

struct GgufTensor {
  std::string name;
  GgmlType type;
  std::vector<int64_t> shape;  // row-major like everywhere in nano: [out, in] (the file stores [in, out])
  const uint8_t* data;
  int64_t bytes;
};

class GgufFile {
 public:
  explicit GgufFile(const std::string& path);                           // opens and checks everything
  GgufFile(const uint8_t* data, size_t size, const std::string& name);  // over memory (tests, fuzzing)

  const std::string& path() const;
  const std::vector<GgufTensor>& tensors() const;  // in file order; empty for a vocabulary-only file
  const GgufTensor* find(std::string_view name) const;
  bool has(std::string_view key) const;

  // Typed access. Integers of any width and sign convert when the value fits; Error names the key when it is
  // missing (no default given) or of another type.
  int64_t get_int(std::string_view key) const;
  int64_t get_int(std::string_view key, int64_t fallback) const;
  double get_float(std::string_view key) const;
  double get_float(std::string_view key, double fallback) const;
  bool get_bool(std::string_view key, bool fallback) const;
  std::string get_string(std::string_view key) const;
  std::string get_string(std::string_view key, std::string_view fallback) const;
  std::vector<std::string> get_strings(std::string_view key) const;
  std::vector<int64_t> get_ints(std::string_view key) const;  // a scalar gives one element
  std::vector<double> get_floats(std::string_view key) const;
  std::vector<bool> get_bools(std::string_view key) const;
  bool is_array(std::string_view key) const;
  std::vector<std::string> keys() const;
  const MappedFile* mapping() const;  // nullptr over memory

 private:
  // A value stays where it is in the file; it was walked once, so reading it again cannot run out of bounds.
  struct Value {
    uint32_t type = 0;  // of the value, or of each element
    bool array = false;
    int64_t count = 1;
    const uint8_t* data = nullptr;
  };
  struct Reader;
  struct RawTensor;

  void parse();
  void check_start() const;
  Value read_value(Reader& in, const std::string& key) const;
  RawTensor read_tensor_info(Reader& in) const;
  void place_tensors(const std::vector<RawTensor>& raw, uint64_t data_start);
  const Value* lookup(std::string_view key) const;
  const Value& require(std::string_view key) const;
  const Value& require_scalar(std::string_view key) const;
  [[noreturn]] void wrong_type(std::string_view key, const Value& value, const char* wanted) const;
  int64_t int_at(std::string_view key, const Value& value, int64_t i) const;
  double float_at(std::string_view key, const Value& value, int64_t i) const;

  std::unique_ptr<MappedFile> file_;
  const uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
  std::string path_;
  std::map<std::string, Value, std::less<>> values_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;  // name → position in tensors_
};

}  // namespace nano
