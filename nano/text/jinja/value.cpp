// What values are and mean: their owner and its limits, Python's operations, and the two ways into text.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <utf8proc.h>

#include "base/error.h"        // Error
#include "text/jinja/jinja.h"  // Context, Value, Text
#include "text/utf8.h"         // first_character, last_character

namespace nano::jinja {
namespace {

constexpr size_t kMaxSteps = 4'000'000, kMaxStepsPerByte = 8;  // of the variables, in addition
constexpr size_t kMaxText = 4 << 20;                           // bytes of one string, and of the rendering
constexpr int kMaxValueDepth = 100;  // of lists and dicts in each other: what walks them recurses

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
Value* Items::find(Context& c, const Value& key) {
  const bool string = key.is(Kind::string);
  c.charge(keys.size() * (1 + (string ? key.text->bytes.size() / 32 : 0)) / 16);
  for (size_t i = 0; i < keys.size(); ++i)
    if (string ? keys[i].is(Kind::string) && keys[i].text->bytes == key.text->bytes
               : keys[i].is_int() && key.is_int() && keys[i].integer == key.integer)
      return &values[i];
  return nullptr;
}

void Items::set(Context& c, const Value& key, const Value& value) {
  Value* known = find(c, key);
  if (!known) keys.push_back(key);
  (known ? *known : values.emplace_back()) = value;
}

// --- Context
Context::Context(size_t input_size) : max_steps_(kMaxSteps + kMaxStepsPerByte * input_size) {}

void Context::fail(const std::string& problem) const {
  throw Error(problem, fmt::format("chat template line {}", line));
}

void Context::charge(size_t steps) {
  steps_ += steps;
  if (steps_ > max_steps_) fail(fmt::format("the template needs more than {} steps", max_steps_));
}

void Context::append(Text& text, const Text& more) {
  charge(1 + more.bytes.size() / 32);
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
  charge(4 + text.bytes.size() / 16);
  return {.kind = Kind::string, .text = &texts_.emplace_back(std::move(text))};
}

Value Context::string(const std::string& text, char origin) {
  return string({text, std::string(text.size(), origin)});
}

Value Context::collect(Kind kind, Items items) {
  charge(4 + 2 * items.values.size());
  for (const Value& value : items.values)
    if (value.kind >= Kind::list && value.kind <= Kind::dict)
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
    if (json.is_object()) charge(json.size() * json.size() / 32);  // what parsing it took
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
  static constexpr const char* kNames[] = {"undefined", "none",        "boolean",
                                           "integer",   "real number", "string",
                                           "list",      "tuple",       "range or view of a mapping",
                                           "generator", "mapping",     "namespace",
                                           "function"};
  return kNames[int(kind)];
}

bool truthy(const Value& v) {
  if (v.is(Kind::undefined) || v.is(Kind::none)) return false;
  if (v.is_int()) return v.integer != 0;
  if (v.is(Kind::real)) return v.real != 0;
  if (v.is(Kind::string)) return !v.text->bytes.empty();
  const bool sized = v.is_sequence() || v.is(Kind::view) || v.is(Kind::dict);  // generators are true
  return !sized || !v.items->values.empty();
}

bool equal(Context& c, const Value& a, const Value& b) {
  c.charge(1);
  if (a.is_int() && b.is_int()) return a.integer == b.integer;
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.kind != b.kind) return false;
  if (a.is(Kind::string)) {
    c.charge(std::min(a.text->bytes.size(), b.text->bytes.size()) / 32);
    return a.text->bytes == b.text->bytes;
  }
  if (!a.is_sequence() && !a.is(Kind::dict)) return a.items == b.items && a.macro == b.macro;
  const std::vector<Value>&x = a.items->values, &y = b.items->values;
  if (x.size() != y.size()) return false;
  for (size_t i = 0; i < x.size(); ++i) {
    const Value* other = a.is_sequence() ? &y[i] : b.items->find(c, a.items->keys[i]);
    if (!other || !equal(c, x[i], *other)) return false;
  }
  return true;
}

int compare(Context& c, const Value& a, const Value& b) {
  c.charge(1);
  if (a.is_int() && b.is_int()) return a.integer < b.integer ? -1 : a.integer > b.integer;
  if (a.is_number() && b.is_number()) return a.number() < b.number() ? -1 : a.number() > b.number();
  if (a.is(Kind::string) && b.is(Kind::string)) {
    c.charge(std::min(a.text->bytes.size(), b.text->bytes.size()) / 32);
    return a.text->bytes.compare(b.text->bytes);  // UTF-8's order is that of the characters
  }
  c.fail(fmt::format("unsupported: the order of {} and {}", kind_name(c.given(a).kind),
                     kind_name(c.given(b).kind)));
}

size_t find(Context& c, const Text& text, const Text& what, size_t from) {
  const char *begin = text.bytes.data() + from, *end = text.bytes.data() + text.bytes.size();
  // Unlike std::string's find, this is linear also where the beginning of `what` is found everywhere.
  const void* found = memmem(begin, size_t(end - begin), what.bytes.data(), what.bytes.size());
  const char* at = found ? static_cast<const char*>(found) : end;
  c.charge((size_t(at - begin) + what.bytes.size()) / 8);
  return found ? size_t(at - text.bytes.data()) : std::string::npos;
}

size_t character(Context& c, const Text& text, int64_t index) {
  std::string_view rest = text.bytes;
  const bool from_end = index < 0;
  for (; index > 0 && !rest.empty(); --index) rest.remove_prefix(first_character(rest));
  for (; index < 0 && !rest.empty(); ++index) rest.remove_suffix(last_character(rest));
  const size_t walked = text.bytes.size() - rest.size();
  c.charge_walk(walked);
  return from_end ? rest.size() : walked;
}

const std::vector<Value>& elements(Context& c, const Value& v) {
  if (v.is_sequence() || v.is(Kind::view)) return v.items->values;
  if (v.is(Kind::dict)) return v.items->keys;
  if (v.given() && !v.is(Kind::string) && !v.is(Kind::generator))
    c.fail(fmt::format("a {} is not iterable", kind_name(v.kind)));
  std::vector<Value> out;
  if (v.is(Kind::generator)) out.swap(v.items->values);
  const std::string_view bytes = v.is(Kind::string) ? std::string_view(v.text->bytes) : "";
  for (size_t at = 0, size; at < bytes.size(); at += size) {
    size = first_character(bytes.substr(at));
    out.push_back(c.string(v.text->slice(at, size)));
  }
  return c.list(std::move(out)).items->values;
}

const std::vector<Value>& iterate(Context& c, const Value& v) {
  const std::vector<Value>& all = elements(c, v);
  c.charge(all.size());
  return all;
}

// --- text
namespace {

// As Python's repr(): what cannot be seen is escaped. Python has no broken UTF-8; here its bytes are, too.
std::string python_quoted(std::string_view text) {
  const bool has_single = text.find('\'') != text.npos, has_double = text.find('"') != text.npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (size_t size; !text.empty(); text.remove_prefix(size)) {
    size = first_character(text);
    utf8proc_int32_t code = 0;
    const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
    const bool broken = utf8proc_iterate(bytes, utf8proc_ssize_t(size), &code) < 0;
    const auto category = broken ? UTF8PROC_CATEGORY_CN : utf8proc_category(code);
    const size_t known = std::string_view("\n\r\t").find(text[0]);
    if (broken) code = bytes[0];
    if (text[0] == quote || text[0] == '\\')
      out += std::string("\\") + text[0];
    else if (known != std::string::npos)
      out += std::string("\\") + "nrt"[known];
    else if (code == ' ' || (category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS))
      out += text.substr(0, size);
    else
      out += code < 0x100     ? fmt::format("\\x{:02x}", code)
             : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                              : fmt::format("\\U{:08x}", code);
  }
  return out + quote;
}

std::string json_quoted(const std::string& text, bool ascii) {
  return nlohmann::json(text).dump(-1, ' ', ascii, nlohmann::json::error_handler_t::replace);
}

}  // namespace

Text to_text(Context& c, const Value& v) {
  if (v.is(Kind::string)) return *v.text;
  std::string s;
  if (v.is(Kind::none)) s = "None";
  if (v.is(Kind::boolean)) s = v.integer ? "True" : "False";
  if (v.is(Kind::integer)) s = std::to_string(v.integer);
  if (v.is(Kind::real)) s = fmt::format("{}", v.real);
  if (v.is(Kind::real) && s.find_first_of(".en") == std::string::npos) s += ".0";
  Text out{s, std::string(s.size(), Text::kOwn)};
  if (v.kind > Kind::string) write(c, v, {.python = true}, 0, out);
  return out;
}

// What it adds to the values is foreign, too: the template does not show it.
void write(Context& c, const Value& v, const Notation& n, int level, Text& out) {
  const auto put = [&](const std::string& s, char origin = Text::kForeign) {
    c.append(out, {s, std::string(s.size(), origin)});
  };
  const auto new_line = [&](int at_level) {
    if (n.indent >= 0) put("\n" + std::string(size_t(n.indent * at_level), ' '));
  };
  const auto quote = [&](const Text& text) {
    c.charge_walk(text.bytes.size());
    const std::string shown = n.python ? python_quoted(text.bytes) : json_quoted(text.bytes, n.ascii);
    put(shown.substr(0, 1));
    put(shown.substr(1, shown.size() - 2), text.whose());
    put(shown.substr(0, 1));
  };
  c.charge(1);
  if (v.is(Kind::string)) return quote(*v.text);
  if (v.is(Kind::none) && !n.python) return put("null");
  if (v.is(Kind::boolean) && !n.python) return put(v.integer ? "true" : "false");
  if (v.is_number() || v.is(Kind::none)) return c.append(out, to_text(c, v));
  if (!v.is_sequence() && !v.is(Kind::dict))
    c.fail(fmt::format("unsupported: printing a {}{}", kind_name(v.kind), n.python ? "" : " as JSON"));
  const bool dict = v.is(Kind::dict), tuple = v.is(Kind::tuple) && n.python;
  put(dict ? "{" : tuple ? "(" : "[");
  const size_t size = v.items->values.size();
  for (size_t i = 0; i < size; ++i) {
    if (i > 0) put(n.indent < 0 ? ", " : ",");
    new_line(level + 1);
    if (dict) {
      const Value& key = v.items->keys[i];
      const bool shown = n.python || key.is(Kind::string);  // JSON has only strings as keys
      if (key.is(Kind::boolean)) c.fail("unsupported: printing a boolean key");
      write(c, shown ? key : c.string(to_text(c, key)), n, level, out);
      put(": ");
    }
    write(c, v.items->values[i], n, level + 1, out);
  }
  if (size > 0) new_line(level);
  put(dict ? "}" : !tuple ? "]" : size == 1 ? ",)" : ")");
}

}  // namespace nano::jinja
