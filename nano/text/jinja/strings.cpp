// What a template can do with strings. Each byte of a result knows where it came from: a piece of a string keeps its
// origin, and what a filter adds is the template's.
#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <utf8proc.h>

#include "base/json.h"         // parse_ordered_json
#include "text/jinja/jinja.h"  // Builtin, Context, Value, Text
#include "text/utf8.h"         // first_character

namespace nano::jinja {
namespace {

// The part of `text` that `view` shows.
Value part(Context& c, const Text& text, std::string_view view) {
  return c.string(text.slice(size_t(view.data() - text.bytes.data()), view.size()));
}

template <bool left, bool right>
Value stripped(Context& c, const Args& a) {
  const Text& text = string_of(c, a[0]);
  const bool given = a[1].given() && !a[1].is(Kind::none);
  const std::string_view characters = given ? std::string_view(string_of(c, a[1]).bytes) : kWhiteSpace;
  const std::string_view kept = strip(text.bytes, characters, left, right);
  c.charge_walk((2 + text.bytes.size() - kept.size()) * (1 + characters.size() / 64));
  return part(c, text, kept);
}

// Filters take what is no string by its text.
template <Function function>
Value of_text(Context& c, const Args& a) {
  Args operands = a;
  operands[0] = c.string(to_text(c, a[0]));
  return function(c, operands);
}

// At a separator, or, if there is none, at white space; at most so many times.
Value split(Context& c, const Args& a) {
  const Text& text = string_of(c, a[0]);
  const bool at_space = !a[1].given() || a[1].is(Kind::none);
  int64_t more = int_of(c, a[2], -1);
  std::vector<Value> parts;
  if (at_space) {
    c.charge_walk(text.bytes.size());
    std::string_view rest = strip(text.bytes, kWhiteSpace, true, false);
    for (; !rest.empty(); rest = strip(rest, kWhiteSpace, true, false), --more) {
      size_t end = 0;
      for (size_t size; end < rest.size(); end += size) {
        size = first_character(rest.substr(end));
        if (more != 0 && strip(rest.substr(end, size), kWhiteSpace, true, false).empty()) break;
      }
      parts.push_back(part(c, text, rest.substr(0, end)));
      rest.remove_prefix(end);
    }
    return c.list(std::move(parts));
  }
  const Text& separator = string_of(c, a[1]);
  if (separator.bytes.empty()) c.fail("empty separator");
  for (size_t at = 0;; --more) {
    const size_t end = more == 0 ? std::string::npos : find(c, text, separator, at);
    parts.push_back(c.string(text.slice(at, end - at)));
    if (end == std::string::npos) return c.list(std::move(parts));
    at = end + separator.bytes.size();
  }
}

Value join(Context& c, const Args& a) {  // the filter
  Text out;
  const std::vector<Value>& parts = iterate(c, a[0]);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0 && a[1].given()) c.append(out, to_text(c, a[1]));
    c.append(out, to_text(c, parts[i]));
  }
  return c.string(std::move(out));
}

Value join_method(Context& c, const Args& a) {  // takes only strings
  const std::vector<Value>& parts = iterate(c, a[1]);
  for (const Value& one : parts) string_of(c, one);
  return join(c, {c.list(parts), a[0]});
}

Value replace(Context& c, const Args& a) {
  if (string_of(c, a[1]).bytes.empty()) c.fail("unsupported: replace of an empty string");
  return join(c, {split(c, {a[0], a[1], a[3]}), c.string(string_of(c, a[2]))});
}

enum class Case { upper, lower, title, capitalize };

// Letters beyond ASCII whose case would change are refused: some become two, some depend on where they stand.
template <Case mode>
Value cased(Context& c, const Args& a) {
  Text out = string_of(c, a[0]);
  c.charge_walk(out.bytes.size());
  bool first = true;  // of the text; with title, of a word
  for (size_t at = 0, size; at < out.bytes.size(); at += size) {
    size = first_character(std::string_view(out.bytes).substr(at));
    const std::string character = out.bytes.substr(at, size);
    const bool up = mode == Case::upper || (mode != Case::lower && first);
    const bool space = strip(character, kWhiteSpace, true, false).empty();
    first = mode == Case::title && (space || std::string_view("-({[<").find(character) != std::string::npos);
    if (size == 1) {
      const auto byte = static_cast<unsigned char>(character[0]);
      out.bytes[at] = char(up ? std::toupper(byte) : std::tolower(byte));
      continue;
    }
    int32_t code = 0;
    utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(character.data()), int64_t(size), &code);
    const bool small = utf8proc_category(code) == UTF8PROC_CATEGORY_LL || utf8proc_toupper(code) != code;
    if (up ? small : utf8proc_tolower(code) != code)
      c.fail(fmt::format("unsupported: another case of '{}'", character));
  }
  return c.string(std::move(out));
}

// '%s' | format(…) and '{}'.format(…), without their options.
template <bool percent>
Value format(Context& c, const Args& a) {
  const Value parts = split(c, {a[0], c.string(percent ? "%s" : "{}", Text::kOwn), {}});
  const size_t n = parts.items->values.size();
  Text out;
  for (size_t i = 0; i < n; ++i) {
    const Text& part = *parts.items->values[i].text;
    if (part.bytes.find_first_of(percent ? "%" : "{}") != std::string::npos)
      c.fail("unsupported: a format of more than %s or {}");
    if (i > 0 && (i >= a.size() || !a[i].given())) c.fail("a format has more places than values");
    if (i > 0) c.append(out, to_text(c, a[i]));
    c.append(out, part);
  }
  if (percent && n < a.size() && a[n].given()) c.fail("a format has fewer places than values");
  return c.string(std::move(out));
}

Value safe(Context& c, const Args& a) {
  Text text = to_text(c, a[0]);
  text.safe = true;
  return c.string(std::move(text));
}

Value tojson(Context& c, const Args& a) {
  Notation n{.ascii = truthy(a[1])};
  if (!a[2].is(Kind::none)) n.indent = int(std::clamp<int64_t>(int_of(c, a[2], -1), -1, 17));
  if (n.indent > 16 || (a[2].given() && n.indent < 0 && !a[2].is(Kind::none)))
    c.fail("indent must be 0 to 16");
  Text out;
  write(c, a[0], n, 0, out);
  return c.string(std::move(out));
}

Value from_json(Context& c, const Args& a) {
  const Text& text = string_of(c, a[0]);
  c.charge_walk(text.bytes.size());
  return c.from_json(parse_ordered_json(text.bytes, fmt::format("chat template line {}: from_json", c.line)),
                     text.whose());
}

template <bool at_end>
Value starts(Context& c, const Args& a) {
  const std::string &text = string_of(c, a[0]).bytes, &part = string_of(c, a[1]).bytes;
  c.charge(part.size() / 32);
  const size_t at = at_end && part.size() < text.size() ? text.size() - part.size() : 0;
  return boolean(text.compare(at, part.size(), part) == 0);
}

using B = Builtin;
constexpr Builtin kTable[] = {
    {B::filter, "capitalize", {}, 0, of_text<cased<Case::capitalize>>},
    {B::filter, "format", {"0", "1", "2", "3", "4"}, 0, of_text<format<true>>},
    {B::filter, "from_json", {}, 0, from_json},
    {B::filter, "join", {"d"}, 0, join},
    {B::filter, "lower", {}, 0, of_text<cased<Case::lower>>},
    {B::filter, "replace", {"old", "new", "count"}, 2, of_text<replace>},
    {B::filter, "safe", {}, 0, safe},
    {B::filter, "string", {}, 0, [](Context& c, const Args& a) { return c.string(to_text(c, a[0])); }},
    {B::filter, "title", {}, 0, of_text<cased<Case::title>>},
    {B::filter, "tojson", {"ensure_ascii", "indent"}, 0, tojson},
    {B::filter, "trim", {"chars"}, 0, of_text<stripped<true, true>>},
    {B::filter, "upper", {}, 0, of_text<cased<Case::upper>>},

    {B::method, "capitalize", {}, 0, cased<Case::capitalize>},
    {B::method, "endswith", {"suffix"}, 1, starts<true>},
    {B::method, "format", {"0", "1", "2", "3", "4"}, 0, format<false>},
    {B::method, "join", {"iterable"}, 1, join_method},
    {B::method, "lower", {}, 0, cased<Case::lower>},
    {B::method, "lstrip", {"chars"}, 0, stripped<true, false>},
    {B::method, "replace", {"old", "new", "count"}, 2, replace},
    {B::method, "rstrip", {"chars"}, 0, stripped<false, true>},
    {B::method, "split", {"sep", "maxsplit"}, 0, split},
    {B::method, "startswith", {"prefix"}, 1, starts<false>},
    {B::method, "strip", {"chars"}, 0, stripped<true, true>},
    {B::method, "upper", {}, 0, cased<Case::upper>}};

}  // namespace

const std::span<const Builtin> kStringBuiltins = kTable;

}  // namespace nano::jinja
