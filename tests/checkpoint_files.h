// For the tests of checkpoint/: building small GGUF and safetensors files byte by byte, good and broken, and a
// directory for them that goes away.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"  // Error
#include "data.h"        // data_path

namespace nano_test {

inline std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}
inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "nano-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// A copy of a checkpoint directory of tests/golden/checkpoints that may be spoiled.
inline void copy_checkpoint(const std::string& name, const TempDir& to) {
  for (const auto& entry : std::filesystem::directory_iterator(data_path("golden/checkpoints/" + name)))
    write_bytes(to.file(entry.path().filename().string()), read_bytes(entry.path().string()));
}

template <class T>
std::string raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

// ---- GGUF ----

inline std::string gguf_string(const std::string& s) { return raw(uint64_t(s.size())) + s; }
inline std::string gguf_kv(const std::string& key, uint32_t type, const std::string& value) {
  return gguf_string(key) + raw(type) + value;
}
inline std::string gguf_u32(const std::string& key, uint32_t value) { return gguf_kv(key, 4, raw(value)); }
inline std::string gguf_f32(const std::string& key, float value) { return gguf_kv(key, 6, raw(value)); }
inline std::string gguf_text(const std::string& key, const std::string& value) {
  return gguf_kv(key, 8, gguf_string(value));
}
inline std::string gguf_array(const std::string& key, uint32_t type, uint64_t count,
                              const std::string& elements) {
  return gguf_kv(key, 9, raw(type) + raw(count) + elements);
}

struct GgufInfo {
  std::string name;
  std::vector<uint64_t> dims;  // as in the file: the fastest first
  uint32_t type;
  uint64_t offset;
};

struct GgufBuilder {
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::vector<std::string> kvs;
  std::vector<GgufInfo> infos;
  std::string data;
  int64_t claimed_tensors = -1, claimed_kvs = -1;  // −1: the truth

  std::string build(uint64_t alignment = 32) const {
    std::string out = magic + raw(version) +
                      raw(uint64_t(claimed_tensors < 0 ? int64_t(infos.size()) : claimed_tensors)) +
                      raw(uint64_t(claimed_kvs < 0 ? int64_t(kvs.size()) : claimed_kvs));
    for (const std::string& kv : kvs) out += kv;
    for (const GgufInfo& info : infos) {
      out += gguf_string(info.name) + raw(uint32_t(info.dims.size()));
      for (uint64_t d : info.dims) out += raw(d);
      out += raw(info.type) + raw(info.offset);
    }
    while (!infos.empty() && out.size() % alignment != 0) out += '\0';
    return out + data;
  }
  // Adds a tensor behind the ones before it.
  void add(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
           const std::string& bytes) {
    while (data.size() % 32 != 0) data += '\0';
    infos.push_back({name, dims, type, data.size()});
    data += bytes;
  }
};

// ---- safetensors ----

inline std::string safetensors(const std::string& header, const std::string& data) {
  return raw(uint64_t(header.size())) + header + data;
}

}  // namespace nano_test
