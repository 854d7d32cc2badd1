// One safetensors file: a JSON header that names tensors, then their bytes, shown as views.
// Source: huggingface/safetensors README.md. As strict as the reference: sizes agree with shapes, tensors cover
// the buffer without holes or overlaps, names are unique. Data need not be aligned: read it with memcpy.
// Not here: shards and their index (weights_hf.cpp).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"   // MappedFile
#include "checkpoint/tensor.h"  // Tensor

namespace nano {

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);                           // opens and checks everything
  SafetensorsFile(const uint8_t* data, size_t size, const std::string& name);  // over memory (tests, fuzzing)

  const std::string& path() const { return path_; }
  // nullptr when there is none; Error when it is there in an element type that nano cannot read.
  const Tensor* find(std::string_view name) const;
  std::vector<std::string> names() const;                    // of all tensors, readable or not
  const MappedFile* mapping() const { return file_.get(); }  // nullptr over memory

 private:
  void parse();

  std::unique_ptr<MappedFile> file_;
  const uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
  std::string path_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::map<std::string, std::string, std::less<>> unreadable_;  // name → element type
};

}  // namespace nano
