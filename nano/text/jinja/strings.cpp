// What a template can do with strings. Each byte of a result knows where it came from: a piece of a string keeps its
// origin, and what a filter adds is the template's.
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
  return part(c, text, strip(text.bytes, characters, left, right));
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
    std::string_view rest = strip(text.bytes, kWhiteSpace, true, false);
    for (; !rest.empty(); rest = strip(rest, kWhiteSpace, true, false), --more) {
      size_t end = 0;
      while (end < rest.size() && (more == 0 || !strip(rest.substr(end, 4), kWhiteSpace, true, false).empty()))
        end += first_character(rest.substr(end));
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

// --- cases. title: as Jinja's filter; words: as Python's method.
enum class Case { upper, lower, title, words, capitalize };

// Does the character at the start of `text` stand between words?
bool between_words(Case mode, std::string_view text, int32_t code) {
  if (mode == Case::title)
    return std::string_view("-({[<").find(text[0]) != std::string::npos ||
           strip(text, kWhiteSpace, true, false).empty();
  const auto category = utf8proc_category(code);
  return mode == Case::words && (category < UTF8PROC_CATEGORY_LU || category > UTF8PROC_CATEGORY_LT);
}

// Those whose other case is several characters, or depends on where they stand.
bool has_no_simple_case(int32_t c, bool up) {
  if (!up) return c == 0x130 || c == 0x3a3;
  return c == 0xdf || c == 0x149 || c == 0x1f0 || c == 0x390 || c == 0x3b0 || c == 0x587 ||
         (c >= 0x1e96 && c <= 0x1e9a) || (c >= 0x1f50 && c <= 0x1ffc) || (c >= 0xfb00 && c <= 0xfb17);
}

template <Case mode>
Value cased(Context& c, const Args& a) {
  const Text& text = string_of(c, a[0]);
  Text out;
  bool first = true;
  for (size_t at = 0, size; at < text.bytes.size(); at += size) {
    const std::string_view rest = std::string_view(text.bytes).substr(at);
    size = first_character(rest);
    const bool up = mode == Case::upper || (mode != Case::lower && first);
    int32_t code = 0;
    utf8proc_uint8_t changed[4] = {};
    auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(rest.data()), int64_t(size), &code);
    if (length > 0) {
      if (has_no_simple_case(code, up)) c.fail(fmt::format("unsupported: the other case of '{}'", rest.substr(0, size)));
      const bool title = up && (mode == Case::words || mode == Case::capitalize);
      code = title ? utf8proc_totitle(code) : up ? utf8proc_toupper(code) : utf8proc_tolower(code);
      length = utf8proc_encode_char(code, changed);
      out.bytes.append(reinterpret_cast<const char*>(changed), size_t(length));
    } else {
      out.bytes.append(rest.substr(0, size)), length = int64_t(size);  // not UTF-8: as it is
    }
    out.origin.append(size_t(length), text.origin[at]);
    first = between_words(mode, rest.substr(0, size), code);
  }
  return c.string(std::move(out));
}

// --- formats
// '{} {0} {name}'.format(…) and '%s %d' | format(…), without any of their many options.
template <bool percent>
Value format(Context& c, const Args& a) {
  const Text& text = string_of(c, a[0]);
  const std::string& bytes = text.bytes;
  Text out;
  size_t next = 1;
  for (size_t at = 0; at < bytes.size(); ++at) {
    const std::string_view rest = std::string_view(bytes).substr(at), two = rest.substr(0, 2);
    if (rest[0] != (percent ? '%' : '{') && (percent || rest[0] != '}')) {
      c.append(out, text.slice(at, 1));
      continue;
    }
    ++at;
    if (two == "%%" || two == "{{" || two == "}}") {
      c.append(out, text.slice(at, 1));
      continue;
    }
    const bool known = percent ? two == "%s" || two == "%d" : two == "{}";
    if (!known) c.fail(fmt::format("unsupported in a format: '{}'", rest.substr(0, 8)));
    if (next >= a.size() || !a[next].given()) c.fail("a format has more places than values");
    if (two == "%d" && !a[next].is_int()) c.fail("%d of something that is not an integer");
    c.append(out, two == "%d" ? to_text(c, integer(a[next].integer)) : to_text(c, a[next]));
    ++next;
  }
  if (percent && next < a.size() && a[next].given()) c.fail("a format has fewer places than values");
  return c.string(std::move(out));
}

Value indent(Context& c, const Args& a) {  // width, first, blank
  const Text text = to_text(c, a[0]);
  if (text.bytes.find_first_of("\r\v\f\x1c\x1d\x1e") != std::string::npos)
    c.fail("unsupported: indent of lines that do not end in \\n");
  const std::string margin =
      a[1].is(Kind::string) ? string_of(c, a[1]).bytes : std::string(size_t(std::clamp<int64_t>(int_of(c, a[1], 4), 0, 99)), ' ');
  const Text space{margin, std::string(margin.size(), Text::kOwn)};
  Text out;
  for (size_t at = 0; at <= text.bytes.size();) {
    const size_t end = std::min(text.bytes.find('\n', at), text.bytes.size());
    if (at == 0 ? truthy(a[2]) : truthy(a[3]) || end > at) c.append(out, space);
    c.append(out, text.slice(at, end + 1 - at));
    at = end + 1;
  }
  return c.string(std::move(out));
}

Value safe(Context& c, const Args& a) {
  Text text = to_text(c, a[0]);
  text.safe = true;
  return c.string(std::move(text));
}

Value tojson(Context& c, const Args& a) {
  Notation n{.ascii = truthy(a[1]), .sort_keys = truthy(a[4])};
  if (a[2].given() && !a[2].is(Kind::none)) {
    n.indent = int(int_of(c, a[2], 0));
    if (n.indent < 0 || n.indent > 16) c.fail("indent must be 0 to 16");
    n.item = ",";
  }
  if (a[3].given() && !a[3].is(Kind::none)) {
    const std::vector<Value>& separators = iterate(c, a[3]);
    if (separators.size() != 2) c.fail("tojson: separators are two strings");
    n.item = string_of(c, separators[0]).bytes, n.key = string_of(c, separators[1]).bytes;
  }
  Text out;
  write(c, a[0], n, 0, out);
  return c.string(std::move(out));
}

Value from_json(Context& c, const Args& a) {
  const Text& text = string_of(c, a[0]);
  c.charge(text.bytes.size() / 16);
  const bool own = text.origin.find(Text::kForeign) == std::string::npos;
  return c.from_json(parse_ordered_json(text.bytes, fmt::format("chat template line {}: from_json", c.line)),
                     own ? Text::kOwn : Text::kForeign);
}

template <bool at_end>
Value starts(Context& c, const Args& a) {
  const std::string &text = string_of(c, a[0]).bytes, &part = string_of(c, a[1]).bytes;
  const size_t at = at_end && part.size() < text.size() ? text.size() - part.size() : 0;
  return boolean(text.compare(at, part.size(), part) == 0);
}

using B = Builtin;
constexpr Builtin kTable[] = {
    {B::filter, "capitalize", {}, 0, of_text<cased<Case::capitalize>>},
    {B::filter, "format", {"0", "1", "2", "3", "4"}, 0, of_text<format<true>>},
    {B::filter, "from_json", {}, 0, from_json},
    {B::filter, "indent", {"width", "first", "blank"}, 0, indent},
    {B::filter, "join", {"d"}, 0, join},
    {B::filter, "lower", {}, 0, of_text<cased<Case::lower>>},
    {B::filter, "replace", {"old", "new", "count"}, 2, of_text<replace>},
    {B::filter, "safe", {}, 0, safe},
    {B::filter, "string", {}, 0, [](Context& c, const Args& a) { return c.string(to_text(c, a[0])); }},
    {B::filter, "title", {}, 0, of_text<cased<Case::title>>},
    {B::filter, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, 0, tojson},
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
    {B::method, "title", {}, 0, cased<Case::words>},
    {B::method, "upper", {}, 0, cased<Case::upper>}};

}  // namespace

const std::span<const Builtin> kStringBuiltins = kTable;

}  // namespace nano::jinja
