// The parts of the chat template engine and what passes between them:
//   source text --parse--> Node tree --ChatTemplate::render--> Text
//   scanner.h, parser.cpp   chat_template.cpp, with value.cpp, operators.cpp, builtins.cpp and strings.cpp
// White space is settled by the scanner, everything unsupported is found by the parser, work is limited by Context.
// What this subset of Jinja does not do is listed in chat_template.h.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
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
  bool safe = false;  // from the filter `safe`: + escapes what it adds to it, methods of it are refused

  Text slice(size_t begin, size_t n) const { return {bytes.substr(begin, n), origin.substr(begin, n)}; }
  char whose() const { return origin.find(kForeign) == std::string::npos ? kOwn : kForeign; }  // as a whole
};

// view: d.items(), range(): a list that cannot be indexed or printed. generator: what map, select … return; who reads
// it empties it.
enum class Kind {
  undefined,
  none,
  boolean,
  integer,
  real,
  string,
  list,
  tuple,
  view,
  generator,
  dict,
  name_space,
  function
};
const char* kind_name(Kind kind);

class Context;
struct Items;
struct Node;
struct Value {
  Kind kind = Kind::undefined;
  int64_t integer = 0;  // of a boolean, too
  double real = 0;
  const Text* text = nullptr;
  Items* items = nullptr;             // of list … name_space (`loop` is one, too)
  const std::string* name = nullptr;  // undefined: what is missing
  const Node* macro = nullptr;        // of a function that the template defines

  bool is(Kind k) const { return kind == k; }
  bool given() const { return kind != Kind::undefined; }
  bool is_int() const { return is(Kind::integer) || is(Kind::boolean); }
  bool is_number() const { return is_int() || is(Kind::real); }
  bool is_sequence() const { return is(Kind::list) || is(Kind::tuple); }
  double number() const { return is(Kind::real) ? real : double(integer); }
};
struct Items {
  std::vector<Value> values,
      keys = {};  // keys: strings and integers, as inserted; only in dicts and namespaces
  int depth = 1;  // of the lists and dicts in it

  Value* find(Context& c, const Value& key);
  void set(Context& c, const Value& key, const Value& value);
};
inline Value boolean(bool b) { return {.kind = Kind::boolean, .integer = b}; }
inline Value integer(int64_t i) { return {.kind = Kind::integer, .integer = i}; }

// Owns every value of one render: what a Value points to dies with the Context. So values are shared freely, as in
// Python: a Value is a handle, copying it copies no text and no list, and a namespace that holds itself is no danger,
// as it would be with shared_ptr. It also holds the limits.
//
// Work is counted in steps of some 20 ns: a node evaluated, an item of a list read, 32 bytes copied or compared. Who
// walks through something charges for it, also when the result is small. What may be used grows with the size of the
// variables, so a long conversation is no reason to fail, and a template that would run for ever ends soon.
class Context {
 public:
  explicit Context(size_t input_size);
  int line = 0;  // of the template, for messages

  [[noreturn]] void fail(const std::string& problem) const;
  void charge(size_t steps);                             // Error when all of them together are too many
  void charge_walk(size_t bytes) { charge(bytes / 2); }  // text that is looked at character by character
  size_t steps() const { return steps_; }
  void append(Text& text, const Text& more);             // charges for it and limits the size
  const Value& given(const Value& v) const;              // Error: it is undefined
  const Value& expect(const Value& v, Kind kind) const;  // Error: it is something else
  Value string(Text text);
  Value string(const std::string& text, char origin);
  Value collect(Kind kind, Items items);
  Value list(std::vector<Value> values) { return collect(Kind::list, {std::move(values)}); }
  Value from_json(const nlohmann::ordered_json& json, char origin, int depth = 0);

 private:
  size_t steps_ = 0;
  const size_t max_steps_;
  std::deque<Text> texts_;
  std::deque<Items> items_;
};

bool truthy(const Value& v);
bool equal(Context& c, const Value& a, const Value& b);
size_t find(Context& c, const Text& text, const Text& what, size_t from);  // npos: it is not there
// Where the character of that index begins (< 0: from the end); a place outside the text is the end it lies behind.
size_t character(Context& c, const Text& text, int64_t index);
int compare(Context& c, const Value& a, const Value& b);  // < 0, 0, > 0; Error: Python has no order for them
const std::vector<Value>& elements(Context& c, const Value& v);
const std::vector<Value>& iterate(Context& c, const Value& v);  // the same, charged for: who reads them all
Text to_text(Context& c, const Value& v);                       // str(v)
struct Notation {                                               // of a value inside text
  bool python = false, ascii = false;
  int indent = -1;  // < 0: on one line
};
void write(Context& c, const Value& v, const Notation& notation, int level, Text& out);  // appends

// --- what a template does with values: all of it is a function of operands. Those of a Builtin are the subject (x of
// x | f), then one a parameter: undefined if not given.
using Args = std::vector<Value>;
using Function = Value (*)(Context& c, const Args& args);
struct Builtin {
  enum Kind { filter, test, method, function };
  Kind kind;
  std::string_view name;
  std::array<std::string_view, 5> params;  // "": no more
  size_t required;                         // how many of them must be given
  Function call;
};
extern const std::span<const Builtin> kBuiltins, kStringBuiltins;  // those on strings are in strings.cpp
// What `loop` has, besides previtem and nextitem, which are missing at the ends.
inline constexpr std::string_view kLoopNames[] = {"index0", "index",  "revindex0", "revindex", "first",
                                                  "last",   "length", "previtem",  "nextitem"};
const Builtin* find_builtin(Builtin::Kind kind, std::string_view name);
const Text& string_of(Context& c, const Value& v);  // Error: it is something else
Value get(Context& c, const Value& object, const Value& key);
bool contains(Context& c, const Value& container, const Value& item);
int64_t int_of(Context& c, const Value& v, int64_t otherwise);  // if not given. Error: not an integer
// What the syntax without a name does; operators.cpp says with which operands.
Value get_item(Context& c, const Args& a);
Value get_method_name(Context& c, const Args& a);  // d.items: Python takes the method, not the key
Value slice(Context& c, const Args& a);
Value make_list(Context& c, const Args& a);
Value make_tuple(Context& c, const Args& a);
Value make_dict(Context& c, const Args& a);
Value make_namespace(Context& c, const Args& a);
Value set_attribute(Context& c, const Args& a);
Value negate(Context& c, const Args& a);
Value binary(Context& c, std::string_view op, const Value& left, const Value& right);  // all but `and`, `or`

// --- the tree
// The kids of block: statements. for_: targets (a block of names), iterable, condition, body, else body. output, set:
// the value. condition, which is {% if %} and `x if y else z`: test, then, else. call: the operands. binary: left,
// right; its `text` is the operator. missing: what is not there. jump: break, continue.
// capture: a body, and a value in which the body's text is called "|". macro: the body, then a `set` with the default
// for each parameter. macro_call: a `set` for each argument, of "" if it has no name.
enum class Op {
  block,
  for_,
  output,
  set,
  condition,
  call,
  binary,
  missing,
  string,
  integer,
  name,
  jump,
  capture,
  macro,
  macro_call
};
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
