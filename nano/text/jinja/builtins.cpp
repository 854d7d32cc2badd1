// What a template can do with values: one table of filters, tests, methods and functions, and behind it the syntax that
// has no name. The parser has checked that each exists, has its required arguments and no others.
// What is missing here is refused, never guessed.
#include <algorithm>
#include <ctime>

#include <fmt/format.h>

#include "text/jinja/jinja.h"  // Builtin, Context, Value

namespace nano::jinja {
namespace {

const Text& string_of(Context& c, const Value& v) { return *c.expect(v, Kind::string).text; }
Items& dict_of(Context& c, const Value& v) { return *c.expect(v, Kind::dict).items; }

bool contains(Context& c, const Value& container, const Value& item) {
  if (container.is(Kind::string)) return find(c, *container.text, string_of(c, item), 0) != std::string::npos;
  const std::vector<Value> items = iterate(c, container);
  return std::any_of(items.begin(), items.end(), [&](const Value& v) { return equal(c, v, item); });
}

Value items(Context& c, const Args& a) {
  const Items& dict = dict_of(c, a[0]);
  std::vector<Value> out;
  for (size_t i = 0; i < dict.keys.size(); ++i) out.push_back(c.list({dict.keys[i], dict.values[i]}));
  return c.list(std::move(out));
}

Value get(Context& c, const Args& a) {
  dict_of(c, a[0]);
  const Value found = get_item(c, {a[0], a[1]});
  return found.given() ? found : a[2].given() ? a[2] : Value{.kind = Kind::none};
}

template <bool left, bool right>
Value stripped(Context& c, const Args& a) {
  const Text& text = string_of(c, a[0]);
  const std::string_view characters = a[1].given() ? std::string_view(string_of(c, a[1]).bytes) : kWhiteSpace;
  const std::string_view kept = strip(text.bytes, characters, left, right);
  return c.string(text.slice(size_t(kept.data() - text.bytes.data()), kept.size()));
}

Value trim(Context& c, const Args& a) { return stripped<true, true>(c, {c.string(to_text(c, a[0])), a[1]}); }

Value split(Context& c, const Args& a) {
  const Text &text = string_of(c, a[0]), &separator = string_of(c, a[1]);
  if (separator.bytes.empty()) c.fail("empty separator");
  std::vector<Value> parts;
  for (size_t at = 0;;) {
    const size_t end = find(c, text, separator, at);
    parts.push_back(c.string(text.slice(at, end - at)));
    if (end == std::string::npos) return c.list(std::move(parts));
    at = end + separator.bytes.size();
  }
}

Value join(Context& c, const Args& a) {
  Text out;
  const std::vector<Value> parts = iterate(c, a[0]);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0 && a[1].given()) c.append(out, to_text(c, a[1]));
    c.append(out, to_text(c, parts[i]));
  }
  return c.string(std::move(out));
}

Value replace(Context& c, const Args& a) {
  if (string_of(c, a[1]).bytes.empty()) c.fail("unsupported: replace of an empty string");
  return join(c, {split(c, a), c.string(string_of(c, a[2]))});
}

// The items of a[0] that pass a test, or whose attribute a[1] does; the test's name and its argument come next.
template <bool keep, bool by_attribute>
Value select(Context& c, const Args& a) {
  if (by_attribute && string_of(c, a[1]).bytes.find('.') != std::string::npos)
    c.fail("unsupported: a path as an attribute");
  const Value &test = a[by_attribute ? 2 : 1], &argument = a[by_attribute ? 3 : 2];
  const Builtin* builtin = test.given() ? find_builtin(Builtin::test, test.text->bytes) : nullptr;
  std::vector<Value> out;
  for (const Value& item : iterate(c, a[0])) {
    const Value subject = by_attribute ? get_item(c, {item, a[1]}) : item;
    if (truthy(builtin ? builtin->call(c, {subject, argument}) : subject) == keep) out.push_back(item);
  }
  return c.list(std::move(out));
}

Value length(Context& c, const Args& a) {
  if (a[0].is_number() || a[0].is(Kind::none))
    c.fail(fmt::format("a {} has no length", kind_name(a[0].kind)));
  return integer(int64_t(iterate(c, a[0]).size()));
}

Value default_value(Context& c, const Args& a) {
  const bool use = !a[0].given() || (truthy(a[2]) && !truthy(a[0]));
  return !use ? a[0] : a[1].given() ? a[1] : c.string("", Text::kOwn);
}

Value tojson(Context& c, const Args& a) {
  if (truthy(a[1])) c.fail("unsupported: ensure_ascii");
  if (a[2].given() && (!a[2].is_int() || a[2].integer < 0 || a[2].integer > 16))
    c.fail("indent must be 0 to 16");
  Text out;
  to_json(c, a[0], a[2].given() ? int(a[2].integer) : -1, 0, out);
  return c.string(std::move(out));
}

template <bool at_end>
Value starts(Context& c, const Args& a) {
  const std::string &text = string_of(c, a[0]).bytes, &part = string_of(c, a[1]).bytes;
  const size_t at = at_end && part.size() < text.size() ? text.size() - part.size() : 0;
  return boolean(text.compare(at, part.size(), part) == 0);
}

Value local_time(Context& c, const Args& a) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char out[256];
  return c.string({out, std::strftime(out, sizeof out, string_of(c, a[1]).bytes.c_str(), &local)},
                  Text::kOwn);
}

[[noreturn]] Value raise(Context& c, const Args& a) { c.fail(to_text(c, a[1]).bytes); }

Value is_equal(Context& c, const Args& a) { return boolean(equal(c, a[0], a[1])); }

template <Kind... kinds>
Value is_a(Context&, const Args& a) {
  return boolean((a[0].is(kinds) || ...));
}

using B = Builtin;
using C = Context;
using A = const Args&;
// Filters take what is no string by its text; nothing is escaped, so that `safe` has nothing to do.
constexpr Builtin kBuiltins[] = {
    {B::filter, "default", {"default_value", "boolean"}, 0, default_value},
    {B::filter, "items", {}, 0, items},
    {B::filter, "join", {"d"}, 0, join},
    {B::filter, "length", {}, 0, length},
    {B::filter, "list", {}, 0, [](C& c, A a) { return c.list(iterate(c, a[0])); }},
    {B::filter, "reject", {"test", "argument"}, 0, select<false, false>},
    {B::filter, "safe", {}, 0, [](C&, A a) { return a[0]; }},
    {B::filter, "selectattr", {"attribute", "test", "argument"}, 1, select<true, true>},
    {B::filter, "string", {}, 0, [](C& c, A a) { return c.string(to_text(c, a[0])); }},
    {B::filter, "tojson", {"ensure_ascii", "indent"}, 0, tojson},
    {B::filter, "trim", {"chars"}, 0, trim},

    {B::test, "defined", {}, 0, [](C&, A a) { return boolean(a[0].given()); }},
    {B::test, "eq", {"other"}, 1, is_equal},
    {B::test, "equalto", {"other"}, 1, is_equal},
    {B::test, "false", {}, 0, [](C&, A a) { return boolean(a[0].is(Kind::boolean) && !truthy(a[0])); }},
    {B::test, "in", {"seq"}, 1, [](C& c, A a) { return boolean(contains(c, a[1], a[0])); }},
    {B::test, "iterable", {}, 0, is_a<Kind::string, Kind::list, Kind::dict, Kind::undefined>},
    {B::test, "mapping", {}, 0, is_a<Kind::dict>},
    {B::test, "none", {}, 0, is_a<Kind::none>},
    {B::test, "sequence", {}, 0, is_a<Kind::string, Kind::list, Kind::dict, Kind::undefined>},
    {B::test, "string", {}, 0, is_a<Kind::string>},
    {B::test, "true", {}, 0, [](C&, A a) { return boolean(a[0].is(Kind::boolean) && truthy(a[0])); }},
    {B::test, "undefined", {}, 0, is_a<Kind::undefined>},

    {B::method, "endswith", {"suffix"}, 1, starts<true>},
    {B::method, "get", {"key", "default"}, 1, get},
    {B::method, "items", {}, 0, items},
    {B::method, "lstrip", {"chars"}, 0, stripped<true, false>},
    {B::method, "replace", {"old", "new"}, 2, replace},
    {B::method, "rstrip", {"chars"}, 0, stripped<false, true>},
    {B::method, "split", {"sep"}, 1, split},
    {B::method, "startswith", {"prefix"}, 1, starts<false>},
    {B::method, "strip", {"chars"}, 0, stripped<true, true>},

    {B::function, "raise_exception", {"message"}, 1, raise},
    {B::function, "strftime_now", {"format"}, 1, local_time}};

Value collect_pairs(Context& c, Kind kind, const Args& a) {
  Items items;
  for (size_t i = 0; i < a.size(); i += 2) {
    if (!a[i].is(Kind::string)) c.fail("unsupported: a dict key that is not a string");
    c.charge(items.keys.size() / 16);
    items.set(a[i], a[i + 1]);
  }
  return c.collect(kind, std::move(items));
}

}  // namespace

// --- syntax without a name
Value get_item(Context& c, const Args& a) {  // x[key] and x.key: undefined if x has no such item
  const Value &object = c.given(a[0]), &key = a[1];
  const Value missing{.name = key.is(Kind::string) ? &key.text->bytes : nullptr};
  if (key.is(Kind::string) && (object.is(Kind::dict) || object.is(Kind::name_space))) {
    c.charge(object.items->keys.size() / 16);
    const Value* found = object.items->find(key.text->bytes);
    return found ? *found : missing;
  }
  if (!key.is_int() || (!object.is(Kind::list) && !object.is(Kind::string))) return missing;
  const std::vector<Value> items = iterate(c, object);
  const int64_t n = int64_t(items.size()), i = key.integer < 0 ? key.integer + n : key.integer;
  return i >= 0 && i < n ? items[size_t(i)] : missing;
}

Value slice(Context& c, const Args& a) {  // x[begin:end:step], as Python's slice.indices
  if (!a[0].is(Kind::string) && !a[0].is(Kind::list))
    c.fail(fmt::format("a slice of {}", kind_name(a[0].kind)));
  for (size_t i = 1; i < 4; ++i)
    if (a[i].given() && !a[i].is_int()) c.fail("unsupported: slice bounds that are not integers");
  const std::vector<Value> items = iterate(c, a[0]);
  const int64_t n = int64_t(items.size());
  const int64_t step = a[3].given() ? std::clamp(a[3].integer, -n - 1, n + 1) : 1;
  if (step == 0) c.fail("slice step cannot be zero");
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
  const auto bound = [&](const Value& b, int64_t open) {
    return b.given() ? std::clamp(b.integer < 0 ? b.integer + n : b.integer, low, high) : open;
  };
  const int64_t begin = bound(a[1], step > 0 ? low : high), end = bound(a[2], step > 0 ? high : low);
  std::vector<Value> chosen;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) chosen.push_back(items[size_t(i)]);
  const Value list = c.list(std::move(chosen));
  return a[0].is(Kind::list) ? list : join(c, {list, {}});
}

Value make_list(Context& c, const Args& a) { return c.list(a); }
// Both: key, value, key, value …
Value make_dict(Context& c, const Args& a) { return collect_pairs(c, Kind::dict, a); }
Value make_namespace(Context& c, const Args& a) { return collect_pairs(c, Kind::name_space, a); }

Value negate(Context&, const Args& a) { return boolean(!truthy(a[0])); }

Value set_attribute(Context& c, const Args& a) {  // namespace, attribute, value
  c.expect(a[0], Kind::name_space).items->set(a[1], a[2]);
  return {};
}

Value binary(Context& c, std::string_view op, const Value& a, const Value& b) {
  if (op == "==") return boolean(equal(c, a, b));
  if (op == "!=") return boolean(!equal(c, a, b));
  if (op == "in") return boolean(contains(c, b, a));
  if (op == "not in") return boolean(!contains(c, b, a));
  if (op == "~" || (op == "+" && a.is(Kind::string) && b.is(Kind::string))) {
    Text out = to_text(c, a);
    c.append(out, to_text(c, b));
    return c.string(std::move(out));
  }
  if (op == "+" && a.is(Kind::list) && b.is(Kind::list)) {
    std::vector<Value> values = a.items->values;
    values.insert(values.end(), b.items->values.begin(), b.items->values.end());
    return c.list(std::move(values));
  }
  if (!c.given(a).is_int() || !c.given(b).is_int())
    c.fail(fmt::format("unsupported: {} {} {}", kind_name(a.kind), op, kind_name(b.kind)));
  const int64_t x = a.integer, y = b.integer;
  if (op == "<") return boolean(x < y);
  if (op == "<=") return boolean(x <= y);
  if (op == ">") return boolean(x > y);
  if (op == ">=") return boolean(x >= y);
  if (op == "%" && y <= 0) c.fail("unsupported: % of something that is not positive");
  if (op == "%") return integer(x % y < 0 ? x % y + y : x % y);  // has the sign of y, in Python
  int64_t result = 0;
  if (op == "+" ? __builtin_add_overflow(x, y, &result) : __builtin_sub_overflow(x, y, &result))
    c.fail("a number is beyond 64 bits");
  return integer(result);
}

const Builtin* find_builtin(Builtin::Kind kind, std::string_view name) {
  for (const Builtin& builtin : kBuiltins)
    if (builtin.kind == kind && name == builtin.name) return &builtin;
  return nullptr;
}

}  // namespace nano::jinja
