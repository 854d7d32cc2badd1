// Reading the JSON files of a Hugging Face directory: access to a missing or mistyped member throws Json::exception,
// which read_member turns into an Error that names the file and the member.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"        // Error
#include "base/json.h"         // parse_json
#include "base/mapped_file.h"  // read_file
#include "text/utf8.h"         // replace_text

namespace nano {

using Json = nlohmann::json;

inline bool has(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) && !object[key].is_null();
}

template <class T>
T get_or(const Json& object, const char* key, T fallback) {
  return has(object, key) ? object.at(key).get<T>() : fallback;
}

inline const Json& items(const Json& list) {
  if (!list.is_array()) throw Error("must be a list");
  return list;
}

inline int32_t get_id(const Json& value, int64_t limit) {
  if (!value.is_number_integer() || value.get<uint64_t>() >= uint64_t(limit))
    throw Error(fmt::format("{} is not a token id below {}",
                            value.is_number() ? value.dump() : value.type_name(), limit));
  return value.get<int32_t>();
}

[[noreturn]] inline void unsupported(const char* what, const std::string& type, const char* known) {
  throw Error(fmt::format("unsupported {} \"{}\"", what, type), "", std::string("known: ") + known);
}

// "[json.exception.out_of_range.403] key 'merges' not found" in our words.
inline std::string reason(const Json::exception& e) {
  std::string what = e.what();
  if (const size_t end = what.find("] "); end != what.npos) what.erase(0, end + 2);
  if (e.id == 403) return replace_text(what, "not found", "is missing");
  return "a value has the wrong type: " + what;
}

// fn(root[key]), if there is such a member. Whatever is wrong in it is an Error that names the file and the member.
template <class Fn>
void read_member(const Json& root, const char* key, const std::string& file, Fn fn) {
  if (!has(root, key)) return;
  try {
    fn(root[key]);
  } catch (const Json::exception& e) {
    throw Error(reason(e), file + ": " + key);
  } catch (const Error& e) {
    throw Error(e.problem, file + ": " + key, e.hint);
  }
}

inline Json read_object(std::string_view text, const std::string& file) {
  Json json = parse_json(text, file);
  if (!json.is_object()) throw Error("must be a JSON object", file);
  return json;
}
inline Json read_object_if_there(const std::string& path) {
  return std::filesystem::exists(path) ? read_object(read_file(path), path) : Json::object();
}

}  // namespace nano
