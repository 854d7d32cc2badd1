// What a template can call: one table of filters, tests, methods and functions. The parser has checked that each
// exists, has its required arguments and no others. What is missing here is refused, never guessed.
#include <ctime>

#include <fmt/format.h>

#include "text/jinja.h"  // Builtin, Context, Value

namespace nano::jinja {
namespace {

const Text& string_of(Context& c, const Value& v) {
  if (!v.given()) get_item(c, v, {});  // says what is undefined
  if (!v.is(Kind::string)) c.fail(fmt::format("expected a string, got a {}", type_name(v)));
  return *v.text;
}

Items& dict_of(Context& c, const Value& v) {
  if (!v.given()) get_item(c, v, {});
  if (!v.is(Kind::dict)) c.fail(fmt::format("expected a mapping, got a {}", type_name(v)));
  return *v.items;
}

Value items(Context& c, const Args& a) {
  const Items& dict = dict_of(c, a[0]);
  std::vector<Value> out;
  for (size_t i = 0; i < dict.keys.size(); ++i) out.push_back(c.list({dict.keys[i], dict.values[i]}));
  return c.list(std::move(out));
}

Value get(Context& c, const Args& a) {
  dict_of(c, a[0]);
  const Value found = get_item(c, a[0], a[1]);
  return found.given() ? found : a[2].given() ? a[2] : Value{.kind = Kind::none};
}

template <bool left, bool right>
Value stripped(Context& c, const Args& a) {
  const Text& text = string_of(c, a[0]);
  const std::string_view characters = a[1].given() ? std::string_view(string_of(c, a[1]).bytes) : kWhiteSpace;
  const std::string_view kept = strip(text.bytes, characters, left, right);
  return c.string(text.slice(size_t(kept.data() - text.bytes.data()), kept.size()));
}

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
    const Value subject = by_attribute ? get_item(c, item, a[1]) : item;
    if (truthy(builtin ? builtin->call(c, {subject, argument}) : subject) == keep) out.push_back(item);
  }
  return c.list(std::move(out));
}

Value length(Context& c, const Args& a) {
  if (a[0].is_number() || a[0].is(Kind::none)) c.fail(fmt::format("a {} has no length", type_name(a[0])));
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

template <Kind... kinds>
Value is_a(Context&, const Args& a) {
  return boolean((a[0].is(kinds) || ...));
}
template <bool value>
Value is_bool(Context&, const Args& a) {
  return boolean(a[0].is(Kind::boolean) && (a[0].integer != 0) == value);
}
Value defined(Context&, const Args& a) { return boolean(a[0].given()); }
Value is_equal(Context& c, const Args& a) { return boolean(equal(c, a[0], a[1])); }
Value is_in(Context& c, const Args& a) { return boolean(contains(c, a[1], a[0])); }

// Filters take what is no string by its text; nothing is escaped, so that `safe` has nothing to do.
Value string(Context& c, const Args& a) { return c.string(to_text(c, a[0])); }
Value trim(Context& c, const Args& a) { return stripped<true, true>(c, {string(c, a), a[1]}); }
Value listed(Context& c, const Args& a) { return c.list(iterate(c, a[0])); }
Value safe(Context&, const Args& a) { return a[0]; }

using B = Builtin;
constexpr Builtin kBuiltins[] = {
    {B::filter, "default", "default_value boolean ", 0, default_value},
    {B::filter, "items", "", 0, items},
    {B::filter, "join", "d ", 0, join},
    {B::filter, "length", "", 0, length},
    {B::filter, "list", "", 0, listed},
    {B::filter, "reject", "test argument ", 0, select<false, false>},
    {B::filter, "safe", "", 0, safe},
    {B::filter, "selectattr", "attribute test argument ", 1, select<true, true>},
    {B::filter, "string", "", 0, string},
    {B::filter, "tojson", "ensure_ascii indent ", 0, tojson},
    {B::filter, "trim", "chars ", 0, trim},

    {B::test, "defined", "", 0, defined},
    {B::test, "eq", "other ", 1, is_equal},
    {B::test, "equalto", "other ", 1, is_equal},
    {B::test, "false", "", 0, is_bool<false>},
    {B::test, "in", "seq ", 1, is_in},
    {B::test, "iterable", "", 0, is_a<Kind::string, Kind::list, Kind::dict, Kind::undefined>},
    {B::test, "mapping", "", 0, is_a<Kind::dict>},
    {B::test, "none", "", 0, is_a<Kind::none>},
    {B::test, "sequence", "", 0, is_a<Kind::string, Kind::list, Kind::dict, Kind::undefined>},
    {B::test, "string", "", 0, is_a<Kind::string>},
    {B::test, "true", "", 0, is_bool<true>},
    {B::test, "undefined", "", 0, is_a<Kind::undefined>},

    {B::method, "endswith", "suffix ", 1, starts<true>},
    {B::method, "get", "key default ", 1, get},
    {B::method, "items", "", 0, items},
    {B::method, "lstrip", "chars ", 0, stripped<true, false>},
    {B::method, "replace", "old new ", 2, replace},
    {B::method, "rstrip", "chars ", 0, stripped<false, true>},
    {B::method, "split", "sep ", 1, split},
    {B::method, "startswith", "prefix ", 1, starts<false>},
    {B::method, "strip", "chars ", 0, stripped<true, true>},

    {B::function, "raise_exception", "message ", 1, raise},
    {B::function, "strftime_now", "format ", 1, local_time}};

}  // namespace

const Builtin* find_builtin(Builtin::Kind kind, std::string_view name) {
  for (const Builtin& builtin : kBuiltins)
    if (builtin.kind == kind && name == builtin.name) return &builtin;
  return nullptr;
}

}  // namespace nano::jinja
