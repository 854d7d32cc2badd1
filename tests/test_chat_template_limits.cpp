// The limits of chat templates: hostile ones end soon, and long conversations are no reason to fail.
#include "text/chat_template.h"

#include <chrono>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mapped_file.h"  // read_file
#include "catch.h"
#include "data.h"              // data_path, contains
#include "text/jinja/jinja.h"  // Context, Value, Builtin

namespace {

using Json = nlohmann::ordered_json;
using nano::ChatTemplate;
using namespace nano::jinja;

// The one line an Error says, at compiling or rendering; "" where there is none.
std::string says(const std::string& source, const Json& variables = Json::object()) {
  return error_of([&] { ChatTemplate(source).render_text(variables); });
}

bool has(const std::string& text, const std::string& part) { return nano_test::contains(text, part); }

ChatTemplate qwen3() {
  return ChatTemplate(nano::read_file(nano_test::data_path("golden/templates/qwen3.jinja")));
}

// A value of n characters or items, of each kind that something can walk through.
const std::vector<std::string> kLong = {"text", "spaces",        "JSON",   "characters",
                                        "list", "list of texts", "mapping"};
Value make_long(Context& c, const std::string& kind, size_t n) {
  if (kind == "text") return c.string(std::string(n, 'a'), Text::kOwn);
  if (kind == "spaces") return c.string(std::string(n, ' '), Text::kOwn);
  if (kind == "JSON") return c.string("[" + std::string(n, ' ') + "]", Text::kOwn);
  std::string umlauts;
  for (size_t i = 0; kind == "characters" && i < n / 2; ++i) umlauts += "\u00e4";
  if (kind == "characters") return c.string(umlauts, Text::kOwn);
  Items items;
  for (size_t i = 0; i < n; ++i) {
    if (kind == "mapping") items.keys.push_back(integer(int64_t(i)));
    items.values.push_back(kind == "list of texts" ? c.string("x", Text::kOwn) : integer(int64_t(i)));
  }
  return c.collect(kind == "mapping" ? Kind::dict : Kind::list, std::move(items));
}

// The steps that fn takes on a long value and on a copy of it; -1: it takes no such value.
template <class Fn>
int64_t steps_of(const std::string& kind, size_t n, const Fn& fn) {
  Context c(n);
  const Value value = make_long(c, kind, n), copy = make_long(c, kind, n);
  const size_t before = c.steps();
  const std::string problem = error_of([&] { fn(c, value, copy); });
  return problem == "" || has(problem, "steps") ? int64_t(c.steps() - before) : -1;
}

// An argument of that parameter: what it must be, or else a long value.
Value argument(Context& c, std::string_view param, const Value& otherwise) {
  for (const auto& [name, text] : {std::pair("filter", "string"), {"test", "string"}, {"attribute", "x"}})
    if (param == name) return c.string(text, Text::kOwn);
  return otherwise;
}

}  // namespace

TEST_CASE("who walks through a long value charges for it: every filter, test, method and operator") {
  constexpr size_t n = 10'000;
  // What looks at a value, or its first and last item, but never through it. Lists and mappings know their length.
  const std::set<std::string_view> constant = {"d",       "default",  "first",    "last",    "boolean",
                                               "defined", "false",    "iterable", "mapping", "none",
                                               "number",  "sequence", "string",   "true",    "undefined"};
  const std::set<std::string_view> of_lists = {"count", "length", "get"};
  size_t num_checked = 0;
  const auto check = [&](const std::string& name, const std::string& kind, int64_t steps) {
    if (steps < 0) return;
    CAPTURE(name, kind, steps);
    CHECK(steps >= int64_t(n / 32));
    ++num_checked;
  };
  for (const std::string& kind : kLong) {
    for (const auto& table : {kBuiltins, kStringBuiltins})
      for (const Builtin& builtin : table) {
        const bool is_test = builtin.kind == Builtin::test;
        if (constant.contains(builtin.name) && (is_test || builtin.name != "string")) continue;
        if (of_lists.contains(builtin.name) && (kind.starts_with("list") || kind == "mapping")) continue;
        for (size_t num_args : {builtin.required, builtin.required + 1})
          check(std::string(builtin.name), kind,
                steps_of(kind, n, [&](Context& c, const Value& value, const Value& copy) {
                  Args args(1 + builtin.params.size());
                  args[0] = value;
                  for (size_t i = 0; i < num_args; ++i) args[i + 1] = argument(c, builtin.params[i], copy);
                  builtin.call(c, args);
                }));
      }
    for (const char* op : {"==", "!=", "in", "not in", "+", "~", "<", "<=", ">", ">=", "*"})
      check(op, kind, steps_of(kind, n, [&](Context& c, const Value& value, const Value& copy) {
              binary(c, op, value, *op == '*' ? integer(2) : copy);
            }));
    for (const Value& step : {Value(), integer(-1), integer(2)})
      check("slice", kind, steps_of(kind, n, [&](Context& c, const Value& value, const Value&) {
              slice(c, {value, {}, {}, step});
            }));
  }
  for (const int64_t key : {0, int(n)})
    check("a key", "mapping", steps_of("mapping", n, [&](Context& c, const Value& value, const Value&) {
            get(c, value, integer(key));
          }));
  CHECK(num_checked > 400);
}

TEST_CASE("hostile templates end soon, with an Error") {
  const auto begin = std::chrono::steady_clock::now();
  const Json many = {{"r", Json(std::vector<int>(2000))}, {"a", std::string(100'000, 'a')}};
  const std::string grow = "{% set ns = namespace(x='a', l=[]) %}{% for i in r %}";
  CHECK(has(says("{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}", many), "steps"));
  CHECK(has(says("{% for i in r %}{{ a }}{% endfor %}", many), "more than 4 MB"));
  CHECK(has(says(grow + "{% set ns.x = ns.x + ns.x %}{% endfor %}", many), "more than 4 MB"));
  CHECK(has(says(grow + "{% set ns.l = ns.l + [a, a] + ns.l %}{% endfor %}", many), "steps"));
  CHECK(has(says(grow + "{% set ns.l = [ns.l] %}{% endfor %}", many), "nested deeper than 100"));
  CHECK(has(says(grow + "{% set ns.l = [ns.l, ns.l] if i < 50 %}{% endfor %}{{ ns.l | tojson }}", many),
            "nested"));
  CHECK(has(says(grow + "{% set ns.l = [ns] %}{% endfor %}{{ ns.l | tojson }}", many),
            "printing a namespace as JSON"));
  CHECK(has(says("{% for i in r %}{{ a.split('a') | length }}{% endfor %}", many), "steps"));
  CHECK(has(says("{% for i in r %}{{ a[::-1] }}{% endfor %}", many), "steps"));
  CHECK(has(says("{% for i in r %}{% set x = a | tojson %}{% endfor %}", many), "steps"));
  for (const char* walk :
       {"a.strip('a')", "a.split()", "a == a + ''", "a.startswith(a)", "a | length", "a[1:]"})
    CHECK(has(says(std::string("{% for i in r %}{% for j in r %}{% if ") + walk +
                       " %}{% endif %}{% endfor %}{% endfor %}",
                   many),
              "steps"));
  CHECK(has(says("{% for i in r %}{{ (a + 'b') in (a + a) }}{% endfor %}", many), "steps"));
  CHECK(has(says("{% macro f(n) %}{{ f(n) ~ f(n) }}{% endmacro %}{{ f(1) }}"), "too deeply"));
  CHECK(has(says("{% macro f(n) %}{% for i in r %}{{ g(n) }}{% endfor %}{% endmacro %}"
                 "{% macro g(n) %}{% for i in r %}{{ n }}{% endfor %}{% endmacro %}{{ f(1) }}",
                 many),
            "steps"));
  Json keys;
  for (int i = 0; i < 4000; ++i) keys[std::to_string(i)] = 0;
  CHECK(has(says("{% for i in range(20) %}{% set x = a | from_json %}{% endfor %}", {{"a", keys.dump()}}),
            "steps"));
  std::string params = "p0", arguments = "p0=0";
  for (int i = 1; i < 1500; ++i) {
    params += ", p" + std::to_string(i);
    arguments = "p" + std::to_string(i) + "=0, " + arguments;
  }
  CHECK(has(says("{% macro f(" + params + ") %}{% endmacro %}{% for i in range(50) %}{{ f(" + arguments +
                 ") }}{% endfor %}"),
            "steps"));
  std::string names;
  const std::string name(50'000, 'x');
  for (int i = 0; i < 20; ++i) names += "{% set " + name + char('a' + i) + " = 1 %}";
  CHECK(
      has(says(names + "{% for i in range(20000) %}{% if " + name + "a %}{% endif %}{% endfor %}"), "steps"));
  CHECK(has(says("{{ range(999999999999) | length }}"), "steps"));
  CHECK(has(says("{{ a * 999999999999 }}", many), "more than 4 MB"));
  CHECK(has(says("{{ '' * 999999999999 }}", many), "steps"));
  CHECK(has(says("{% for i in r %}{% set x = a | upper %}{% endfor %}", many), "steps"));
  const std::pair<std::string, std::string> brackets[] = {
      {"(", ")"},           {"[", "]"},     {"-", ""},
      {"not ", ""},         {"{'a':", "}"}, {"raise_exception(", ")"},
      {"1 if 1 else ", ""}, {"x[", "]"},    {"x|default(", ")"}};
  for (const auto& [open, close] : brackets) {
    std::string deep = "{{ ", closing = "1";
    for (int i = 0; i < 20000; ++i) deep += open, closing += close;
    INFO(deep.substr(0, 20));
    CHECK(has(says(deep + closing + " }}"), "nesting deeper"));
  }
  for (const std::string more : {"+1", ".x", "|trim", "[0]", " is none", " and 1", "~1"}) {
    std::string deep = "{{ a";
    for (int i = 0; i < 10000; ++i) deep += more;
    INFO(more);
    CHECK(has(says(deep + " }}"), "more than 300 levels"));
  }
  std::string blocks;
  for (int i = 0; i < 10000; ++i) blocks += "{% if 1 %}";
  CHECK(has(says(blocks), "nesting deeper"));
  Json deep_message = 1;
  for (int i = 0; i < 1000; ++i) deep_message = Json::array({std::move(deep_message)});
  CHECK(has(says("{{ 1 }}", {{"m", std::move(deep_message)}}), "nested deeper"));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  CHECK(seconds < 30);  // 1.5 in release; sanitizers and a busy machine are slower
}

TEST_CASE("a long chat stays inside the limits") {
  Json messages = Json::array();
  for (int i = 0; i < 1000; ++i)
    messages.push_back({{"role", i % 2 ? "assistant" : "user"}, {"content", std::string(2000, 'x')}});
  const std::string text = qwen3().render_text({{"messages", messages}});
  CHECK(text.size() > 2'000'000);
  // What may be used grows with what is given: a dozen walks through a megabyte.
  CHECK(says("{% for i in range(12) %}{{ a.split() | length }}{% endfor %}",
             {{"a", std::string(1'000'000, 'a')}}) == "");
}

TEST_CASE("A8 3,000 short messages stay inside the limits, too") {
  Json messages = Json::array();
  for (int i = 0; i < 3000; ++i)
    messages.push_back({{"role", i % 2 ? "assistant" : "user"}, {"content", "m" + std::to_string(i)}});
  const std::string text = qwen3().render_text({{"messages", messages}});
  CHECK(has(
      text,
      "<|im_start|>user\nm2998<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nm2999<|im_end|>\n"));
  // What is read by index costs the same wherever it stands: twice as many items, not four times the steps.
  const std::string at_index = "{% for i in range(n) %}{{ l[n - 1] }}{{ l | length }}{% endfor %}";
  CHECK(says(at_index, {{"n", 20'000}, {"l", Json(std::vector<int>(20'000))}}) == "");
}

TEST_CASE("a character or a slice costs what lies before its ends, not the whole text") {
  const auto cost = [](auto fn) {
    return steps_of("characters", 1'000'000,
                    [&](Context& c, const Value& text, const Value&) { fn(c, text); });
  };
  for (int64_t i : {0, 1, 9, -1, -10}) {
    CHECK(cost([&](Context& c, const Value& text) { get(c, text, integer(i)); }) < 40);
    CHECK(cost([&](Context& c, const Value& text) {
            slice(c, {text, integer(i), integer(i + 2), {}});
          }) < 40 + 500'000 * (i < 0));
  }
  CHECK(cost([](Context& c, const Value& text) { slice(c, {text, {}, integer(10), {}}); }) < 40);
  CHECK(cost([](Context& c, const Value& text) { slice(c, {text, integer(-10), {}, {}}); }) < 40);
  CHECK(cost([](Context& c, const Value& text) { get(c, text, integer(100'000)); }) > 50'000);
  const std::string loop =
      "{% for m in range(500) %}{% if a[:1] == a[0] and a[-9:] %}{{ a | first }}{{ a[-1] }}{% endif %}{% "
      "endfor %}";
  CHECK(says(loop, {{"a", std::string(250'000, 'a')}}) == "");
}
