#include "checkpoint/gguf.h"

#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "base/error.h"          // Error
#include "checkpoint/foreign.h"  // check_places, shown_name
#include "quant/ggml_blocks.h"   // block_format

namespace nano {

namespace {

// Ids of value types.
enum : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

constexpr const char* kValueNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                       "bool", "string", "array", "u64", "i64", "f64"};
constexpr uint64_t kValueBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8};  // of a string: at least

// Ids of element types.
struct TypeRow {
  uint32_t id;
  Source source;
  DType dtype = DType::f32;
};
constexpr TypeRow kTypes[] = {{0, Source::dense, DType::f32},
                              {1, Source::dense, DType::f16},
                              {30, Source::dense, DType::bf16},
                              {2, Source::q4_0},
                              {3, Source::q4_1},
                              {6, Source::q5_0},
                              {7, Source::q5_1},
                              {8, Source::q8_0},
                              {10, Source::q2_k},
                              {11, Source::q3_k},
                              {12, Source::q4_k},
                              {13, Source::q5_k},
                              {14, Source::q6_k}};

template <class T>
T load(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;         // a key of one byte and a value of one byte
constexpr uint64_t kMinInfoBytes = 8 + 1 + 4 + 8 + 4 + 8;  // a name of one byte and one dimension

}  // namespace

// Walks the file; every read is checked against the end.
struct GgufFile::Reader {
  const GgufFile& file;
  uint64_t at;

  uint64_t left() const { return file.size_ - at; }
  const uint8_t* take(uint64_t bytes, const std::string& what) {
    if (bytes > left())
      file.fail(
          fmt::format("truncated: {} at offset {} needs {} bytes, but the file has {} and only {} are left",
                      what, at, bytes, file.size_, left()),
          "the file is damaged or the download was cut short");
    at += bytes;
    return file.data_ + at - bytes;
  }
  template <class T>
  T number(const std::string& what) {
    return load<T>(take(sizeof(T), what));
  }
  std::string string(const std::string& what) {
    const auto length = number<uint64_t>("length of " + what);
    return {reinterpret_cast<const char*>(take(length, what)), size_t(length)};
  }
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

void GgufFile::fail(const std::string& problem, const std::string& hint) const {
  throw Error(problem, path_, hint);
}

void GgufFile::check_start() const {
  if (size_ < 4 || std::memcmp(data_, "GGUF", 4) != 0) fail("not a GGUF file: it does not start with GGUF");
  if (size_ < 24)
    fail(fmt::format("truncated: the header needs 24 bytes, but the file has {}", size_),
         "the download was cut short");
  const auto version = load<uint32_t>(data_ + 4);
  if (version != 0 && (version & 0xffff) == 0)
    fail("a big-endian GGUF file is not supported", "convert it for little-endian machines");
  if (version == 1) fail("GGUF version 1 is not supported", "convert the model again; 2 and 3 work");
  if (version != 2 && version != 3)
    fail(fmt::format("GGUF version {} is not known", version), "2 and 3 work");
}

void GgufFile::parse() {
  check_start();
  Reader in{*this, 8};
  const auto num_tensors = in.number<uint64_t>("tensor count");
  const auto num_values = in.number<uint64_t>("key count");
  if (num_values > in.left() / kMinEntryBytes || num_tensors > in.left() / kMinInfoBytes)
    fail(fmt::format("truncated or damaged: {} keys and {} tensors do not fit in the file's {} bytes",
                     num_values, num_tensors, size_));
  for (uint64_t i = 0; i < num_values; ++i) {
    const uint64_t at = in.at;
    const std::string key = in.string(fmt::format("key {}", i));
    if (key.empty()) fail(fmt::format("empty key at offset {}", at));
    if (!values_.emplace(key, read_value(in, key)).second)
      fail(fmt::format("key {} at offset {} occurs twice", shown_name(key), at));
  }
  if (get_int("split.count", 1) > 1)
    fail("split GGUF files are not supported", "merge the parts first: llama-gguf-split --merge");
  const int64_t alignment = get_int("general.alignment", 32);
  if (alignment < 1 || alignment > (int64_t(1) << 30) || (alignment & (alignment - 1)) != 0)
    fail(fmt::format("general.alignment is {}, not a power of two", alignment));

  std::vector<TensorPlace> places;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    uint64_t offset;
    const GgufTensor t = read_tensor_info(in, offset);
    if (!index_.emplace(t.name, tensors_.size()).second)
      fail(fmt::format("tensor {} occurs twice", shown_name(t.name)));
    tensors_.push_back(t);
    places.push_back({t.name, offset, uint64_t(t.bytes)});
  }
  const uint64_t data_start = aligned(in.at, uint64_t(alignment));
  check_places(places, uint64_t(alignment), data_start, size_, path_);
  for (size_t i = 0; i < places.size(); ++i) tensors_[i].data = data_ + data_start + places[i].begin;
}

GgufFile::Value GgufFile::read_value(Reader& in, const std::string& key) const {
  const std::string what = "value of key " + shown_name(key);
  Value value;
  value.type = in.number<uint32_t>(what);
  uint64_t count = 1;
  if (value.type == kArray) {
    value.array = true;
    value.type = in.number<uint32_t>(what);
    count = in.number<uint64_t>(what);
  }
  if (value.type == kArray) fail(fmt::format("key {} holds an array of arrays", shown_name(key)));
  if (value.type > kF64)
    fail(fmt::format("key {} has the unknown value type {}", shown_name(key), value.type));
  const uint64_t width = kValueBytes[value.type];
  if (count > in.left() / width)
    fail(fmt::format("truncated or damaged: key {} claims {} values of type {}, but only {} bytes are left",
                     shown_name(key), count, kValueNames[value.type], in.left()));
  value.count = int64_t(count);
  value.data = data_ + in.at;
  if (value.type != kString) in.take(count * width, what);
  for (uint64_t i = 0; value.type == kString && i < count; ++i) in.take(in.number<uint64_t>(what), what);
  for (uint64_t i = 0; value.type == kBool && i < count; ++i)
    if (value.data[i] > 1) fail(fmt::format("key {} holds a bool that is neither 0 nor 1", shown_name(key)));
  return value;
}

GgufTensor GgufFile::read_tensor_info(Reader& in, uint64_t& offset) const {
  GgufTensor t;
  const uint64_t at = in.at;
  t.name = in.string("tensor name");
  const std::string what = fmt::format("tensor {} at offset {}", shown_name(t.name), at);
  if (t.name.empty() || t.name.size() > 63)
    fail(fmt::format("{} has a name of {} bytes; 1 to 63 are allowed", what, t.name.size()));
  const auto num_dims = in.number<uint32_t>(what);
  if (num_dims < 1 || num_dims > 4)
    fail(fmt::format("{} has {} dimensions; 1 to 4 are allowed", what, num_dims));
  t.shape.resize(num_dims);
  int64_t elements = 1;
  bool overflow = false;
  for (uint32_t d = 0; d < num_dims; ++d) {
    const auto extent = in.number<uint64_t>(what);
    if (extent == 0 || extent > uint64_t(std::numeric_limits<int64_t>::max()))
      fail(fmt::format("{} has a dimension of {}", what, extent));
    t.shape[num_dims - 1 - d] = int64_t(extent);  // the file has the fastest first
    overflow |= __builtin_mul_overflow(elements, int64_t(extent), &elements);
  }
  const auto id = in.number<uint32_t>(what);
  const TypeRow* type = nullptr;
  for (const TypeRow& row : kTypes)
    if (row.id == id) type = &row;
  if (!type)
    fail(fmt::format("{} has the type id {}, which is not supported", what, id),
         "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and Q2_K to Q6_K are");
  t.source = type->source;
  t.dtype = type->dtype;
  int64_t block_elems = 1, block_bytes = dtype_bytes(t.dtype);
  if (t.source != Source::dense) {
    const BlockFormat& format = block_format(t.source);
    block_elems = format.elems, block_bytes = format.bytes;
    if (t.shape.back() % block_elems != 0)
      fail(fmt::format("{}: rows of {} elements are not a multiple of the {} block of {}", what,
                       t.shape.back(), format.name, block_elems));
  }
  if (overflow || __builtin_mul_overflow(elements / block_elems, block_bytes, &t.bytes))
    fail(what + ": its size in bytes overflows");
  offset = in.number<uint64_t>(what);
  return t;
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

// ---- values ----

bool GgufFile::is_array(std::string_view key) const { return has(key) && require(key).array; }

const GgufFile::Value& GgufFile::require(std::string_view key) const {
  const auto it = values_.find(key);
  if (it == values_.end()) fail("key " + shown_name(key) + " is missing");
  return it->second;
}

std::string_view GgufFile::scalar(std::string_view key) const {
  if (const Value& value = require(key); value.array) wrong_type(key, value, "one value");
  return key;
}

void GgufFile::wrong_type(std::string_view key, const Value& value, const char* wanted) const {
  fail(fmt::format("key {} is {}{}, not {}", shown_name(key), value.array ? "an array of " : "",
                   kValueNames[value.type], wanted));
}

std::vector<int64_t> GgufFile::get_ints(std::string_view key) const {
  const Value& value = require(key);
  std::vector<int64_t> out;
  out.reserve(size_t(value.count));
  for (int64_t i = 0; i < value.count; ++i) {
    const uint8_t* p = value.data + uint64_t(i) * kValueBytes[value.type];
    switch (value.type) {
      case kU8: out.push_back(load<uint8_t>(p)); break;
      case kI8: out.push_back(load<int8_t>(p)); break;
      case kU16: out.push_back(load<uint16_t>(p)); break;
      case kI16: out.push_back(load<int16_t>(p)); break;
      case kU32: out.push_back(load<uint32_t>(p)); break;
      case kI32: out.push_back(load<int32_t>(p)); break;
      case kI64: out.push_back(load<int64_t>(p)); break;
      case kU64:
        out.push_back(load<int64_t>(p));
        if (out.back() < 0)
          fail(fmt::format("key {} is {}, which is too large", shown_name(key), load<uint64_t>(p)));
        break;
      default: wrong_type(key, value, "an integer");
    }
  }
  return out;
}

std::vector<double> GgufFile::get_floats(std::string_view key) const {
  const Value& value = require(key);
  if (value.type != kF32 && value.type != kF64) wrong_type(key, value, "a floating-point number");
  std::vector<double> out;
  out.reserve(size_t(value.count));
  for (int64_t i = 0; i < value.count; ++i)
    out.push_back(value.type == kF32 ? double(load<float>(value.data + 4 * i))
                                     : load<double>(value.data + 8 * i));
  return out;
}

std::vector<bool> GgufFile::get_bools(std::string_view key) const {
  const Value& value = require(key);
  if (value.type != kBool) wrong_type(key, value, "bools");
  return std::vector<bool>(value.data, value.data + value.count);
}

std::vector<double> GgufFile::get_numbers(std::string_view key) const {
  const uint32_t type = require(key).type;
  if (type == kF32 || type == kF64) return get_floats(key);
  if (type == kBool) {
    const std::vector<bool> bools = get_bools(key);
    return {bools.begin(), bools.end()};
  }
  const std::vector<int64_t> ints = get_ints(key);
  return {ints.begin(), ints.end()};
}

std::vector<std::string> GgufFile::get_strings(std::string_view key) const {
  const Value& value = require(key);
  if (value.type != kString) wrong_type(key, value, "strings");
  std::vector<std::string> out;
  out.reserve(size_t(value.count));
  const uint8_t* p = value.data;
  for (int64_t i = 0; i < value.count; ++i) {
    const auto length = load<uint64_t>(p);
    out.emplace_back(reinterpret_cast<const char*>(p + 8), size_t(length));
    p += 8 + length;
  }
  return out;
}

}  // namespace nano
