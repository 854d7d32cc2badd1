// The parts of the chat template engine and what passes between them:
//   source text --tokenize--> Token list --parse--> Node tree --evaluate--> Text
//   jinja_lexer.cpp           jinja_parser.cpp      jinja_eval.cpp, with jinja_value.cpp and jinja_builtins.cpp
// White space is settled by the lexer, everything unsupported is found by the parser, work is limited by Context.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace nano::jinja {

// --- lexer ------------------------------------------------------------------------------------------------------
struct Token {
  // `end` closes both {{ and {%; stop is the end of the template.
  enum Kind { data, output_begin, block_begin, end, name, string, integer, symbol, stop };
  Kind kind;
  int line;
  std::string text;
};
std::vector<Token> tokenize(std::string_view source);  // the last one is stop

[[noreturn]] void syntax_error(int line, const std::string& problem);

// Characters of UTF-8 text. A stray byte is a character of its own.
extern const std::string_view kWhiteSpace;     // all that Python's str.strip() takes
size_t character_size(std::string_view text);  // of the first one; REQUIRES text not empty
std::string_view strip(std::string_view text, std::string_view characters, bool left, bool right);

// --- values -----------------------------------------------------------------------------------------------------
// Python's data model as far as templates see it, plus one thing Python has not: each byte of a string knows whether
// the template wrote it or whether it came from the messages.
struct Text {
  std::string bytes;
  std::string origin;  // one char a byte: kOwn or kForeign

  static constexpr char kOwn = 't', kForeign = 'm';

  void append(std::string_view s, char from) { bytes += s, origin.append(s.size(), from); }
  Text slice(size_t begin, size_t size) const {
    return {bytes.substr(begin, size), origin.substr(begin, size)};
  }
};

enum class Kind { undefined, none, boolean, integer, real, string, list, dict, name_space, function };
struct List;
struct Dict;

struct Value {
  Kind kind = Kind::undefined;
  int64_t integer = 0;  // of boolean, too
  double real = 0;
  const Text* text = nullptr;
  const List* list = nullptr;
  Dict* dict = nullptr;               // dict, name_space (and `loop`); a dict never changes after it is made
  const std::string* name = nullptr;  // undefined: what is missing

  bool is(Kind k) const { return kind == k; }
  bool is_int() const { return is(Kind::integer) || is(Kind::boolean); }
  bool is_number() const { return is_int() || is(Kind::real); }
  double as_real() const { return is(Kind::real) ? real : double(integer); }
};
struct List {
  std::vector<Value> items;
  bool tuple = false;  // what items() is made of prints with round brackets
  int depth = 1;       // of the lists and dicts in it
};
struct Dict {
  std::vector<std::pair<const Text*, Value>> items = {};  // in order of insertion
  int depth = 1;
};

Value boolean(bool b);
Value integer(int64_t i);

// Owns every value of one render: what a Value points to dies with the Context, so that values are shared freely, as
// in Python, and neither a namespace that holds itself nor a deep list is a danger. It also holds the limits.
class Context {
 public:
  int line = 0;  // of the template, for messages

  [[noreturn]] void fail(const std::string& problem) const;
  void charge(size_t work);                   // Error when all of the work together is too much
  void append(Text& text, const Text& more);  // for text of any size: charges and limits it
  Value string(Text text);
  Value own_string(std::string_view text);  // text of the template
  Value list(std::vector<Value> items, bool tuple = false);
  Value dict(Dict dict, Kind kind = Kind::dict);
  Value from_json(const nlohmann::ordered_json& json, char from, int depth = 0);  // strings get this origin

 private:
  size_t work_ = 0;
  std::deque<Text> texts_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
};

const char* type_name(const Value& v);
bool truthy(const Value& v);
bool equal(Context& c, const Value& a, const Value& b);
bool less(Context& c, const Value& a, const Value& b);  // Error unless both are numbers or both strings
bool contains(Context& c, const Value& container, const Value& item);
Value get_item(Context& c, const Value& object, const Value& key);  // undefined where it has none
Value* find(Context& c, Dict& dict, std::string_view key);
size_t find_text(Context& c, const Text& text, std::string_view what,
                 size_t from);  // npos if it is not there
std::vector<Value> iterate(Context& c, const Value& v);
Text to_text(Context& c, const Value& v);              // str(v)
Text to_json(Context& c, const Value& v, int indent);  // < 0: on one line

// --- functions, filters, tests and methods ----------------------------------------------------------------------
using Args =
    std::vector<Value>;  // the subject (x in x | f), then one for each parameter, undefined if not given
struct Builtin {
  enum Kind { filter, test, method, function };
  Kind kind;
  const char* name;
  const char* params;  // a space behind each; "indent=": only by name
  size_t required;     // how many of them must be given
  Value (*call)(Context& c, const Args& args);
};
const Builtin* find_builtin(Builtin::Kind kind, std::string_view name);

// --- parser -----------------------------------------------------------------------------------------------------
enum class Op {
  // Statements. for_: targets (a list of names), iterable, condition, body, else body.
  // if_: condition, body, condition, body …, and an else body if the number is odd.
  // set: value; set_attribute: namespace, value, and the attribute is `text`.
  data,
  output,
  block,
  if_,
  for_,
  set,
  set_attribute,
  // Expressions. dict and name_space: key, value, key, value … slice: object, begin, end, step.
  // condition: test, then, else. call: subject and arguments of `builtin`. missing: no argument, no else.
  missing,
  none,
  boolean,
  integer,
  string,
  name,
  list,
  dict,
  name_space,
  attribute,
  item,
  slice,
  call,
  condition,
  not_,
  negate,
  and_,
  or_,
  add,
  subtract,
  multiply,
  floor_divide,
  modulo,
  concat,
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  in,
  not_in,
};
struct Node {
  Op op;
  int line;
  std::string text = {};  // data, string, name, attribute, set
  std::vector<Node> kids = {};
  int64_t integer = 0;
  const Builtin* builtin = nullptr;
  int depth = 1;  // levels of the tree from here down
};
Node parse(std::string_view source);

// --- evaluator --------------------------------------------------------------------------------------------------
Text evaluate(const Node& program, const nlohmann::ordered_json& variables);

}  // namespace nano::jinja
