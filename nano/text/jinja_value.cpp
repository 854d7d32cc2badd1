// What values are and mean: the arena and the limits, Python's operations, and the two ways a value becomes text.
#include <algorithm>

#include <fmt/format.h>
#include <utf8proc.h>

#include "base/error.h"  // Error
#include "text/jinja.h"  // Context, Value, Text

namespace nano::jinja {
namespace {

constexpr size_t kMaxWork = 1'000'000;  // nodes evaluated, list items, and 64 bytes of text are one each
constexpr size_t kMaxText = 16u << 20;  // bytes of one string, and of the rendering
constexpr int kMaxValueDepth = 100;     // of lists and dicts in each other: what walks them recurses

int depth_of(const Value& v) {
  return v.is(Kind::list) ? v.list->depth : v.is(Kind::dict) ? v.dict->depth : 0;
}

}  // namespace

Value boolean(bool b) {
  Value v = integer(b);
  v.kind = Kind::boolean;
  return v;
}

Value integer(int64_t i) {
  Value v;
  v.kind = Kind::integer, v.integer = i;
  return v;
}

// --- Context ----------------------------------------------------------------------------------------------------

void Context::fail(const std::string& problem) const {
  throw Error(problem, fmt::format("chat template line {}", line));
}

void Context::charge(size_t work) {
  work_ += work;
  if (work_ > kMaxWork) fail(fmt::format("the template needs more than {} steps", kMaxWork));
}

void Context::append(Text& text, const Text& more) {
  charge(more.bytes.size() / 64);
  text.bytes += more.bytes, text.origin += more.origin;
  if (text.bytes.size() > kMaxText) fail(fmt::format("a text of more than {} MB", kMaxText >> 20));
}

Value Context::string(Text text) {
  charge(1 + text.bytes.size() / 64);
  Value v;
  v.kind = Kind::string, v.text = &texts_.emplace_back(std::move(text));
  return v;
}

Value Context::own_string(std::string_view text) {
  return string({std::string(text), std::string(text.size(), Text::kOwn)});
}

Value Context::list(std::vector<Value> items, bool tuple) {
  charge(1 + items.size());
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, depth_of(item));
  if (depth >= kMaxValueDepth) fail(fmt::format("lists nested deeper than {}", kMaxValueDepth));
  Value v;
  v.kind = Kind::list, v.list = &lists_.emplace_back(List{std::move(items), tuple, depth + 1});
  return v;
}

Value Context::dict(Dict dict, Kind kind) {
  charge(1 + dict.items.size());
  for (const auto& item : dict.items) dict.depth = std::max(dict.depth, depth_of(item.second) + 1);
  if (dict.depth > kMaxValueDepth) fail(fmt::format("mappings nested deeper than {}", kMaxValueDepth));
  Value v;
  v.kind = kind, v.dict = &dicts_.emplace_back(std::move(dict));
  return v;
}

Value Context::from_json(const nlohmann::ordered_json& json, char from, int depth) {
  if (depth > kMaxValueDepth) fail(fmt::format("a variable is nested deeper than {}", kMaxValueDepth));
  const auto text = [&](const std::string& s) { return string({s, std::string(s.size(), from)}); };
  Value v;
  v.kind = Kind::none;
  if (json.is_boolean()) return boolean(json.get<bool>());
  if (json.is_string()) return text(json.get_ref<const std::string&>());
  if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t(INT64_MAX))
    fail("a number in the messages is beyond 64 bits: " + json.dump());
  if (json.is_number_integer()) return integer(json.get<int64_t>());
  if (json.is_number_float()) v.kind = Kind::real, v.real = json.get<double>();
  if (json.is_array()) {
    std::vector<Value> items;
    for (const auto& item : json) items.push_back(from_json(item, from, depth + 1));
    return list(std::move(items));
  }
  if (json.is_object()) {
    Dict members;
    for (const auto& [key, value] : json.items())
      members.items.emplace_back(text(key).text, from_json(value, from, depth + 1));
    return dict(std::move(members));
  }
  return v;
}

// --- Python's meaning -------------------------------------------------------------------------------------------

const char* type_name(const Value& v) {
  static constexpr const char* kNames[] = {"undefined value", "none", "boolean", "integer",   "real number",
                                           "string",          "list", "mapping", "namespace", "function"};
  return kNames[int(v.kind)];
}

bool truthy(const Value& v) {
  switch (v.kind) {
    case Kind::undefined:
    case Kind::none: return false;
    case Kind::boolean:
    case Kind::integer: return v.integer != 0;
    case Kind::real: return v.real != 0;
    case Kind::string: return !v.text->bytes.empty();
    case Kind::list: return !v.list->items.empty();
    case Kind::dict: return !v.dict->items.empty();
    default: return true;
  }
}

bool equal(Context& c, const Value& a, const Value& b) {
  c.charge(1);
  if (a.is_int() && b.is_int()) return a.integer == b.integer;
  if (a.is_number() && b.is_number()) return a.as_real() == b.as_real();
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::undefined:
    case Kind::none: return true;
    case Kind::string: return a.text->bytes == b.text->bytes;
    case Kind::list:
      return a.list->tuple == b.list->tuple &&
             std::equal(a.list->items.begin(), a.list->items.end(), b.list->items.begin(),
                        b.list->items.end(), [&](const Value& x, const Value& y) { return equal(c, x, y); });
    case Kind::dict:
      return a.dict->items.size() == b.dict->items.size() &&
             std::all_of(a.dict->items.begin(), a.dict->items.end(), [&](const auto& item) {
               const Value* other = find(c, *b.dict, item.first->bytes);
               return other && equal(c, item.second, *other);
             });
    default: return a.dict == b.dict && a.name == b.name;
  }
}

bool less(Context& c, const Value& a, const Value& b) {
  if (a.is_int() && b.is_int()) return a.integer < b.integer;
  if (a.is_number() && b.is_number()) return a.as_real() < b.as_real();
  if (a.is(Kind::string) && b.is(Kind::string))
    return a.text->bytes < b.text->bytes;  // the code points' order
  c.fail(fmt::format("cannot order a {} and a {}", type_name(a), type_name(b)));
}

bool contains(Context& c, const Value& container, const Value& item) {
  if (container.is(Kind::string) && item.is(Kind::string))
    return find_text(c, *container.text, item.text->bytes, 0) != std::string::npos;
  if (container.is(Kind::string)) c.fail(fmt::format("a {} cannot be in a string", type_name(item)));
  if (container.is(Kind::dict)) return item.is(Kind::string) && find(c, *container.dict, item.text->bytes);
  const std::vector<Value> items = iterate(c, container);
  return std::any_of(items.begin(), items.end(), [&](const Value& v) { return equal(c, v, item); });
}

Value get_item(Context& c, const Value& object, const Value& key) {
  if (object.is(Kind::undefined))
    c.fail(fmt::format("'{}' is undefined", object.name ? *object.name : "value"));
  if ((object.is(Kind::dict) || object.is(Kind::name_space)) && key.is(Kind::string)) {
    const Value* found = find(c, *object.dict, key.text->bytes);
    return found ? *found : Value{};
  }
  if (!key.is_int() || (!object.is(Kind::list) && !object.is(Kind::string))) return {};
  const std::vector<Value> characters = object.is(Kind::string) ? iterate(c, object) : std::vector<Value>();
  const std::vector<Value>& items = object.is(Kind::string) ? characters : object.list->items;
  const int64_t n = int64_t(items.size()), i = key.integer < 0 ? key.integer + n : key.integer;
  return i >= 0 && i < n ? items[size_t(i)] : Value{};
}

Value* find(Context& c, Dict& dict, std::string_view key) {
  c.charge(dict.items.size() / 16);
  for (auto& item : dict.items)
    if (item.first->bytes == key) return &item.second;
  return nullptr;
}

size_t find_text(Context& c, const Text& text, std::string_view what, size_t from) {
  const size_t found = text.bytes.find(what, from);
  const size_t searched = std::min(found, text.bytes.size()) - from;
  c.charge(searched / 4096 * (1 + what.size()));  // the worst case of the search
  return found;
}

std::vector<Value> iterate(Context& c, const Value& v) {
  std::vector<Value> items;
  if (v.is(Kind::list)) {
    items = v.list->items;
  } else if (v.is(Kind::dict)) {
    for (const auto& item : v.dict->items) {
      Value& key = items.emplace_back();
      key.kind = Kind::string, key.text = item.first;
    }
  } else if (v.is(Kind::string)) {
    const std::string_view bytes = v.text->bytes;
    for (size_t at = 0, size; at < bytes.size(); at += size) {
      size = character_size(bytes.substr(at));
      items.push_back(c.string(v.text->slice(at, size)));
    }
  } else if (!v.is(Kind::undefined)) {
    c.fail(fmt::format("a {} is not iterable", type_name(v)));
  }
  c.charge(items.size() / 16);
  return items;
}

// --- text -------------------------------------------------------------------------------------------------------
namespace {

bool is_printable(
    int32_t code) {  // as str.isprintable; the categories from ZS on are separators and controls
  const utf8proc_category_t category = utf8proc_category(code);
  return code == ' ' || (category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS);
}

std::string escape(std::string_view character, char quote, bool json) {
  int32_t code = -1;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(character.data()), int64_t(character.size()),
                   &code);
  if (code == quote || code == '\\') return {'\\', char(code)};
  if (code == '\n') return "\\n";
  if (code == '\r') return "\\r";
  if (code == '\t') return "\\t";
  if (json && code == '\b') return "\\b";
  if (json && code == '\f') return "\\f";
  if (code < 0 || (json ? code >= 0x20 : is_printable(code))) return std::string(character);
  if (code < 0x100 && !json) return fmt::format("\\x{:02x}", code);
  return code < 0x10000 ? fmt::format("\\u{:04x}", code) : fmt::format("\\U{:08x}", code);
}

// repr(v) of Python or its json.dumps(v, ensure_ascii=False), appended. Brackets and quotes that are not in the
// template's source are no text of the template.
class Printer {
 public:
  Printer(Context& c, bool json, int indent) : c_(c), json_(json), indent_(indent) {}

  void print(const Value& v, int level) {
    c_.charge(1);
    if (v.is(Kind::string)) {
      quote(*v.text);
    } else if (v.is(Kind::list)) {
      const bool round = v.list->tuple && !json_;
      const auto& items = v.list->items;
      bracket(round ? "(" : "[", level, items.size(), round ? ")" : "]",
              [&](size_t i) { print(items[i], level + 1); });
    } else if (v.is(Kind::dict)) {
      const auto& items = v.dict->items;
      bracket("{", level, items.size(), "}", [&](size_t i) {
        quote(*items[i].first);
        put(": ");
        print(items[i].second, level + 1);
      });
    } else if (json_ && (v.is(Kind::none) || v.is(Kind::boolean))) {
      put(v.is(Kind::none) ? "null" : v.integer ? "true" : "false");
    } else {
      if (v.is(Kind::undefined)) c_.fail("an undefined value has no JSON and cannot be printed in a list");
      c_.append(text, to_text(c_, v));
    }
  }

  Text text;

 private:
  void put(std::string_view s) { c_.append(text, {std::string(s), std::string(s.size(), Text::kForeign)}); }

  void quote(const Text& s) {
    const bool single = s.bytes.find('\'') == std::string::npos || s.bytes.find('"') != std::string::npos;
    const char quote = json_ || !single ? '"' : '\'';
    c_.charge(s.bytes.size() / 16);
    put({&quote, 1});
    const std::string_view bytes = s.bytes;
    for (size_t at = 0, size; at < bytes.size(); at += size) {
      size = character_size(bytes.substr(at));
      text.append(escape(bytes.substr(at, size), quote, json_), s.origin[at]);
    }
    put({&quote, 1});
  }

  template <typename Item>
  void bracket(const char* open, int level, size_t count, const char* close, Item item) {
    const std::string margin = "\n" + std::string(size_t(std::max(0, indent_ * level)), ' ');
    put(open);
    for (size_t i = 0; i < count; ++i) {
      if (i > 0) put(indent_ < 0 ? ", " : ",");
      if (indent_ >= 0) put(margin + std::string(size_t(indent_), ' '));
      item(i);
    }
    if (indent_ >= 0 && count > 0) put(margin);
    if (*close == ')' && count == 1) put(",");
    put(close);
  }

  Context& c_;
  const bool json_;
  const int indent_;
};

std::string real_text(double d) {  // repr(float)
  const std::string s = fmt::format("{}", d);
  return s.find_first_of(".en") == std::string::npos ? s + ".0" : s;
}

Text print(Context& c, const Value& v, bool json, int indent) {
  Printer printer(c, json, indent);
  printer.print(v, 0);
  return std::move(printer.text);
}

}  // namespace

Text to_text(Context& c, const Value& v) {
  std::string s;
  switch (v.kind) {
    case Kind::undefined: break;
    case Kind::none: s = "None"; break;
    case Kind::boolean: s = v.integer ? "True" : "False"; break;
    case Kind::integer: s = std::to_string(v.integer); break;
    case Kind::real: s = real_text(v.real); break;
    case Kind::string: return *v.text;
    case Kind::list:
    case Kind::dict: return print(c, v, false, -1);
    default: c.fail(fmt::format("a {} cannot be printed", type_name(v)));
  }
  return {s, std::string(s.size(), Text::kOwn)};
}

Text to_json(Context& c, const Value& v, int indent) { return print(c, v, true, indent); }

}  // namespace nano::jinja
