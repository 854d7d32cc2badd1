#include "checkpoint/gguf.h"

#include <cstring>
#include <limits>

#include "base/error.h"          // Error
#include "checkpoint/foreign.h"  // check_not_lfs_pointer, shown_name

namespace nano {

namespace {

// Ids of value types.
enum : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

constexpr const char* kValueNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                       "bool", "string", "array", "u64", "i64", "f64"};
constexpr uint64_t kValueBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct TypeRow {
  GgmlType type;
  const char* name;
  int64_t elems, bytes;
};
constexpr TypeRow kTypes[] = {
    {GgmlType::f32, "F32", 1, 4},       {GgmlType::f16, "F16", 1, 2},
    {GgmlType::bf16, "BF16", 1, 2},     {GgmlType::q4_0, "Q4_0", 32, 18},
    {GgmlType::q4_1, "Q4_1", 32, 20},   {GgmlType::q5_0, "Q5_0", 32, 22},
    {GgmlType::q5_1, "Q5_1", 32, 24},   {GgmlType::q8_0, "Q8_0", 32, 34},
    {GgmlType::q2_k, "Q2_K", 256, 84},  {GgmlType::q3_k, "Q3_K", 256, 110},
    {GgmlType::q4_k, "Q4_K", 256, 144}, {GgmlType::q5_k, "Q5_K", 256, 176},
    {GgmlType::q6_k, "Q6_K", 256, 210},
};
const TypeRow* find_type(uint32_t id) {
  for (const TypeRow& row : kTypes)
    if (uint32_t(row.type) == id) return &row;
  return nullptr;
}
const TypeRow& type_row(GgmlType type) {
  const TypeRow* row = find_type(uint32_t(type));
  NANO_CHECK(row, "GGML type");
  return *row;
}

template <class T>
T load(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;         // a key of one byte and a value of one byte
constexpr uint64_t kMinInfoBytes = 8 + 1 + 4 + 8 + 4 + 8;  // a name of one byte and one dimension

}  // namespace

const char* ggml_type_name(GgmlType type) { return type_row(type).name; }
int64_t ggml_block_elems(GgmlType type) { return type_row(type).elems; }
int64_t ggml_block_bytes(GgmlType type) { return type_row(type).bytes; }

// Walks the file; every read is checked against the end.
struct GgufFile::Reader {
  const uint8_t* data;
  uint64_t size, at;
  const std::string& path;

  uint64_t left() const { return size - at; }
  const uint8_t* take(uint64_t bytes, const std::string& what) {
    if (bytes > left())
      throw Error("truncated: " + what + " at offset " + std::to_string(at) + " needs " +
                      std::to_string(bytes) + " bytes, but the file has " + std::to_string(size) +
                      " and only " + std::to_string(left()) + " are left",
                  path, "the file is damaged or the download was cut short");
    const uint8_t* p = data + at;
    at += bytes;
    return p;
  }
  template <class T>
  T number(const std::string& what) {
    return load<T>(take(sizeof(T), what));
  }
  std::string string(const std::string& what) {
    const uint64_t length = number<uint64_t>("length of " + what);
    const uint8_t* p = take(length, what);
    return {reinterpret_cast<const char*>(p), size_t(length)};
  }
};

struct GgufFile::RawTensor {
  std::string name;
  const TypeRow* type;
  std::vector<int64_t> shape;
  uint64_t offset, bytes;
};

GgufFile::GgufFile(const std::string& path) : file_(std::make_unique<MappedFile>(path)), path_(path) {
  data_ = file_->data();
  size_ = file_->size();
  parse();
}

GgufFile::GgufFile(const uint8_t* data, size_t size, const std::string& name)
    : data_(data), size_(size), path_(name) {
  parse();
}

void GgufFile::check_start() const {
  check_not_lfs_pointer(data_, size_, path_);
  if (size_ < 4 || std::memcmp(data_, "GGUF", 4) != 0)
    throw Error("not a GGUF file: it does not start with GGUF", path_);
  if (size_ < 24)
    throw Error("truncated: the header needs 24 bytes, but the file has " + std::to_string(size_), path_,
                "the download was cut short");
  const uint32_t version = load<uint32_t>(data_ + 4);
  if ((version & 0xffff) == 0)
    throw Error("a big-endian GGUF file is not supported", path_, "convert it for little-endian machines");
  if (version == 1)
    throw Error("GGUF version 1 is not supported", path_, "convert the model again; 2 and 3 work");
  if (version != 2 && version != 3)
    throw Error("GGUF version " + std::to_string(version) + " is not known", path_, "2 and 3 work");
}

void GgufFile::parse() {
  check_start();
  Reader in{data_, size_, 8, path_};
  const uint64_t num_tensors = in.number<uint64_t>("tensor count");
  const uint64_t num_values = in.number<uint64_t>("key count");
  if (num_values > in.left() / kMinEntryBytes || num_tensors > in.left() / kMinInfoBytes)
    throw Error("truncated or damaged: " + std::to_string(num_values) + " keys and " +
                    std::to_string(num_tensors) + " tensors do not fit in the file's " +
                    std::to_string(size_) + " bytes",
                path_);
  for (uint64_t i = 0; i < num_values; ++i) {
    const uint64_t at = in.at;
    std::string key = in.string("key " + std::to_string(i));
    if (key.empty()) throw Error("empty key at offset " + std::to_string(at), path_);
    Value value = read_value(in, key);
    if (!values_.emplace(key, value).second)
      throw Error("key " + shown_name(key) + " at offset " + std::to_string(at) + " occurs twice", path_);
  }
  if (get_int("split.count", 1) > 1)
    throw Error("split GGUF files are not supported", path_,
                "merge the parts first: llama-gguf-split --merge");

  const int64_t alignment = get_int("general.alignment", 32);
  if (alignment < 1 || alignment > (int64_t(1) << 30) || (alignment & (alignment - 1)) != 0)
    throw Error("general.alignment is " + std::to_string(alignment) + ", not a power of two", path_);
  std::vector<RawTensor> raw;
  for (uint64_t i = 0; i < num_tensors; ++i) raw.push_back(read_tensor_info(in));
  const uint64_t mask = uint64_t(alignment) - 1;
  uint64_t expected = 0;  // where the next tensor must lie, from the start of the data
  for (const RawTensor& t : raw) {
    if (t.offset != expected)
      throw Error("tensor " + shown_name(t.name) + " lies at offset " + std::to_string(t.offset) +
                      " of the data, not at " + std::to_string(expected) +
                      ": tensors overlap or leave a hole",
                  path_);
    if (t.bytes > std::numeric_limits<uint64_t>::max() / 4 - expected)
      throw Error("sizes up to tensor " + shown_name(t.name) + " overflow", path_);
    expected += (t.bytes + mask) & ~mask;
  }
  place_tensors(raw, (in.at + mask) & ~mask);
}

GgufFile::Value GgufFile::read_value(Reader& in, const std::string& key) const {
  const std::string what = "value of key " + shown_name(key);
  Value value;
  value.type = in.number<uint32_t>(what);
  if (value.type == kArray) {
    value.array = true;
    value.type = in.number<uint32_t>(what);
    const uint64_t count = in.number<uint64_t>(what);
    // The smallest element has one byte, so a larger count is caught here and fits int64_t.
    if (value.type < kArray && count > in.left())
      throw Error("truncated or damaged: key " + shown_name(key) + " claims an array of " +
                      std::to_string(count) + " elements, but " + std::to_string(in.left()) +
                      " bytes are left",
                  in.path);
    value.count = int64_t(count);
  }
  if (value.type > kF64 || value.type == kArray)
    throw Error("key " + shown_name(key) + " at offset " + std::to_string(in.at) + " has " +
                    (value.type == kArray ? "an array of arrays"
                                          : "the unknown value type " + std::to_string(value.type)),
                in.path);
  value.data = in.data + in.at;
  if (value.type == kString) {
    for (int64_t i = 0; i < value.count; ++i) in.take(in.number<uint64_t>(what), what);
    return value;
  }
  const uint64_t width = kValueBytes[value.type];
  if (uint64_t(value.count) > in.left() / width) in.take(in.left() + 1, what);  // throws
  in.take(uint64_t(value.count) * width, what);
  for (int64_t i = 0; value.type == kBool && i < value.count; ++i)
    if (value.data[i] > 1)
      throw Error("key " + shown_name(key) + " holds a bool that is neither 0 nor 1", in.path);
  return value;
}

GgufFile::RawTensor GgufFile::read_tensor_info(Reader& in) const {
  RawTensor t;
  const uint64_t at = in.at;
  t.name = in.string("tensor name");
  const std::string what = "tensor " + shown_name(t.name);
  const std::string where_text = " at offset " + std::to_string(at);
  if (t.name.empty() || t.name.size() > 63)
    throw Error(
        what + where_text + " has a name of " + std::to_string(t.name.size()) + " bytes; 1 to 63 are allowed",
        path_);
  const uint32_t num_dims = in.number<uint32_t>(what);
  if (num_dims < 1 || num_dims > 4)
    throw Error(what + where_text + " has " + std::to_string(num_dims) + " dimensions; 1 to 4 are allowed",
                path_);
  t.shape.resize(num_dims);
  int64_t rows = 1;
  for (uint32_t d = 0; d < num_dims; ++d) {
    const uint64_t extent = in.number<uint64_t>(what);
    if (extent == 0 || extent > uint64_t(std::numeric_limits<int64_t>::max()))
      throw Error(what + where_text + " has a dimension of " + std::to_string(extent), path_);
    t.shape[num_dims - 1 - d] = int64_t(extent);  // the file has the fastest first
    if (d == 0) continue;
    if (rows > std::numeric_limits<int64_t>::max() / int64_t(extent))
      throw Error(what + where_text + ": the product of its dimensions overflows", path_);
    rows *= int64_t(extent);
  }
  const uint32_t id = in.number<uint32_t>(what);
  t.type = find_type(id);
  if (!t.type)
    throw Error(what + where_text + " has the type id " + std::to_string(id) + ", which is not supported",
                path_, "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and Q2_K to Q6_K are");
  const int64_t row = t.shape.back();
  if (row % t.type->elems != 0)
    throw Error(what + where_text + ": rows of " + std::to_string(row) +
                    " elements are not a multiple of the " + t.type->name + " block of " +
                    std::to_string(t.type->elems),
                path_);
  const int64_t blocks = row / t.type->elems;
  if (blocks > std::numeric_limits<int64_t>::max() / t.type->bytes / rows)
    throw Error(what + where_text + ": its size in bytes overflows", path_);
  t.bytes = uint64_t(blocks * t.type->bytes * rows);
  t.offset = in.number<uint64_t>(what);
  return t;
}

void GgufFile::place_tensors(const std::vector<RawTensor>& raw, uint64_t data_start) {
  if (raw.empty()) return;
  const uint64_t needed = data_start + raw.back().offset + raw.back().bytes;
  for (const RawTensor& t : raw) {
    const uint64_t begin = data_start + t.offset;
    if (begin > size_ || t.bytes > size_ - begin)
      throw Error("truncated: tensor " + shown_name(t.name) + " lies at bytes " + std::to_string(begin) +
                      " to " + std::to_string(begin + t.bytes) + "; the file should have " +
                      std::to_string(needed) + " bytes but has " + std::to_string(size_),
                  path_, "the download was cut short: fetch it again");
    if (!index_.emplace(t.name, tensors_.size()).second)
      throw Error("tensor " + shown_name(t.name) + " occurs twice", path_);
    tensors_.push_back({t.name, t.type->type, t.shape, data_ + begin, int64_t(t.bytes)});
  }
}

const std::string& GgufFile::path() const { return path_; }
const std::vector<GgufTensor>& GgufFile::tensors() const { return tensors_; }
const MappedFile* GgufFile::mapping() const { return file_.get(); }

const GgufTensor* GgufFile::find(std::string_view name) const {
  auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

// ---- values ----

const GgufFile::Value* GgufFile::lookup(std::string_view key) const {
  auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

bool GgufFile::has(std::string_view key) const { return lookup(key) != nullptr; }

const GgufFile::Value& GgufFile::require(std::string_view key) const {
  const Value* value = lookup(key);
  if (!value) throw Error("key " + shown_name(key) + " is missing", path_);
  return *value;
}

const GgufFile::Value& GgufFile::require_scalar(std::string_view key) const {
  const Value& value = require(key);
  if (value.array) wrong_type(key, value, "one value");
  return value;
}

void GgufFile::wrong_type(std::string_view key, const Value& value, const char* wanted) const {
  throw Error("key " + shown_name(key) + " is " + (value.array ? "an array of " : "") +
                  kValueNames[value.type] + ", not " + wanted,
              path_);
}

int64_t GgufFile::int_at(std::string_view key, const Value& value, int64_t i) const {
  const uint8_t* p = value.data + uint64_t(i) * kValueBytes[value.type];
  switch (value.type) {
    case kU8: return load<uint8_t>(p);
    case kI8: return load<int8_t>(p);
    case kU16: return load<uint16_t>(p);
    case kI16: return load<int16_t>(p);
    case kU32: return load<uint32_t>(p);
    case kI32: return load<int32_t>(p);
    case kI64: return load<int64_t>(p);
    case kU64: {
      const uint64_t u = load<uint64_t>(p);
      if (u > uint64_t(std::numeric_limits<int64_t>::max()))
        throw Error("key " + shown_name(key) + " is " + std::to_string(u) + ", which is too large", path_);
      return int64_t(u);
    }
    default: wrong_type(key, value, "an integer");
  }
}

double GgufFile::float_at(std::string_view key, const Value& value, int64_t i) const {
  const uint8_t* p = value.data + uint64_t(i) * kValueBytes[value.type];
  if (value.type == kF32) return double(load<float>(p));
  if (value.type == kF64) return load<double>(p);
  wrong_type(key, value, "a floating-point number");
}

int64_t GgufFile::get_int(std::string_view key) const { return int_at(key, require_scalar(key), 0); }
int64_t GgufFile::get_int(std::string_view key, int64_t fallback) const {
  return has(key) ? get_int(key) : fallback;
}
double GgufFile::get_float(std::string_view key) const { return float_at(key, require_scalar(key), 0); }
double GgufFile::get_float(std::string_view key, double fallback) const {
  return has(key) ? get_float(key) : fallback;
}

bool GgufFile::get_bool(std::string_view key, bool fallback) const {
  if (!has(key)) return fallback;
  const Value& value = require_scalar(key);
  if (value.type != kBool) wrong_type(key, value, "a bool");
  return value.data[0] != 0;
}

std::string GgufFile::get_string(std::string_view key) const {
  require_scalar(key);
  return get_strings(key)[0];
}
std::string GgufFile::get_string(std::string_view key, std::string_view fallback) const {
  return has(key) ? get_string(key) : std::string(fallback);
}

std::vector<std::string> GgufFile::get_strings(std::string_view key) const {
  const Value& value = require(key);
  if (value.type != kString) wrong_type(key, value, "strings");
  std::vector<std::string> out;
  out.reserve(size_t(value.count));
  const uint8_t* p = value.data;
  for (int64_t i = 0; i < value.count; ++i) {
    const uint64_t length = load<uint64_t>(p);
    out.emplace_back(reinterpret_cast<const char*>(p + 8), size_t(length));
    p += 8 + length;
  }
  return out;
}

std::vector<int64_t> GgufFile::get_ints(std::string_view key) const {
  const Value& value = require(key);
  std::vector<int64_t> out;
  for (int64_t i = 0; i < value.count; ++i) out.push_back(int_at(key, value, i));
  return out;
}

std::vector<double> GgufFile::get_floats(std::string_view key) const {
  const Value& value = require(key);
  std::vector<double> out;
  for (int64_t i = 0; i < value.count; ++i) out.push_back(float_at(key, value, i));
  return out;
}

std::vector<bool> GgufFile::get_bools(std::string_view key) const {
  const Value& value = require(key);
  if (value.type != kBool) wrong_type(key, value, "bools");
  return std::vector<bool>(value.data, value.data + value.count);
}

bool GgufFile::is_array(std::string_view key) const {
  const Value* value = lookup(key);
  return value && value->array;
}

std::vector<std::string> GgufFile::keys() const {
  std::vector<std::string> out;
  for (const auto& [key, value] : values_) out.push_back(key);
  return out;
}

}  // namespace nano
