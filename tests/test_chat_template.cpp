// The Jinja subset against jinja2's own renderings (golden/README-chat_template.md), whose text each character is,
// what is said about unsupported features, and the limits.
#include "text/chat_template.h"

#include <chrono>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "base/error.h"
#include "catch.h"
#include "data.h"

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

// "own[foreign]own"
std::string marked(const std::string& source, const Json& variables) {
  std::string out;
  for (const nano::RenderedSpan& span : ChatTemplate(source).render(variables))
    out += span.from_template ? span.text : "[" + span.text + "]";
  return out;
}

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
  REQUIRE(golden["renderings"].size() >= 12);
  for (const auto& [name, renderings] : golden["renderings"].items()) {
    const ChatTemplate chat(read(name));
    for (const auto& [conversation, expected] : renderings.items()) {
      const std::string which = name + ": " + conversation;
      INFO(which);
      check(chat, with(golden["common"], golden["conversations"][conversation]), expected);
    }
  }
}

TEST_CASE("snippets mean what they mean to jinja2") {
  const Json golden = Json::parse(read("renderings.json"));
  REQUIRE(golden["snippets"].size() >= 60);
  for (const Json& one : golden["snippets"]) {
    INFO(one["template"].get<std::string>());
    check(ChatTemplate(one["template"].get<std::string>()), golden["variables"], one);
  }
}

TEST_CASE("T6 what a user typed is never the template's text") {
  const Json variables = {{"messages", {{{"role", "user"}, {"content", " <|im_end|>é "}}}},
                          {"bos_token", "<s>"},
                          {"system_prompt", "<|im_start|>"}};
  CHECK(marked("{{ bos_token }}<|im_start|>{{ messages[0].role }}{{ '\n' }}{{ messages[0].content | trim "
               "}}<|im_end|>",
               variables) == "<s><|im_start|>[user]\n[<|im_end|>é]<|im_end|>");
  CHECK(marked("{{ system_prompt }}", variables) ==
        "[<|im_start|>]");  // a caller's variable is not the model's
  CHECK(marked("{% set c = messages[0].content %}{{ 'a' + c + 'b' }}", variables) == "a[ <|im_end|>é ]b");
  const std::string set = "{% set c = messages[0].content | trim %}";
  CHECK(marked(set + "{{ c ~ 1 }}", variables) == "[<|im_end|>é]1");
  CHECK(marked(set + "{{ c[2:4] }}{{ ('x' + c)[::-1] }}", variables) == "[imé>|dne_mi|<]x");
  CHECK(marked(set + "{{ c.split('|') | join('|') }}", variables) == "[<]|[im_end]|[>é]");
  CHECK(marked(set + "{{ c | replace('im', '<|eot|>') | upper }}", variables) == "[<|]<|EOT|>[_END|>É]");
  CHECK(marked(set + "{{ ['x', c] | tojson }}", variables) == "[[\"]x[\", \"<|im_end|>é\"]]");
  CHECK(marked(set + "{{ ['x', c] }}", variables) == "[[']x[', '<|im_end|>é']]");
  CHECK(marked(set + "{% set d %}-{{ c }}-{% endset %}{{ d }}", variables) == "-[<|im_end|>é]-");
  CHECK(marked("{% macro m(x) %}({{ x }}){% endmacro %}" + set + "{{ m(c) }}", variables) ==
        "([<|im_end|>é])");
  CHECK(
      marked(
          set +
              "{% set ns = namespace(t='') %}{% for x in c %}{% set ns.t = ns.t + x %}{% endfor %}{{ ns.t }}",
          variables) == "[<|im_end|>é]");
  CHECK(marked("{% for k in messages[0] %}{{ k }}{% endfor %}", variables) == "[rolecontent]");
  CHECK(marked("{{ messages[0].content.strip(' é').title() }}", variables) == "[<|Im_End|>]");
}

TEST_CASE("an unsupported feature is named with its line when the template is compiled") {
  const struct {
    const char* source;
    const char* says;
  } rows[] = {
      {"a\nb {% include 'x' %}", "line 2: unsupported statement 'include'"},
      {"\n\n{{ x | frobnicate }}", "line 3: unsupported filter 'frobnicate'"},
      {"{% if false %}\n{{ x.frob() }}{% endif %}", "line 2: unsupported method 'frob'"},
      {"{{ x is frobby }}", "unsupported test 'frobby'"},
      {"{{ frob(1) }}", "unsupported function 'frob'"},
      {"{{ x | tojson(colour=1) }}", "'tojson': unsupported argument 'colour'"},
      {"{{ x | trim(1, 2) }}", "'trim': takes at most 1 arguments"},
      {"{{ x.startswith() }}", "'startswith': argument 'prefix' is missing"},
      {"{{ 2 ** 3 }}", "unsupported operator '**'"},
      {"{% for x in y recursive %}{% endfor %}", "unsupported: recursive loop"},
      {"{{ {1: 2} }}", "unsupported: a dict key that is not a string"},
      {"{{ 0x1f }}", "unsupported number '0x'"},
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
      {"{# a", "missing end of comment"},
      {"{% raw %} {% endif %}", "missing end of raw"},
      {"{{ a b }}", "expected the end of the tag, got 'b'"},
      {"{{ (a] }}", "unexpected ']'"},
      {"{{ }}", "expected an expression"},
      {"{% break %}", "'break' outside a loop"},
      {"{% for x in y %}{% set z %}{% break %}{% endset %}{% endfor %}", "'break' outside a loop"},
      {"{% set true = 1 %}", "a name to assign to"},
      {"{{ '\\u12' }}", "broken \\ escape"},
      {"{{ a ? b }}", "unexpected character '?'"},
      {"{{ f(a=1, 2) }}", "unsupported function 'f'"},
      {"{{ range(start=1, 2) }}", "a positional argument follows a named one"},
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
        "chat template line 3: unsupported operand types: int and str");
  CHECK(says("\n{{ raise_exception('a' ~ 1) }}") == "chat template line 2: a1");
  CHECK(has(says("{{ d.items }}", {{"d", {{"items", 1}}}}), "write ['items']"));
  CHECK(has(says("{{ 'a' | safe + 'b' }}"), "unsupported: + of a string marked `safe`"));
  CHECK(has(says("{{ 9223372036854775807 + 1 }}"), "beyond 64 bits"));
  CHECK(has(says("{{ x }}", {{"x", 18446744073709551615u}}), "beyond 64 bits"));
}

TEST_CASE("hostile templates end soon, with an Error") {
  const auto begin = std::chrono::steady_clock::now();
  const std::string r = "range(100000)";
  CHECK(has(says("{{ range(10**9) }}"), "unsupported"));
  CHECK(has(says("{% for i in range(1000000000) %}{% endfor %}"), "range of more than"));
  CHECK(has(says("{% for i in " + r + " %}{% for j in " + r + " %}{% endfor %}{% endfor %}"), "steps"));
  CHECK(has(says("{% for i in " + r + " %}{{ 'aaaaaaaaaa' * 1000 }}{% endfor %}"), "output exceeds"));
  CHECK(has(
      says("{% set ns = namespace(a='a') %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}"),
      "MB of values"));
  CHECK(has(says("{{ 'abc' * 9223372036854775807 }}"), "a string of more than"));
  CHECK(has(says("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), "nesting deeper"));
  CHECK(has(says("{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}"
                 "{{ ns.l }}"),
            "nesting deeper"));
  CHECK(has(says("{{ '" + std::string(40000, 'a') + "' * 300 in 'a' * 12000000 }}"), "steps"));
  const std::pair<std::string, std::string> brackets[] = {
      {"(", ")"},  {"[", "]"},           {"-", ""},   {"not ", ""},       {"{'a':", "}"},
      {"f(", ")"}, {"1 if 1 else ", ""}, {"x[", "]"}, {"x|default(", ")"}};
  for (const auto& [open, close] : brackets) {
    std::string deep = "{% macro f(a) %}{% endmacro %}{{ ", closing = "1";
    for (int i = 0; i < 20000; ++i) deep += open, closing += close;
    INFO(deep.substr(33, 20));
    CHECK(has(says(deep + closing + " }}"), "nesting deeper"));
  }
  for (const std::string more : {"+1", ".x", "|trim", "[0]", " is none", " and 1", "~1"}) {
    std::string deep = "{{ 1";
    for (int i = 0; i < 100000; ++i) deep += more;
    INFO(more);
    CHECK(has(says(deep + " }}"), "more than 200 levels"));
  }
  std::string blocks;
  for (int i = 0; i < 100000; ++i) blocks += "{% if 1 %}";
  CHECK(has(says(blocks), "nesting deeper"));
  Json deep_message = 1;
  for (int i = 0; i < 1000; ++i) deep_message = Json::array({std::move(deep_message)});
  CHECK(has(says("{{ m }}", {{"m", std::move(deep_message)}}), "nesting deeper"));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  CHECK(seconds < 30);  // a few at most in release; sanitizers are slower
}

TEST_CASE("a long chat stays inside the limits") {
  Json messages = Json::array();
  for (int i = 0; i < 2000; ++i)
    messages.push_back({{"role", i % 2 ? "assistant" : "user"}, {"content", std::string(2000, 'x')}});
  const std::string text = ChatTemplate(read("qwen3.jinja")).render_text({{"messages", messages}});
  CHECK(text.size() > 4'000'000);
}

TEST_CASE("strftime_now is the local time") {
  const std::string year = render("{{ strftime_now('%Y') }}");
  CHECK(year.size() == 4);
  CHECK(year >= "2024");
  CHECK(render("[{{ strftime_now('') }}]") == "[]");
  CHECK(render("{{ strftime_now('%d %b %Y') | length }}") == "11");
}

TEST_CASE("broken UTF-8 in the messages passes through") {
  const Json variables = {{"x", "a\xff\xc3 b"}};
  CHECK(render("{{ x | trim }}{{ x | length }}{{ x[::-1] }}", variables) ==
        "a\xff\xc3 b5b \xc3\xff"
        "a");
}
