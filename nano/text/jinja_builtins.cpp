// What a template can call: one table of filters, tests, methods and functions. The parser has checked that each
// exists, has its required arguments and no others. What is missing here is refused, never guessed.
#include <ctime>

#include <fmt/format.h>

#include "text/jinja.h"  // Builtin, Context, Value

namespace nano::jinja {
namespace {

bool given(const Value& v) { return !v.is(Kind::undefined); }

const Text& string_of(Context& c, const Value& v) {
  if (!v.is(Kind::string)) c.fail(fmt::format("expected a string, got a {}", type_name(v)));
  return *v.text;
}

Dict& dict_of(Context& c, const Value& v) {
  if (!v.is(Kind::dict)) c.fail(fmt::format("expected a mapping, got a {}", type_name(v)));
  return *v.dict;
}

int64_t length(Context& c, const Value& v) {
  if (v.is(Kind::list)) return int64_t(v.list->items.size());
  if (v.is(Kind::string) || v.is(Kind::dict) || v.is(Kind::undefined)) return int64_t(iterate(c, v).size());
  c.fail(fmt::format("a {} has no length", type_name(v)));
}

// The keys, the values, or (key, value) of each item.
Value members(Context& c, const Value& mapping, bool keys, bool values) {
  std::vector<Value> out;
  for (const auto& [name, value] : dict_of(c, mapping).items) {
    Value key;
    key.kind = Kind::string, key.text = name;
    out.push_back(keys && values ? c.list({key, value}, true) : keys ? key : value);
  }
  return c.list(std::move(out));
}

Value items(Context& c, const Args& a) { return members(c, a[0], true, true); }

Value strip_text(Context& c, const Text& text, const Value& characters, bool left, bool right) {
  const std::string_view set = given(characters) ? string_of(c, characters).bytes : kWhiteSpace;
  const std::string_view kept = strip(text.bytes, set, left, right);
  return c.string(text.slice(size_t(kept.data() - text.bytes.data()), kept.size()));
}

Value split(Context& c, const Args& a) {
  const Text &text = string_of(c, a[0]), &separator = string_of(c, a[1]);
  if (separator.bytes.empty()) c.fail("empty separator");
  std::vector<Value> parts;
  for (size_t at = 0;;) {
    const size_t end = find_text(c, text, separator.bytes, at);
    parts.push_back(c.string(text.slice(at, end - at)));
    if (end == std::string::npos) return c.list(std::move(parts));
    at = end + separator.bytes.size();
  }
}

Value replace(Context& c, const Args& a) {
  const Text text = to_text(c, a[0]);
  const Text &from = string_of(c, a[1]), &to = string_of(c, a[2]);
  if (from.bytes.empty()) c.fail("unsupported: replace of an empty string");
  Text out;
  for (size_t at = 0;;) {
    const size_t end = find_text(c, text, from.bytes, at);
    c.append(out, text.slice(at, end - at));
    if (end == std::string::npos) return c.string(std::move(out));
    c.append(out, to);
    c.charge(1);
    at = end + from.bytes.size();
  }
}

Value join(Context& c, const Args& a) {
  Text out;
  bool first = true;
  for (const Value& item : iterate(c, a[0])) {
    if (!first && given(a[1])) c.append(out, to_text(c, a[1]));
    c.append(out, to_text(c, item));
    first = false;
  }
  return c.string(std::move(out));
}

Value attribute(Context& c, const Value& object, const Value& name) {
  if (string_of(c, name).bytes.find('.') != std::string::npos) c.fail("unsupported: a path as an attribute");
  return get_item(c, object, name);
}

// The items of a[0] that pass a test: the item itself, or its attribute a[1]; the test's name is a[test].
Value select(Context& c, const Args& a, bool keep, bool by_attribute) {
  const size_t test = by_attribute ? 2 : 1;
  std::vector<Value> out;
  for (const Value& item : iterate(c, a[0])) {
    const Value subject = by_attribute ? attribute(c, item, a[1]) : item;
    const Builtin* builtin = given(a[test]) ? find_builtin(Builtin::test, a[test].text->bytes) : nullptr;
    if (truthy(builtin ? builtin->call(c, {subject, a[test + 1]}) : subject) == keep) out.push_back(item);
  }
  return c.list(std::move(out));
}

Value map(Context& c, const Args& a) {
  std::vector<Value> out;
  for (const Value& item : iterate(c, a[0])) out.push_back(attribute(c, item, a[1]));
  return c.list(std::move(out));
}

Value default_value(Context& c, const Args& a) {
  const bool use = !given(a[0]) || (truthy(a[2]) && !truthy(a[0]));
  return !use ? a[0] : given(a[1]) ? a[1] : c.own_string("");
}

Value json(Context& c, const Args& a) {
  if (given(a[1]) && (!a[1].is_int() || a[1].integer < 0 || a[1].integer > 16))
    c.fail("indent must be 0 to 16");
  return c.string(to_json(c, a[0], given(a[1]) ? int(a[1].integer) : -1));
}

Value starts(Context& c, const Args& a, bool at_end) {
  const std::string &text = string_of(c, a[0]).bytes, &part = string_of(c, a[1]).bytes;
  if (part.size() > text.size()) return boolean(false);
  return boolean(text.compare(at_end ? text.size() - part.size() : 0, part.size(), part) == 0);
}

Value range(Context& c, const Args& a) {
  if (!a[1].is_int() || (given(a[2]) && !a[2].is_int())) c.fail("range needs integers");
  const int64_t begin = given(a[2]) ? a[1].integer : 0, end = given(a[2]) ? a[2].integer : a[1].integer;
  std::vector<Value> out;
  for (int64_t i = begin; i < end; ++i) {
    c.charge(1);
    out.push_back(integer(i));
  }
  return c.list(std::move(out));
}

Value local_time(Context& c, const Args& a) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char out[256];
  return c.own_string({out, std::strftime(out, sizeof out, string_of(c, a[1]).bytes.c_str(), &local)});
}

template <Kind... kinds>
Value is_one_of(Context&, const Args& a) {
  return boolean((a[0].is(kinds) || ...));
}
Value is_equal(Context& c, const Args& a) { return boolean(equal(c, a[0], a[1])); }
Value length_of(Context& c, const Args& a) { return integer(length(c, a[0])); }

using B = Builtin;
constexpr Builtin kBuiltins[] = {
    {B::filter, "d", "default_value boolean ", 0, default_value},
    {B::filter, "default", "default_value boolean ", 0, default_value},
    {B::filter, "first", "", 0, [](Context& c, const Args& a) { return get_item(c, a[0], integer(0)); }},
    {B::filter, "last", "", 0, [](Context& c, const Args& a) { return get_item(c, a[0], integer(-1)); }},
    {B::filter, "items", "", 0, items},
    {B::filter, "join", "d ", 0, join},
    {B::filter, "length", "", 0, length_of},
    {B::filter, "count", "", 0, length_of},
    {B::filter, "list", "", 0, [](Context& c, const Args& a) { return c.list(iterate(c, a[0])); }},
    {B::filter, "map", "attribute= ", 1, map},
    {B::filter, "reject", "test argument ", 0,
     [](Context& c, const Args& a) { return select(c, a, false, false); }},
    {B::filter, "rejectattr", "attribute test argument ", 1,
     [](Context& c, const Args& a) { return select(c, a, false, true); }},
    {B::filter, "replace", "old new ", 2, replace},
    {B::filter, "safe", "", 0, [](Context&, const Args& a) { return a[0]; }},  // nothing is escaped here
    {B::filter, "select", "test argument ", 0,
     [](Context& c, const Args& a) { return select(c, a, true, false); }},
    {B::filter, "selectattr", "attribute test argument ", 1,
     [](Context& c, const Args& a) { return select(c, a, true, true); }},
    {B::filter, "string", "", 0, [](Context& c, const Args& a) { return c.string(to_text(c, a[0])); }},
    {B::filter, "tojson", "indent= ", 0, json},
    {B::filter, "trim", "chars ", 0,
     [](Context& c, const Args& a) { return strip_text(c, to_text(c, a[0]), a[1], true, true); }},

    {B::test, "boolean", "", 0, is_one_of<Kind::boolean>},
    {B::test, "defined", "", 0, [](Context&, const Args& a) { return boolean(given(a[0])); }},
    {B::test, "eq", "other ", 1, is_equal},
    {B::test, "equalto", "other ", 1, is_equal},
    {B::test, "false", "", 0,
     [](Context&, const Args& a) { return boolean(a[0].is(Kind::boolean) && !a[0].integer); }},
    {B::test, "in", "seq ", 1, [](Context& c, const Args& a) { return boolean(contains(c, a[1], a[0])); }},
    {B::test, "integer", "", 0, is_one_of<Kind::integer>},
    {B::test, "iterable", "", 0, is_one_of<Kind::string, Kind::list, Kind::dict, Kind::undefined>},
    {B::test, "mapping", "", 0, is_one_of<Kind::dict>},
    {B::test, "ne", "other ", 1, [](Context& c, const Args& a) { return boolean(!equal(c, a[0], a[1])); }},
    {B::test, "none", "", 0, is_one_of<Kind::none>},
    {B::test, "number", "", 0, is_one_of<Kind::boolean, Kind::integer, Kind::real>},
    {B::test, "sequence", "", 0, is_one_of<Kind::string, Kind::list, Kind::dict, Kind::undefined>},
    {B::test, "string", "", 0, is_one_of<Kind::string>},
    {B::test, "true", "", 0,
     [](Context&, const Args& a) { return boolean(a[0].is(Kind::boolean) && a[0].integer); }},
    {B::test, "undefined", "", 0, is_one_of<Kind::undefined>},

    {B::method, "endswith", "suffix ", 1, [](Context& c, const Args& a) { return starts(c, a, true); }},
    {B::method, "get", "key default ", 1,
     [](Context& c, const Args& a) {
       const Value* found = find(c, dict_of(c, a[0]), string_of(c, a[1]).bytes);
       return found ? *found : given(a[2]) ? a[2] : c.from_json(nullptr, Text::kOwn);
     }},
    {B::method, "items", "", 0, items},
    {B::method, "keys", "", 0, [](Context& c, const Args& a) { return members(c, a[0], true, false); }},
    {B::method, "lstrip", "chars ", 0,
     [](Context& c, const Args& a) { return strip_text(c, string_of(c, a[0]), a[1], true, false); }},
    {B::method, "replace", "old new ", 2,
     [](Context& c, const Args& a) { return string_of(c, a[0]), replace(c, a); }},
    {B::method, "rstrip", "chars ", 0,
     [](Context& c, const Args& a) { return strip_text(c, string_of(c, a[0]), a[1], false, true); }},
    {B::method, "split", "sep ", 1, split},
    {B::method, "startswith", "prefix ", 1, [](Context& c, const Args& a) { return starts(c, a, false); }},
    {B::method, "strip", "chars ", 0,
     [](Context& c, const Args& a) { return strip_text(c, string_of(c, a[0]), a[1], true, true); }},
    {B::method, "values", "", 0, [](Context& c, const Args& a) { return members(c, a[0], false, true); }},

    {B::function, "raise_exception", "message ", 1,
     [](Context& c, const Args& a) -> Value { c.fail(to_text(c, a[1]).bytes); }},
    {B::function, "range", "start stop ", 1, range},
    {B::function, "strftime_now", "format ", 1, local_time},
};

}  // namespace

const Builtin* find_builtin(Builtin::Kind kind, std::string_view name) {
  for (const Builtin& builtin : kBuiltins)
    if (builtin.kind == kind && name == builtin.name) return &builtin;
  return nullptr;
}

}  // namespace nano::jinja
