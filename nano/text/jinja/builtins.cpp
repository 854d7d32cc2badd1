// What a template can do with values: a table of filters, tests, methods and functions. strings.cpp has those
// on strings, operators.cpp the syntax that has no name. The parser has checked that each exists, has its required
// arguments and no others. What is missing here is refused, never guessed.
#include <algorithm>
#include <ctime>
#include <iterator>

#include <fmt/format.h>

#include "text/jinja/jinja.h"  // Builtin, Context, Value
#include "text/utf8.h"         // first_character

namespace nano::jinja {
namespace {

Items& dict_of(Context& c, const Value& v) { return *c.expect(v, Kind::dict).items; }

// Those of a dict: its pairs, values or keys.
template <Kind kind, bool keys, bool values>
Value items(Context& c, const Args& a) {
  if (kind == Kind::generator && !a[0].given()) return c.collect(kind, {});  // the filter takes this, too
  const Items& dict = dict_of(c, a[0]);
  std::vector<Value> out = !keys ? dict.values : dict.keys;
  if (keys && values)
    for (size_t i = 0; i < out.size(); ++i) out[i] = c.collect(Kind::tuple, {{out[i], dict.values[i]}});
  return c.collect(kind, {std::move(out)});
}

Value get_or(Context& c, const Args& a) {
  dict_of(c, a[0]);
  const Value found = get(c, a[0], a[1]);
  return found.given() ? found : a[2].given() ? a[2] : Value{.kind = Kind::none};
}

// An attribute as filters name it: "name", and no path.
Value attribute(Context& c, const Value& item, const Value& name) {
  const std::string& text = string_of(c, name).bytes;
  if (text.find_first_of(".,0123456789") == 0 || text.find_first_of(".,") != text.npos)
    c.fail("unsupported: a path as an attribute");
  return get(c, item, name);
}

// The filter or test of that name on a subject; its arguments begin at a[from].
Value apply(Context& c, Builtin::Kind kind, const Value& name, Value subject, const Args& a, size_t from) {
  const Builtin& builtin = *find_builtin(kind, name.text->bytes);
  Args operands(1 + builtin.params.size());
  operands[0] = std::move(subject);
  for (size_t i = from; i < a.size(); ++i) {
    const size_t place = i - from;
    if (a[i].given() ? builtin.params[place].empty() : place < builtin.required)
      c.fail(fmt::format("'{}': an argument too few or too many", builtin.name));
    operands[1 + place] = a[i];
  }
  return builtin.call(c, operands);
}

// The items of a[0] that pass a test, or whose attribute a[1] does; the test's name and its argument come next.
template <bool keep, bool by_attribute>
Value select(Context& c, const Args& a) {
  const Value& test = a[by_attribute ? 2 : 1];
  std::vector<Value> out;
  for (const Value& item : iterate(c, truthy(a[0]) ? a[0] : Value{})) {  // none of none, too
    Value subject = by_attribute ? attribute(c, item, a[1]) : item;
    if (test.given()) subject = apply(c, Builtin::test, test, std::move(subject), a, by_attribute ? 3 : 2);
    if (truthy(subject) == keep) out.push_back(item);
  }
  return c.collect(Kind::generator, {std::move(out)});
}

// filter, its two arguments, attribute, default
Value map(Context& c, const Args& a) {
  if (a[1].given() == a[4].given()) c.fail("map: needs a filter or an attribute");
  std::vector<Value> out;
  for (const Value& item : iterate(c, truthy(a[0]) ? a[0] : Value{})) {
    out.push_back(a[1].given() ? apply(c, Builtin::filter, a[1], item, {a[2], a[3]}, 0)
                               : attribute(c, item, a[4]));
    if (!out.back().given() && a[5].given()) out.back() = a[5];
  }
  return c.collect(Kind::generator, {std::move(out)});
}

// What sort, unique … compare: an item or its attribute, strings without regard to case.
std::vector<std::pair<Value, Value>> keyed(Context& c, const std::vector<Value>& items, const Value& name,
                                           bool case_sensitive) {
  std::vector<std::pair<Value, Value>> out;
  for (const Value& item : items) {
    Value key = name.given() && !name.is(Kind::none) ? attribute(c, item, name) : item;
    if (key.is(Kind::string) && !case_sensitive) key = find_builtin(Builtin::filter, "lower")->call(c, {key});
    out.emplace_back(std::move(key), item);
  }
  return out;
}

Value sorted(Context& c, std::vector<std::pair<Value, Value>> items, bool reverse) {
  std::stable_sort(items.begin(), items.end(), [&](const auto& x, const auto& y) {
    return reverse ? compare(c, y.first, x.first) < 0 : compare(c, x.first, y.first) < 0;
  });
  std::vector<Value> out;
  for (auto& [key, item] : items) out.push_back(std::move(item));
  return c.list(std::move(out));
}

Value sort(Context& c, const Args& a) {
  return sorted(c, keyed(c, iterate(c, a[0]), a[3], truthy(a[2])), truthy(a[1]));
}

Value dictsort(Context& c, const Args& a) {
  auto by = keyed(c, items<Kind::list, true, false>(c, a).items->values, {}, truthy(a[1]));
  for (auto& [key, pair] : by) pair = c.collect(Kind::tuple, {{pair, *dict_of(c, a[0]).find(c, pair)}});
  return sorted(c, std::move(by), truthy(a[2]));
}

Value unique(Context& c, const Args& a) {
  std::vector<Value> out, seen;
  for (const auto& [key, item] : keyed(c, iterate(c, a[0]), a[2], truthy(a[1]))) {
    const Value& wanted = key;
    const auto is_it = [&](const Value& other) { return equal(c, other, wanted); };
    if (std::any_of(seen.begin(), seen.end(), is_it)) continue;
    seen.push_back(key), out.push_back(item);
  }
  return c.collect(Kind::generator, {std::move(out)});
}

template <bool largest>
Value extreme(Context& c, const Args& a) {
  const Value all = sorted(c, keyed(c, iterate(c, a[0]), a[2], truthy(a[1])), largest);
  return get(c, all, integer(0));
}

template <bool at_end>
Value end_item(Context& c, const Args& a) {
  if (at_end && a[0].is(Kind::generator)) c.fail("a generator has no last item");
  if (a[0].is(Kind::string)) return get(c, a[0], integer(at_end ? -1 : 0));
  const std::vector<Value>& items = elements(c, a[0]);
  return items.empty() ? Value{} : at_end ? items.back() : items.front();
}

Value range(Context& c, const Args& a) {
  const int64_t first = int_of(c, a[1], 0), step = int_of(c, a[3], 1);
  const int64_t begin = a[2].given() ? first : 0, end = a[2].given() ? int_of(c, a[2], 0) : first;
  if (step == 0) c.fail("range() by steps of 0");
  std::vector<Value> out;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    c.charge(1);
    out.push_back(integer(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return c.collect(Kind::view, {std::move(out)});
}

Value length(Context& c, const Args& a) {
  if (a[0].is(Kind::string)) {
    int64_t n = 0;
    std::string_view rest = a[0].text->bytes;
    for (; !rest.empty(); ++n) rest.remove_prefix(first_character(rest));
    c.charge_walk(a[0].text->bytes.size());
    return integer(n);
  }
  if (a[0].given() && (!a[0].items || a[0].is(Kind::generator) || a[0].is(Kind::name_space)))
    c.fail(fmt::format("a {} has no length", kind_name(a[0].kind)));
  return integer(a[0].given() ? int64_t(a[0].items->values.size()) : 0);
}

Value to_int(Context& c, const Args& a) {
  if (!a[0].is_int()) c.fail(fmt::format("unsupported: int of a {}", kind_name(a[0].kind)));
  return integer(a[0].integer);
}

Value default_value(Context& c, const Args& a) {
  const bool use = !a[0].given() || (truthy(a[2]) && !truthy(a[0]));
  return !use ? a[0] : a[1].given() ? a[1] : c.string("", Text::kOwn);
}

[[noreturn]] Value refuse_change(Context& c, const Args&) {
  c.fail("a template cannot change a list or mapping, only make a new one");
}

Value local_time(Context& c, const Args& a) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  const Text& format = string_of(c, a[1]);
  char out[256];
  const size_t size = std::strftime(out, sizeof out, format.bytes.c_str(), &local);
  if (size == 0 && !format.bytes.empty()) c.fail("unsupported: a date of more than 255 bytes, or none");
  return c.string({out, size}, format.whose());
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
constexpr Builtin kTable[] = {
    {B::filter, "count", {}, 0, length},
    {B::filter, "d", {"default_value", "boolean"}, 0, default_value},
    {B::filter, "default", {"default_value", "boolean"}, 0, default_value},
    {B::filter, "dictsort", {"case_sensitive", "reverse"}, 0, dictsort},
    {B::filter, "first", {}, 0, end_item<false>},
    {B::filter, "int", {}, 0, to_int},
    {B::filter, "items", {}, 0, items<Kind::generator, true, true>},
    {B::filter, "last", {}, 0, end_item<true>},
    {B::filter, "length", {}, 0, length},
    {B::filter, "list", {}, 0, [](C& c, A a) { return c.list(iterate(c, a[0])); }},
    {B::filter, "map", {"filter", "0", "1", "attribute", "default"}, 0, map},
    {B::filter, "max", {"case_sensitive", "attribute"}, 0, extreme<true>},
    {B::filter, "min", {"case_sensitive", "attribute"}, 0, extreme<false>},
    {B::filter, "reject", {"test", "argument"}, 0, select<false, false>},
    {B::filter, "rejectattr", {"attribute", "test", "argument"}, 1, select<false, true>},
    {B::filter, "select", {"test", "argument"}, 0, select<true, false>},
    {B::filter, "selectattr", {"attribute", "test", "argument"}, 1, select<true, true>},
    {B::filter, "sort", {"reverse", "case_sensitive", "attribute"}, 0, sort},
    {B::filter, "unique", {"case_sensitive", "attribute"}, 0, unique},

    {B::test, "==", {"other"}, 1, is_equal},
    {B::test, "boolean", {}, 0, is_a<Kind::boolean>},
    {B::test, "defined", {}, 0, [](C&, A a) { return boolean(a[0].given()); }},
    {B::test, "eq", {"other"}, 1, is_equal},
    {B::test, "equalto", {"other"}, 1, is_equal},
    {B::test, "false", {}, 0, [](C&, A a) { return boolean(a[0].is(Kind::boolean) && !truthy(a[0])); }},
    {B::test, "in", {"seq"}, 1, [](C& c, A a) { return boolean(contains(c, a[1], a[0])); }},
    {B::test,
     "iterable",
     {},
     0,
     is_a<Kind::string, Kind::list, Kind::tuple, Kind::view, Kind::generator, Kind::dict, Kind::undefined>},
    {B::test, "mapping", {}, 0, is_a<Kind::dict>},
    {B::test, "none", {}, 0, is_a<Kind::none>},
    {B::test, "number", {}, 0, [](C&, A a) { return boolean(a[0].is_number()); }},
    {B::test, "sequence", {}, 0, is_a<Kind::string, Kind::list, Kind::tuple, Kind::dict, Kind::undefined>},
    {B::test, "string", {}, 0, is_a<Kind::string>},
    {B::test, "true", {}, 0, [](C&, A a) { return boolean(a[0].is(Kind::boolean) && truthy(a[0])); }},
    {B::test, "undefined", {}, 0, is_a<Kind::undefined>},

    {B::method, "append", {"x"}, 0, refuse_change},
    {B::method, "get", {"key", "default"}, 1, get_or},
    {B::method, "items", {}, 0, items<Kind::view, true, true>},
    {B::method, "keys", {}, 0, items<Kind::view, true, false>},
    {B::method, "pop", {"x", "default"}, 0, refuse_change},
    {B::method, "values", {}, 0, items<Kind::view, false, true>},

    {B::function, "raise_exception", {"message"}, 1, raise},
    {B::function, "range", {"first", "second", "step"}, 1, range},
    {B::function, "strftime_now", {"format"}, 1, local_time}};

}  // namespace

const std::span<const Builtin> kBuiltins = kTable;

const Builtin* find_builtin(Builtin::Kind kind, std::string_view name) {
  for (const std::span<const Builtin>& table : {kBuiltins, kStringBuiltins})
    for (const Builtin& builtin : table)
      if (builtin.kind == kind && name == builtin.name) return &builtin;
  return nullptr;
}

}  // namespace nano::jinja
