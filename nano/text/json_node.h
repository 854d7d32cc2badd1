// A place in a JSON document that knows its name, so that an error says "tokenizer.json: model.merges[3]: …".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"  // nlohmann::json

namespace nano {

class JsonNode {
 public:
  // `value` must outlive the node.
  JsonNode(const nlohmann::json& value, std::string file, std::string path = "")
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  bool has(const char* key) const;             // an object with this key, and not null
  JsonNode operator[](const char* key) const;  // Error: missing or null
  std::vector<JsonNode> items() const;         // Error: not a list
  std::string string() const;                  // Errors: of another type
  int64_t integer() const;
  bool boolean() const;
  std::string string(const char* key, const char* fallback) const;
  bool boolean(const char* key, bool fallback) const;

  const nlohmann::json& value() const { return *value_; }
  [[noreturn]] void fail(const std::string& problem, const std::string& hint = "") const;

 private:
  const nlohmann::json* value_;
  std::string file_, path_;
};

}  // namespace nano
