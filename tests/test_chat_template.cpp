// The Jinja subset against jinja2's own renderings (golden/README-chat_template.md), and what is said about unsupported
// features. The limits are in test_chat_template_limits.cpp.
#include "text/chat_template.h"

#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "base/error.h"  // Error
#include "catch.h"
#include "data.h"  // data_path

namespace {

using Json = nlohmann::ordered_json;
using nano::ChatTemplate;

std::string read(const std::string& name) {
  std::ifstream file(nano_test::data_path("golden/templates/" + name), std::ios::binary);
  INFO(name);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

Json with(Json variables, const Json& more) {
  for (const auto& [key, value] : more.items()) variables[key] = value;
  return variables;
}

// The rendering must be `expected`: {"text": …}, or {"error": message, or null for any}.
void check(const ChatTemplate& chat, const Json& variables, const Json& expected) {
  std::string text, problem;
  bool failed = false;
  try {
    text = chat.render_text(variables);
  } catch (const nano::Error& error) {
    failed = true;
    problem = error.problem;
  }
  INFO(problem);
  CHECK(failed == expected.contains("error"));
  if (expected.contains("text")) {
    CHECK(text == expected["text"].get<std::string>());
  } else if (expected["error"].is_string()) {
    CHECK(problem == expected["error"].get<std::string>());
  }
}

std::string render(const std::string& source, const Json& variables = Json::object()) {
  return ChatTemplate(source).render_text(variables);
}

// The one line an Error says, at compiling or rendering; "" where there is none.
std::string says(const std::string& source, const Json& variables = Json::object()) {
  try {
    render(source, variables);
  } catch (const nano::Error& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("C1 a template that raises is an Error with its message and spoils nothing") {
  const Json file = Json::parse(read("cases-c1.json"));
  REQUIRE(file["cases"].size() == 12);
  for (const Json& one : file["cases"]) {
    INFO(one["name"].get<std::string>());
    const ChatTemplate chat(one["template"].get<std::string>());
    Json variables = with({{"bos_token", "<s>"}, {"eos_token", "</s>"}}, one["vars"]);
    variables["messages"] = one["messages"];
    variables["add_generation_prompt"] = one["add_generation_prompt"];
    check(chat, variables, one["expected"]);
    check(chat, variables, one["expected"]);  // no state is kept
  }
  const ChatTemplate picky(
      "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}"
      "{% endif %}{{ m.role }} {% endfor %}");
  CHECK_THROWS_AS(picky.render_text({{"messages", {{{"role", "user"}}, {{"role", "system"}}}}}), nano::Error);
  CHECK(picky.render_text({{"messages", {{{"role", "user"}}}}}) == "user ");
}

TEST_CASE("SmolLM2's chats as transformers renders them") {
  const Json file = Json::parse(read("smollm2-chats.json"));
  const ChatTemplate chat(read("smollm2.jinja"));
  REQUIRE(file["chats"].size() >= 3);
  for (const Json& one : file["chats"]) {
    CHECK(chat.render_text({{"messages", one["messages"]}, {"add_generation_prompt", true}}) == one["gen"]);
    CHECK(chat.render_text({{"messages", one["messages"]}, {"add_generation_prompt", false}}) ==
          one["nogen"]);
  }
}

TEST_CASE("real templates render as jinja2 renders them") {
  const Json golden = Json::parse(read("renderings.json"));
  REQUIRE(golden["renderings"].size() >= 11);
  for (const auto& [name, renderings] : golden["renderings"].items()) {
    const ChatTemplate chat(read(name));
    for (const auto& [conversation, expected] : renderings.items()) {
      const std::string which = name + ": " + conversation;
      INFO(which);
      const Json variables = with(golden["common"], golden["conversations"][conversation]);
      check(chat, variables, expected);
    }
  }
}

TEST_CASE("snippets mean what they mean to jinja2") {
  const Json golden = Json::parse(read("renderings.json"));
  REQUIRE(golden["snippets"].size() >= 118);
  for (const Json& one : golden["snippets"]) {
    INFO(one["template"].get<std::string>());
    check(ChatTemplate(one["template"].get<std::string>()), golden["variables"], one);
  }
}

TEST_CASE("an unsupported feature is named with its line when the template is compiled") {
  const struct {
    const char* source;
    const char* says;
  } rows[] = {
      {"a\nb {% include 'x' %}", "line 2: unsupported statement 'include'"},
      {"\n{% raw %}{% endraw %}", "line 2: unsupported statement 'raw'"},
      {"{% call f() %}{% endcall %}", "line 1: unsupported statement 'call'"},
      {"{% set a, b = 1, 2 %}", "line 1: unsupported here: expected '=', got ','"},
      {"\n{% break %}", "line 2: unsupported statement 'break'"},
      {"{% for x in y %}{% set t %}{% continue %}{% endset %}{% endfor %}",
       "unsupported statement 'continue'"},
      {"{% for x in y %}\n{% macro f() %}{% endmacro %}{% endfor %}", "line 2: unsupported: a macro inside"},
      {"{% macro range(a) %}{% endmacro %}", "line 1: unsupported: a macro with a function's name"},
      {"{% macro f() %}{{ caller() }}{% endmacro %}", "line 1: unsupported function 'caller'"},
      {"{{ x | map('frob') }}", "line 1: unsupported filter 'frob'"},
      {"{{ x | indent }}", "line 1: unsupported filter 'indent'"},
      {"{{ x | format(1, 2, 3, 4, 5, 6) }}", "line 1: 'format': unsupported: too many arguments"},
      {"{% for x in y recursive %}{% endfor %}",
       "line 1: unsupported here: expected the end of the tag, got 'rec"},
      {"\n\n{{ x | frobnicate }}", "line 3: unsupported filter 'frobnicate'"},
      {"{% if false %}\n{{ x.frob() }}{% endif %}", "line 2: unsupported method 'frob'"},
      {"{{ x is frobby }}", "line 1: unsupported test 'frobby'"},
      {"{{ x is odd }}", "line 1: unsupported test 'odd'"},
      {"{{ x is eq 3 }}", "line 1: 'eq': argument 'other' is missing"},
      {"{{ x | selectattr('a', 'gt', 1) }}", "line 1: unsupported test 'gt'"},
      {"{{ x | reject(y) }}", "line 1: unsupported test"},
      {"{{ x | reject(defined) }}", "line 1: unsupported test 'defined'"},  // a variable that is called so
      {"{{ frob(1) }}", "line 1: unsupported function 'frob'"},
      {"{{ x | tojson(sort_keys=true) }}", "line 1: 'tojson': unsupported argument 'sort_keys'"},
      {"{{ x | trim(1, 2) }}", "line 1: 'trim': unsupported: too many arguments"},
      {"{{ x | default('a', default_value='b') }}", "line 1: 'default': unsupported: too many arguments"},
      {"{{ x.startswith() }}", "line 1: 'startswith': argument 'prefix' is missing"},
      {"{{ 2 ** 3 }}", "line 1: unsupported here: expected the end of the tag, got '**'"},
      {"{{ 2 / 3 }}", "line 1: unsupported here: expected the end of the tag, got '/'"},
      {"{{ 2 // 3 }}", "line 1: unsupported here: expected the end of the tag, got '//'"},
      {"{{ 1 < 2 < 3 }}", "line 1: unsupported here: expected the end of the tag, got '<'"},
      {"{{ 'a' 'b' }}", "line 1: unsupported here: expected the end of the tag, got 'b'"},
      {"{{ x.0 }}", "line 1: unsupported here: expected a name, got '0'"},
      {"{{ x[0]() }}", "line 1: unsupported here: expected the end of the tag, got '('"},
      {"{{ loop.cycle('a') }}", "line 1: unsupported method 'cycle'"},
      {"{{ loop.depth }}", "line 1: unsupported: loop.depth"},
      {"{{ 0x1f }}", "line 1: unsupported number '0x1f'"},
      {"{{ 1.5 }}", "line 1: unsupported number '1.5'"},
      {"{{ '\\x41' }}", "line 1: unsupported escape '\\x'"},
  };
  for (const auto& row : rows) {
    INFO(row.source);
    CHECK_THROWS_AS(ChatTemplate(row.source), nano::Error);
    const std::string said = says(row.source);
    INFO(said);
    CHECK(has(said, row.says));
  }
}

TEST_CASE("a syntax error is an Error with its line") {
  const struct {
    const char* source;
    const char* says;
  } rows[] = {
      {"{% if x %}\n\n", "ends without 'endif'"},
      {"\n{% for x in y %}{% endif %}{% endfor %}", "line 2: unsupported statement 'endif'"},
      {"{{ a", "line 1: the tag has no '}}'"},
      {"\n{{ 'a }}", "line 2: a string has no end"},
      {"{{ 'a\\", "line 1: a string has no end"},
      {"\n{# a", "line 2: a comment has no end"},
      {"{{ a b }}", "expected the end of the tag, got 'b'"},
      {"{{ (a] }}", "expected ')', got ']'"},
      {"{{ }}", "expected an expression"},
      {"{{ a ? b }}", "unexpected character '?'"},
      {"{{ 99999999999999999999 }}", "unsupported number"},
  };
  for (const auto& row : rows) {
    INFO(row.source);
    CHECK_THROWS_AS(ChatTemplate(row.source), nano::Error);
    const std::string said = says(row.source);
    INFO(said);
    CHECK(has(said, row.says));
  }
}

TEST_CASE("an error while rendering names its line") {
  CHECK(says("a\n{{ x.y }}") == "chat template line 2: 'x' is undefined");
  CHECK(says("{% for i in [1] %}\n\n{{ i + 'a' }}{% endfor %}") ==
        "chat template line 3: unsupported: integer + string");
  CHECK(says("\n{{ raise_exception('a' ~ 1) }}") == "chat template line 2: a1");
  CHECK(has(says("{{ [x] }}"), "line 1: unsupported: printing a undefined"));
  CHECK(
      has(says("\n{{ d.items }}", {{"d", {{"items", 1}}}}), "line 2: 'items' is a method of every mapping"));
  CHECK(has(says("{{ {none: 2} }}"), "unsupported: a key that is neither a string nor an integer"));
  CHECK(has(says("{{ namespace() }}"), "unsupported: printing a namespace"));
  CHECK(has(says("{% macro f() %}{% endmacro %}{{ f }}"), "unsupported: printing a function"));
  CHECK(has(says("{{ d.items() }}", {{"d", {{"a", 1}}}}), "unsupported: printing a range or view"));
  CHECK(has(says("{{ [1] | map('string') }}"), "unsupported: printing a generator"));
  CHECK(has(says("{{ 'Ä' | lower }}"), "unsupported: another case of 'Ä'"));
  CHECK(has(says("{{ 'ß' | upper }}"), "unsupported: another case of 'ß'"));
  CHECK(has(says("{{ 'ﬁ' | title }}"), "unsupported: another case of 'ﬁ'"));
  CHECK(has(says("{{ ('a' | safe).strip() }}"), "unsupported: a method of what the filter 'safe' returned"));
  CHECK(has(says("{{ '%d' | format(1) }}"), "unsupported: a format"));
  CHECK(has(says("{{ '1' | int }}"), "unsupported: int of a string"));
  CHECK(has(says("{{ [1] | map('trim', 1, 2) | list }}"), "'trim': an argument too few or too many"));
  CHECK(has(says("{{ [1] | map('replace', 'a') | list }}"), "'replace': an argument too few or too many"));
  CHECK(has(says("{{ '[' | from_json }}"), "invalid JSON"));
  CHECK(has(says("{% macro f() %}{{ f() }}{% endmacro %}\n{{ f() }}"), "macros call each other too deeply"));
  CHECK(has(says("{{ [{'a': 1}] | selectattr('a.b') | list | tojson }}"), "unsupported: a path"));
  CHECK(has(says("{{ 7 % -3 }}"), "unsupported: %"));
  CHECK(has(says("{{ 'a' < 1 }}"), "unsupported: the order of string and integer"));
  CHECK(has(says("{{ x + 1 }}", {{"x", 1.5}}), "unsupported: real number + integer"));
  CHECK(has(says("{{ 'a' | replace('', 'b') }}"), "unsupported: replace of an empty string"));
  CHECK(has(says("{{ 'a'.replace('', 'b') }}"), "unsupported: replace of an empty string"));
  CHECK(has(says("{{ [1, 2][::0] | tojson }}"), "slice step cannot be zero"));
  CHECK(has(says("{{ x + x }}", {{"x", 9223372036854775807}}), "beyond 64 bits"));
  CHECK(has(says("{{ x }}", {{"x", 18446744073709551615u}}), "beyond 64 bits"));
}

TEST_CASE("strftime_now is the local time") {
  const std::string year = render("{{ strftime_now('%Y') }}");
  CHECK(year.size() == 4);
  CHECK(year >= "2024");
  CHECK(render("[{{ strftime_now('') }}]") == "[]");
  CHECK(render("{{ strftime_now('%d %b %Y') | length }}") == "11");
  CHECK(has(says("{{ strftime_now('%Y' * 100) }}"), "line 1: unsupported: a date of more than 255 bytes"));
}

TEST_CASE("broken UTF-8 in the messages passes through") {
  const Json variables = {{"x", "a\xff\xc3 b"}};
  CHECK(render("{{ x | trim }}{{ x | length }}{{ x[::-1] }}", variables) ==
        "a\xff\xc3 b5b \xc3\xff"
        "a");
}
