#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"          // Error
#include "base/json.h"           // parse_json
#include "checkpoint/foreign.h"  // check_places, shown_name

namespace nano {

namespace {

using nlohmann::json;

struct TypeRow {
  const char* name;
  int64_t bits;
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
  const TypeRow* type;
  std::vector<int64_t> shape;
  TensorPlace place;
};

// nlohmann's parser keeps the last of two equal keys; here they are an error.
void check_unique_names(std::string_view header, const std::string& path) {
  std::set<std::string> names;
  auto collect = [&](int depth, json::parse_event_t event, json& value) {
    if (depth == 1 && event == json::parse_event_t::key && !names.insert(value.get<std::string>()).second)
      throw Error("tensor " + shown_name(value.get<std::string>()) + " occurs twice", path);
    return depth <= 1;
  };
  [[maybe_unused]] const json only_names = json::parse(header.begin(), header.end(), collect);
}

Entry read_entry(const std::string& name, const json& value, const std::string& path) {
  auto fail = [&](const std::string& problem) { throw Error("tensor " + shown_name(name) + problem, path); };
  auto list = [&](const char* key) {
    const json items = value.value(key, json());
    bool good = items.is_array();
    for (const json& item : items) good = good && item.is_number_unsigned();
    if (!good) fail(fmt::format(": '{}' is not a list of non-negative integers", key));
    return items.get<std::vector<uint64_t>>();
  };
  if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string()) fail(" has no 'dtype'");
  const std::string dtype = value["dtype"].get<std::string>();
  Entry e{nullptr, {}, {name, 0, 0}};
  for (const TypeRow& row : kTypes)
    if (dtype == row.name) e.type = &row;
  if (!e.type) fail(" has the unknown element type " + shown_name(dtype));

  int64_t bits = e.type->bits;
  for (const uint64_t extent : list("shape")) {
    if (extent > uint64_t(INT64_MAX) || __builtin_mul_overflow(bits, int64_t(extent), &bits))
      fail(": its size overflows");
    e.shape.push_back(int64_t(extent));
  }
  const std::vector<uint64_t> offsets = list("data_offsets");
  if (offsets.size() != 2) fail(": 'data_offsets' is not a pair");
  const uint64_t begin = offsets[0], end = offsets[1];
  if (begin > end) fail(fmt::format(" begins at {} after its end {}", begin, end));
  e.place = {name, begin, end - begin};
  if (bits % 8 != 0 || e.place.bytes != uint64_t(bits / 8))
    fail(fmt::format(" has {} bytes at offset {}, but its shape and type ask for {}", e.place.bytes, begin,
                     bits / 8));
  return e;
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
  if (size_ < 8)
    throw Error(
        fmt::format("truncated: a safetensors file begins with 8 bytes of length, but this one has {}",
                    size_),
        path_);
  uint64_t length;
  std::memcpy(&length, data_, 8);
  constexpr uint64_t kMaxHeader = 100'000'000;
  if (length > kMaxHeader)
    throw Error(fmt::format("not a safetensors file: its header would have {} bytes", length), path_,
                fmt::format("at most {} are allowed", kMaxHeader));
  if (length > size_ - 8)
    throw Error(fmt::format("truncated: the header has {} bytes, but the file only {}", length, size_), path_,
                "the download was cut short: fetch it again");
  const std::string_view header(reinterpret_cast<const char*>(data_ + 8), size_t(length));
  if (header.empty() || header[0] != '{')
    throw Error("not a safetensors file: the header is not JSON", path_);
  const json parsed = parse_json(header, path_ + " (header)");
  check_unique_names(header, path_);

  std::vector<TensorPlace> places;
  const uint64_t data_start = 8 + length;
  for (const auto& [name, value] : parsed.items()) {
    if (name == "__metadata__") continue;
    const Entry e = read_entry(name, value, path_);
    places.push_back(e.place);
    if (e.type->dtype)
      tensors_[name] = {data_ + data_start + e.place.begin, *e.type->dtype, e.shape, name};
    else
      unreadable_[name] = e.type->name;
  }
  std::sort(places.begin(), places.end(), [](const TensorPlace& a, const TensorPlace& b) {
    return std::pair(a.begin, a.bytes) < std::pair(b.begin, b.bytes);
  });
  check_places(places, 1, data_start, size_, path_);
  const uint64_t end = data_start + (places.empty() ? 0 : places.back().begin + places.back().bytes);
  if (end < size_)
    throw Error(fmt::format("{} bytes follow the last tensor, which ends at byte {}", size_ - end, end),
                path_, "the file is damaged");
}

const Tensor* SafetensorsFile::find(std::string_view name) const {
  if (auto it = tensors_.find(name); it != tensors_.end()) return &it->second;
  if (auto it = unreadable_.find(name); it != unreadable_.end())
    throw Error(fmt::format("tensor {} has the element type {}, which is not supported", shown_name(name),
                            it->second),
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
