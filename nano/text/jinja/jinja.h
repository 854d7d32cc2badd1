// The parts of the chat template engine and what passes between them:
//   source text --parse--> Node tree --ChatTemplate::render--> Text
//   scanner.h, parser.cpp   chat_template.cpp, with value.cpp and builtins.cpp
// White space is settled by the scanner, everything unsupported is found by the parser, work is limited by Context.
// What this subset of Jinja does not do is listed in chat_template.h.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace nano::jinja {

extern const std::string_view kWhiteSpace;  // all that Python's str.strip() takes
std::string_view strip(std::string_view text, std::string_view characters, bool left, bool right);

// --- values: Python's, plus one thing Python has not: each byte of a string knows whether the template wrote it or
// whether it came from the messages.
struct Text {
  static constexpr char kOwn = 't', kForeign = 'm';
  std::string bytes, origin;  // of the same length

  Text slice(size_t begin, size_t n) const { return {bytes.substr(begin, n), origin.substr(begin, n)}; }
};

enum class Kind { undefined, none, boolean, integer, real, string, list, dict, name_space, function };
const char* kind_name(Kind kind);

struct Items;
struct Value {
  Kind kind = Kind::undefined;
  int64_t integer = 0;  // of a boolean, too
  double real = 0;
  const Text* text = nullptr;
  Items* items = nullptr;             // of lists, dicts and namespaces (`loop` is one, too)
  const std::string* name = nullptr;  // undefined: what is missing

  bool is(Kind k) const { return kind == k; }
  bool given() const { return kind != Kind::undefined; }
  bool is_int() const { return is(Kind::integer) || is(Kind::boolean); }
  bool is_number() const { return is_int() || is(Kind::real); }
};
struct Items {
  std::vector<Value> values, keys = {};  // keys: strings, in order of insertion; none in a list
  int depth = 1;                         // of the lists and dicts in it

  Value* find(std::string_view key);
  void set(const Value& key, const Value& value);
};
inline Value boolean(bool b) { return {.kind = Kind::boolean, .integer = b}; }
inline Value integer(int64_t i) { return {.kind = Kind::integer, .integer = i}; }

// Owns every value of one render: what a Value points to dies with the Context. So values are shared freely, as in
// Python, and a namespace that holds itself is no danger, as it would be with shared_ptr. It also holds the limits.
class Context {
 public:
  int line = 0;  // of the template, for messages

  [[noreturn]] void fail(const std::string& problem) const;
  void charge(size_t work);                              // Error when all work together is too much
  void append(Text& text, const Text& more);             // charges for it and limits the size
  const Value& given(const Value& v) const;              // Error: it is undefined
  const Value& expect(const Value& v, Kind kind) const;  // Error: it is something else
  Value string(Text text);
  Value string(const std::string& text, char origin);
  Value collect(Kind kind, Items items);
  Value list(std::vector<Value> values) { return collect(Kind::list, {std::move(values)}); }
  Value from_json(const nlohmann::ordered_json& json, char origin, int depth = 0);

 private:
  size_t work_ = 0;
  std::deque<Text> texts_;
  std::deque<Items> items_;
};

bool truthy(const Value& v);
bool equal(Context& c, const Value& a, const Value& b);
size_t find(Context& c, const Text& text, const Text& what, size_t from);  // npos: it is not there
std::vector<Value> iterate(Context& c, const Value& v);
Text to_text(Context& c, const Value& v);  // str(v), but not of lists and dicts
// Appended to `out`; indent < 0: on one line.
void to_json(Context& c, const Value& v, int indent, int level, Text& out);

// --- what a template does with values: all of it is a function of operands. Those of a Builtin are the subject (x of
// x | f), then one a parameter: undefined if not given.
using Args = std::vector<Value>;
using Function = Value (*)(Context& c, const Args& args);
struct Builtin {
  enum Kind { filter, test, method, function };
  Kind kind;
  std::string_view name;
  std::array<std::string_view, 3> params;  // "": no more
  size_t required;                         // how many of them must be given
  Function call;
};
const Builtin* find_builtin(Builtin::Kind kind, std::string_view name);
// What the syntax without a name does; builtins.cpp says with which operands.
Value get_item(Context& c, const Args& a);
Value slice(Context& c, const Args& a);
Value make_list(Context& c, const Args& a);
Value make_dict(Context& c, const Args& a);
Value make_namespace(Context& c, const Args& a);
Value set_attribute(Context& c, const Args& a);
Value negate(Context& c, const Args& a);
Value binary(Context& c, std::string_view op, const Value& left, const Value& right);  // all but `and`, `or`

// --- the tree
// The kids of block: statements. for_: targets (a block of names), iterable, condition, body, else body. output, set:
// the value. condition, which is {% if %} and `x if y else z`: test, then, else. call: the operands. binary: left,
// right; its `text` is the operator. missing: what is not there.
enum class Op { block, for_, output, set, condition, call, binary, missing, string, integer, name };
struct Node {
  Op op;
  int line;  // of literals and variables
  std::string text = {};
  std::vector<Node> kids = {};
  Function function = nullptr;
  int depth = 1;  // levels of the tree from here down
};
Node parse(std::string_view source);

}  // namespace nano::jinja
