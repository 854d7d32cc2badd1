// What values are and mean: their owner and its limits, Python's operations, and the two ways into text.
#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"  // Error
#include "text/jinja/jinja.h"  // Context, Value, Text
#include "text/utf8.h"   // first_character, last_character

namespace nano::jinja {
namespace {

constexpr size_t kMaxWork = 500'000;  // nodes evaluated, list items, and 32 bytes of text are one each
constexpr size_t kMaxText = 4 << 20;  // bytes of one string, and of the rendering
constexpr int kMaxValueDepth = 100;   // of lists and dicts in each other: what walks them recurses

}  // namespace

// --- characters
const std::string_view kWhiteSpace =
    "\t\n\v\f\r\x1c\x1d\x1e\x1f "
    "\u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
    "\u200a\u2028\u2029\u202f\u205f\u3000";

std::string_view strip(std::string_view text, std::string_view characters, bool left, bool right) {
  const auto goes = [&](std::string_view character) {
    const bool stray = character.size() == 1 && static_cast<unsigned char>(character[0]) >= 0x80;
    return !stray && characters.find(character) != std::string::npos;
  };
  while (left && !text.empty() && goes(text.substr(0, first_character(text))))
    text.remove_prefix(first_character(text));
  while (right && !text.empty() && goes(text.substr(text.size() - last_character(text))))
    text.remove_suffix(last_character(text));
  return text;
}

// --- Items
Value* Items::find(std::string_view key) {
  for (size_t i = 0; i < keys.size(); ++i)
    if (keys[i].text->bytes == key) return &values[i];
  return nullptr;
}

void Items::set(const Value& key, const Value& value) {
  Value* known = find(key.text->bytes);
  if (!known) keys.push_back(key);
  (known ? *known : values.emplace_back()) = value;
}

// --- Context
void Context::fail(const std::string& problem) const {
  throw Error(problem, fmt::format("chat template line {}", line));
}

void Context::charge(size_t work) {
  work_ += work;
  if (work_ > kMaxWork) fail(fmt::format("the template needs more than {} steps", kMaxWork));
}

void Context::append(Text& text, const Text& more) {
  charge(more.bytes.size() / 32);
  text.bytes += more.bytes, text.origin += more.origin;
  if (text.bytes.size() > kMaxText) fail(fmt::format("a text of more than {} MB", kMaxText >> 20));
}

const Value& Context::given(const Value& v) const {
  if (!v.given()) fail(fmt::format("'{}' is undefined", v.name ? *v.name : "value"));
  return v;
}

const Value& Context::expect(const Value& v, Kind kind) const {
  if (!given(v).is(kind)) fail(fmt::format("expected a {}, got {}", kind_name(kind), kind_name(v.kind)));
  return v;
}

Value Context::string(Text text) {
  charge(1 + text.bytes.size() / 32);
  return {.kind = Kind::string, .text = &texts_.emplace_back(std::move(text))};
}

Value Context::string(const std::string& text, char origin) {
  return string({text, std::string(text.size(), origin)});
}

Value Context::collect(Kind kind, Items items) {
  charge(1 + items.values.size());
  for (const Value& value : items.values)
    if (value.is(Kind::list) || value.is(Kind::dict))
      items.depth = std::max(items.depth, value.items->depth + 1);
  if (items.depth > kMaxValueDepth) fail(fmt::format("values nested deeper than {}", kMaxValueDepth));
  return {.kind = kind, .items = &items_.emplace_back(std::move(items))};
}

Value Context::from_json(const nlohmann::ordered_json& json, char origin, int depth) {
  if (depth > kMaxValueDepth) fail(fmt::format("a variable is nested deeper than {}", kMaxValueDepth));
  if (json.is_boolean()) return boolean(json.get<bool>());
  if (json.is_string()) return string(json.get_ref<const std::string&>(), origin);
  if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t(INT64_MAX))
    fail(fmt::format("a number is beyond 64 bits: {}", json.get<uint64_t>()));
  if (json.is_number_integer()) return integer(json.get<int64_t>());
  if (json.is_structured()) {
    Items items;
    for (const auto& [key, value] : json.items()) {
      if (json.is_object()) items.keys.push_back(string(key, origin));
      items.values.push_back(from_json(value, origin, depth + 1));
    }
    return collect(json.is_object() ? Kind::dict : Kind::list, std::move(items));
  }
  if (json.is_number_float()) return {.kind = Kind::real, .real = json.get<double>()};
  return {.kind = Kind::none};
}

// --- Python's meaning
const char* kind_name(Kind kind) {
  static constexpr const char* kNames[] = {"undefined", "none", "boolean", "integer",   "real number",
                                           "string",    "list", "mapping", "namespace", "function"};
  return kNames[int(kind)];
}

bool truthy(const Value& v) {
  if (v.is(Kind::undefined) || v.is(Kind::none)) return false;
  if (v.is_int()) return v.integer != 0;
  if (v.is(Kind::real)) return v.real != 0;
  if (v.is(Kind::string)) return !v.text->bytes.empty();
  return (!v.is(Kind::list) && !v.is(Kind::dict)) || !v.items->values.empty();
}

bool equal(Context& c, const Value& a, const Value& b) {
  c.charge(1);
  if (a.is_int() && b.is_int()) return a.integer == b.integer;
  if (a.is_number() && b.is_number())
    return (a.is(Kind::real) ? a.real : double(a.integer)) == (b.is(Kind::real) ? b.real : double(b.integer));
  if (a.kind != b.kind) return false;
  if (a.is(Kind::string)) return a.text->bytes == b.text->bytes;
  if (!a.is(Kind::list) && !a.is(Kind::dict)) return a.items == b.items;
  const std::vector<Value>&x = a.items->values, &y = b.items->values;
  if (x.size() != y.size()) return false;
  for (size_t i = 0; i < x.size(); ++i) {
    c.charge(a.items->keys.size() / 16);
    const Value* other = a.is(Kind::list) ? &y[i] : b.items->find(a.items->keys[i].text->bytes);
    if (!other || !equal(c, x[i], *other)) return false;
  }
  return true;
}

size_t find(Context& c, const Text& text, const Text& what, size_t from) {
  const size_t rest = text.bytes.size() - from, size = 1 + what.bytes.size();
  if (size > 256) c.charge(rest * size / 1024);  // the worst case, which is slow with long strings
  const size_t found = text.bytes.find(what.bytes, from);
  c.charge((found == std::string::npos ? rest : found - from) * std::min<size_t>(size, 256) / 1024);
  return found;
}

std::vector<Value> iterate(Context& c, const Value& v) {
  std::vector<Value> out;
  if (v.is(Kind::list) || v.is(Kind::dict)) {
    out = v.is(Kind::list) ? v.items->values : v.items->keys;
  } else if (v.is(Kind::string)) {
    const std::string_view bytes = v.text->bytes;
    for (size_t at = 0, size; at < bytes.size(); at += size) {
      size = first_character(bytes.substr(at));
      out.push_back(c.string(v.text->slice(at, size)));
    }
  } else if (v.given()) {
    c.fail(fmt::format("a {} is not iterable", kind_name(v.kind)));
  }
  c.charge(out.size() / 16);
  return out;
}

// --- text
Text to_text(Context& c, const Value& v) {
  if (v.is(Kind::string)) return *v.text;
  std::string s;
  if (v.is(Kind::none)) s = "None";
  if (v.is(Kind::boolean)) s = v.integer ? "True" : "False";
  if (v.is(Kind::integer)) s = std::to_string(v.integer);
  if (v.is(Kind::real)) s = fmt::format("{}", v.real);
  if (v.is(Kind::real) && s.find_first_of(".en") == std::string::npos) s += ".0";
  if (v.kind > Kind::string)
    c.fail(fmt::format("unsupported: printing a {} (tojson can)", kind_name(v.kind)));
  return {s, std::string(s.size(), Text::kOwn)};
}

// As json.dumps(v, ensure_ascii=False). What it adds to the values is foreign, too: the template does not show it.
void to_json(Context& c, const Value& v, int indent, int level, Text& out) {
  const auto put = [&](const std::string& s, char origin) {
    c.append(out, {s, std::string(s.size(), origin)});
  };
  const auto new_line = [&](int at_level) {
    if (indent >= 0) put("\n" + std::string(size_t(indent * at_level), ' '), Text::kForeign);
  };
  const auto quote = [&](const Text& text) {
    c.charge(text.bytes.size() / 16);
    const bool own = text.origin.find(Text::kForeign) == std::string::npos;
    const std::string shown =
        nlohmann::json(text.bytes).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    put("\"", Text::kForeign);
    put(shown.substr(1, shown.size() - 2), own ? Text::kOwn : Text::kForeign);
    put("\"", Text::kForeign);
  };
  c.charge(1);
  if (v.is(Kind::string)) return quote(*v.text);
  if (v.is(Kind::none)) return put("null", Text::kForeign);
  if (v.is(Kind::boolean)) return put(v.integer ? "true" : "false", Text::kForeign);
  if (v.is_number()) return c.append(out, to_text(c, v));
  if (!v.is(Kind::list) && !v.is(Kind::dict))
    c.fail(fmt::format("an {} value has no JSON", kind_name(v.kind)));
  put(v.is(Kind::dict) ? "{" : "[", Text::kForeign);
  for (size_t i = 0; i < v.items->values.size(); ++i) {
    if (i > 0) put(indent < 0 ? ", " : ",", Text::kForeign);
    new_line(level + 1);
    if (v.is(Kind::dict)) quote(*v.items->keys[i].text), put(": ", Text::kForeign);
    to_json(c, v.items->values[i], indent, level + 1, out);
  }
  if (!v.items->values.empty()) new_line(level);
  put(v.is(Kind::dict) ? "}" : "]", Text::kForeign);
}

}  // namespace nano::jinja
