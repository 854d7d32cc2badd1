#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"          // Error
#include "base/json.h"           // parse_json
#include "checkpoint/foreign.h"  // shown_name, check_not_lfs_pointer

namespace nano {

namespace {

using nlohmann::json;

struct TypeRow {
  const char* name;
  uint64_t bits;
  std::optional<DType> dtype;  // what nano reads; the others may lie in a file unused
};
constexpr TypeRow kTypes[] = {
    {"F32", 32, DType::f32}, {"F16", 16, DType::f16}, {"BF16", 16, DType::bf16}, {"F8_E4M3", 8, DType::e4m3},
    {"I8", 8, DType::i8},    {"U8", 8, DType::u8},    {"I16", 16, DType::i16},   {"I32", 32, DType::i32},
    {"I64", 64, DType::i64}, {"BOOL", 8, {}},         {"U16", 16, {}},           {"U32", 32, {}},
    {"U64", 64, {}},         {"F64", 64, {}},         {"C64", 64, {}},           {"F8_E5M2", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},  {"F8_E5M2FNUZ", 8, {}},  {"F8_E8M0", 8, {}},        {"F4", 4, {}},
    {"F6_E2M3", 6, {}},      {"F6_E3M2", 6, {}},
};

struct Entry {
  std::string name;
  const TypeRow* type;
  std::vector<int64_t> shape;
  uint64_t begin, end;
};

std::string at(const std::string& name) { return "tensor " + shown_name(name); }

// nlohmann's parser keeps the last of two equal keys; here they are an error.
void check_unique_names(std::string_view header, const std::string& path) {
  std::set<std::string> names;
  auto collect = [&](int depth, json::parse_event_t event, json& value) {
    if (depth == 1 && event == json::parse_event_t::key && !names.insert(value.get<std::string>()).second)
      throw Error(at(value.get<std::string>()) + " occurs twice", path);
    return depth <= 1;
  };
  [[maybe_unused]] const json only_names = json::parse(header.begin(), header.end(), collect);
}

std::vector<uint64_t> unsigned_list(const json& entry, const char* key, const std::string& name,
                                    const std::string& path) {
  std::vector<uint64_t> out;
  const auto it = entry.find(key);
  bool good = it != entry.end() && it->is_array();
  if (good)
    for (const json& item : *it) {
      if (!item.is_number_unsigned())
        good = false;
      else
        out.push_back(item.get<uint64_t>());
    }
  if (!good) throw Error(at(name) + ": '" + key + "' is not a list of non-negative integers", path);
  return out;
}

Entry read_entry(const std::string& name, const json& value, const std::string& path) {
  Entry e{name, nullptr, {}, 0, 0};
  if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string())
    throw Error(at(name) + " has no 'dtype'", path);
  const std::string dtype = value["dtype"].get<std::string>();
  for (const TypeRow& row : kTypes)
    if (dtype == row.name) e.type = &row;
  if (!e.type) throw Error(at(name) + " has the unknown element type " + shown_name(dtype), path);

  constexpr uint64_t kMax = uint64_t(std::numeric_limits<int64_t>::max());
  uint64_t bits = e.type->bits;
  for (uint64_t extent : unsigned_list(value, "shape", name, path)) {
    if (extent > kMax || (extent != 0 && bits > kMax / extent))
      throw Error(at(name) + ": its size overflows", path);
    bits *= extent;
    e.shape.push_back(int64_t(extent));
  }
  const std::vector<uint64_t> offsets = unsigned_list(value, "data_offsets", name, path);
  if (offsets.size() != 2) throw Error(at(name) + ": 'data_offsets' is not a pair", path);
  e.begin = offsets[0], e.end = offsets[1];
  if (e.begin > e.end)
    throw Error(
        at(name) + " begins at " + std::to_string(e.begin) + " after its end " + std::to_string(e.end), path);
  if (bits % 8 != 0 || e.end - e.begin != bits / 8)
    throw Error(at(name) + " has " + std::to_string(e.end - e.begin) + " bytes at offset " +
                    std::to_string(e.begin) + ", but its shape and type ask for " + std::to_string(bits / 8),
                path);
  return e;
}

// Sorted by offset, the tensors must cover the buffer exactly.
void check_coverage(const std::vector<Entry>& entries, uint64_t header_end, uint64_t size,
                    const std::string& path) {
  const uint64_t buffer = size - header_end;
  uint64_t expected = 0;
  for (const Entry& e : entries) {
    if (e.begin != expected)
      throw Error(at(e.name) + " begins at offset " + std::to_string(e.begin) + " of the data, not at " +
                      std::to_string(expected) + ": tensors " +
                      (e.begin < expected ? "overlap" : "leave a hole"),
                  path);
    expected = e.end;
  }
  if (expected > buffer)
    throw Error("truncated: " + at(entries.back().name) + " ends at offset " + std::to_string(expected) +
                    " of the data; the file should have " + std::to_string(header_end) + " + " +
                    std::to_string(expected) + " bytes but has " + std::to_string(size),
                path, "the download was cut short: fetch it again");
  if (expected < buffer)
    throw Error(std::to_string(buffer - expected) + " bytes follow the last tensor, which ends at offset " +
                    std::to_string(expected) + " of the data",
                path, "the file is damaged");
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(std::make_unique<MappedFile>(path)), path_(path) {
  data_ = file_->data();
  size_ = file_->size();
  parse();
}

SafetensorsFile::SafetensorsFile(const uint8_t* data, size_t size, const std::string& name)
    : data_(data), size_(size), path_(name) {
  parse();
}

void SafetensorsFile::parse() {
  check_not_lfs_pointer(data_, size_, path_);
  if (size_ < 8)
    throw Error("truncated: a safetensors file begins with 8 bytes of length, but this one has " +
                    std::to_string(size_),
                path_);
  uint64_t length;
  std::memcpy(&length, data_, 8);
  constexpr uint64_t kMaxHeader = 100'000'000;
  if (length > kMaxHeader)
    throw Error("not a safetensors file: its header would have " + std::to_string(length) + " bytes", path_,
                "at most 100000000 are allowed");
  if (length > size_ - 8)
    throw Error("truncated: the header has " + std::to_string(length) + " bytes, but the file only " +
                    std::to_string(size_),
                path_, "the download was cut short: fetch it again");
  const std::string_view header(reinterpret_cast<const char*>(data_ + 8), size_t(length));
  if (header.empty() || header[0] != '{')
    throw Error("not a safetensors file: the header is not JSON", path_);
  const json parsed = parse_json(header, path_ + " (header)");
  check_unique_names(header, path_);

  std::vector<Entry> entries;
  for (const auto& item : parsed.items())
    if (item.key() != "__metadata__") entries.push_back(read_entry(item.key(), item.value(), path_));
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_coverage(entries, 8 + length, size_, path_);
  for (const Entry& e : entries) {
    if (e.type->dtype)
      tensors_[e.name] = {data_ + 8 + length + e.begin, *e.type->dtype, e.shape, e.name};
    else
      unreadable_[e.name] = e.type->name;
  }
}

const Tensor* SafetensorsFile::find(std::string_view name) const {
  if (auto it = tensors_.find(name); it != tensors_.end()) return &it->second;
  if (auto it = unreadable_.find(name); it != unreadable_.end())
    throw Error(
        "tensor " + shown_name(name) + " has the element type " + it->second + ", which is not supported",
        path_);
  return nullptr;
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> out;
  for (const auto& [name, tensor] : tensors_) out.push_back(name);
  for (const auto& [name, type] : unreadable_) out.push_back(name);
  return out;
}

}  // namespace nano
