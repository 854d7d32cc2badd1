#include "text/json_node.h"

#include <fmt/format.h>

#include "base/error.h"  // Error

namespace nano {

void JsonNode::fail(const std::string& problem, const std::string& hint) const {
  throw Error(problem, path_.empty() ? file_ : file_ + ": " + path_, hint);
}

bool JsonNode::has(const char* key) const {
  if (!value_->is_object()) return false;
  auto found = value_->find(key);
  return found != value_->end() && !found->is_null();
}

JsonNode JsonNode::operator[](const char* key) const {
  if (!has(key)) fail(fmt::format("\"{}\" is missing", key));
  return JsonNode((*value_)[key], file_, path_.empty() ? key : path_ + "." + key);
}

std::vector<JsonNode> JsonNode::items() const {
  if (!value_->is_array()) fail("must be a list");
  std::vector<JsonNode> nodes;
  for (size_t i = 0; i < value_->size(); ++i)
    nodes.emplace_back((*value_)[i], file_, fmt::format("{}[{}]", path_, i));
  return nodes;
}

std::string JsonNode::string() const {
  if (!value_->is_string()) fail("must be a string");
  return value_->get<std::string>();
}
int64_t JsonNode::integer() const {
  bool fits =
      value_->is_number_integer() && (!value_->is_number_unsigned() || value_->get<uint64_t>() <= INT64_MAX);
  if (!fits) fail("must be an integer");
  return value_->get<int64_t>();
}
bool JsonNode::boolean() const {
  if (!value_->is_boolean()) fail("must be true or false");
  return value_->get<bool>();
}
std::string JsonNode::string(const char* key, const char* fallback) const {
  return has(key) ? (*this)[key].string() : fallback;
}
bool JsonNode::boolean(const char* key, bool fallback) const {
  return has(key) ? (*this)[key].boolean() : fallback;
}

}  // namespace nano
