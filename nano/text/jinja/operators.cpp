// The syntax without a name: subscripts, slices, literals and operators, with Python's meaning.
#include <algorithm>

#include <fmt/format.h>

#include "text/jinja/jinja.h"  // Context, Value

namespace nano::jinja {

const Text& string_of(Context& c, const Value& v) {
  const Text& text = *c.expect(v, Kind::string).text;
  if (text.safe) c.fail("unsupported: a method of what the filter 'safe' returned");
  return text;
}

int64_t int_of(Context& c, const Value& v, int64_t otherwise) {
  if (v.given() && !v.is_int()) c.fail(fmt::format("expected an integer, got a {}", kind_name(v.kind)));
  return v.given() ? v.integer : otherwise;
}

// x[key] and x.key: undefined if x has no such item
Value get(Context& c, const Value& of, const Value& key) {
  const Value& object = c.given(of);
  const Value missing{.name = key.is(Kind::string) ? &key.text->bytes : nullptr};
  if ((key.is(Kind::string) || key.is_int()) && (object.is(Kind::dict) || object.is(Kind::name_space))) {
    const Value* found = object.items->find(c, key);
    return found ? *found : missing;
  }
  if (object.is(Kind::view) || object.is(Kind::generator))
    c.fail(fmt::format("unsupported: an item of a {}", kind_name(object.kind)));
  if (key.is_int() && object.is(Kind::string)) {
    const size_t begin = character(c, *object.text, key.integer), size = object.text->bytes.size();
    if (begin == size) return missing;
    const size_t end = key.integer == -1 ? size : character(c, *object.text, key.integer + 1);
    return end == begin ? missing : c.string(object.text->slice(begin, end - begin));
  }
  if (!key.is_int() || !object.is_sequence()) return missing;
  const std::vector<Value>& items = object.items->values;
  const int64_t n = int64_t(items.size()), i = key.integer < 0 ? key.integer + n : key.integer;
  return i >= 0 && i < n ? items[size_t(i)] : missing;
}
Value get_item(Context& c, const Args& a) { return get(c, a[0], a[1]); }
Value get_method_name(Context& c, const Args& a) {
  if (!a[0].is(Kind::dict)) return get_item(c, a);
  c.fail(fmt::format("'{0}' is a method of every mapping, write ['{0}'] for the key", a[1].text->bytes));
}

Value slice(Context& c, const Args& a) {  // x[begin:end:step], as Python's slice.indices
  if (!a[0].is(Kind::string) && !a[0].is_sequence())
    c.fail(fmt::format("a slice of {}", kind_name(a[0].kind)));
  for (size_t i = 1; i < 4; ++i)
    if (a[i].given() && !a[i].is_int()) c.fail("unsupported: slice bounds that are not integers");
  if (a[0].is(Kind::string) && (!a[3].given() || a[3].integer == 1)) {  // all that is read are the ends
    const size_t begin = a[1].given() ? character(c, *a[0].text, a[1].integer) : 0;
    const size_t end = a[2].given() ? character(c, *a[0].text, a[2].integer) : a[0].text->bytes.size();
    return c.string(begin < end ? a[0].text->slice(begin, end - begin) : Text{});
  }
  const std::vector<Value>& items = elements(c, a[0]);
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
  if (!a[0].is(Kind::string)) return c.collect(a[0].kind, {std::move(chosen)});
  Text text;
  for (const Value& character : chosen) c.append(text, *character.text);
  return c.string(std::move(text));
}

namespace {

Value collect_pairs(Context& c, Kind kind, const Args& a) {
  Items items;
  for (size_t i = 0; i < a.size(); i += 2) {
    if (!a[i].is(Kind::string) && !a[i].is_int())
      c.fail("unsupported: a key that is neither a string nor an integer");
    items.set(c, a[i], a[i + 1]);
  }
  return c.collect(kind, std::move(items));
}

}  // namespace

Value make_list(Context& c, const Args& a) { return c.list(a); }
Value make_tuple(Context& c, const Args& a) { return c.collect(Kind::tuple, {a}); }
// Both: key, value, key, value …
Value make_dict(Context& c, const Args& a) { return collect_pairs(c, Kind::dict, a); }
Value make_namespace(Context& c, const Args& a) { return collect_pairs(c, Kind::name_space, a); }

Value negate(Context&, const Args& a) { return boolean(!truthy(a[0])); }

Value set_attribute(Context& c, const Args& a) {  // namespace, attribute, value
  c.expect(a[0], Kind::name_space).items->set(c, a[1], a[2]);
  return {};
}

bool contains(Context& c, const Value& container, const Value& item) {
  if (container.is(Kind::string)) return find(c, *container.text, string_of(c, item), 0) != std::string::npos;
  const std::vector<Value>& items = elements(c, container);
  return std::any_of(items.begin(), items.end(), [&](const Value& v) { return equal(c, v, item); });
}

// What `safe` returned is HTML to Jinja: a string that is added to it is escaped.
Value concatenate(Context& c, const Text& a, const Text& b) {
  Text out;
  out.safe = a.safe || b.safe;
  for (const Text* text : {&a, &b}) {
    if (text->safe == out.safe) {
      c.append(out, *text);
      continue;
    }
    for (size_t i = 0; i < text->bytes.size(); ++i) {
      static constexpr const char* kEntities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
      const size_t special = std::string_view("&<>'\"").find(text->bytes[i]);
      const std::string shown =
          special < std::size(kEntities) ? kEntities[special] : text->bytes.substr(i, 1);
      c.append(out, {shown, std::string(shown.size(), text->origin[i])});
    }
  }
  return c.string(std::move(out));
}

Value binary(Context& c, std::string_view op, const Value& a, const Value& b) {
  if (op == "==") return boolean(equal(c, a, b));
  if (op == "!=") return boolean(!equal(c, a, b));
  if (op == "in") return boolean(contains(c, b, a));
  if (op == "not in") return boolean(!contains(c, b, a));
  if (op == "+" && a.is(Kind::string) && b.is(Kind::string)) return concatenate(c, *a.text, *b.text);
  if (op == "~") {
    Text out;
    c.append(out, to_text(c, a)), c.append(out, to_text(c, b));
    return c.string(std::move(out));
  }
  if (op == "*" && a.is(Kind::string) && b.is_int()) {
    Text out;
    for (int64_t i = 0; i < b.integer; ++i) c.charge(1), c.append(out, string_of(c, a));
    return c.string(std::move(out));
  }
  if (op == "+" && a.is_sequence() && a.kind == b.kind) {
    std::vector<Value> values = a.items->values;
    values.insert(values.end(), b.items->values.begin(), b.items->values.end());
    return c.collect(a.kind, {std::move(values)});
  }
  if (op[0] == '<' || op[0] == '>') {
    const int order = compare(c, a, b);
    return boolean(op[0] == '<' ? order < 0 || (op == "<=" && order == 0)
                                : order > 0 || (op == ">=" && order == 0));
  }
  if (!c.given(a).is_int() || !c.given(b).is_int())
    c.fail(fmt::format("unsupported: {} {} {}", kind_name(a.kind), op, kind_name(b.kind)));
  const int64_t x = a.integer, y = b.integer;
  if (op == "%" && y <= 0) c.fail("unsupported: % of something that is not positive");
  if (op == "%") return integer(x % y < 0 ? x % y + y : x % y);  // has the sign of y, in Python
  int64_t result = 0;
  const bool over = op == "+"   ? __builtin_add_overflow(x, y, &result)
                    : op == "-" ? __builtin_sub_overflow(x, y, &result)
                                : __builtin_mul_overflow(x, y, &result);
  if (over) c.fail("a number is beyond 64 bits");
  return integer(result);
}

}  // namespace nano::jinja
