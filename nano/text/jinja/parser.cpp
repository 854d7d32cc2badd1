// A template's source to a tree, by recursive descent with Jinja's precedence. Everything that is unsupported (a
// statement, an operator, a filter, a test, a method, an argument) is found here, when the template is compiled.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "text/jinja/jinja.h"          // Node, Builtin
#include "text/jinja/scanner.h"  // Scanner

namespace nano::jinja {
namespace {

constexpr int kMaxNesting = 100;  // of brackets and blocks in the source
constexpr int kMaxDepth = 300;    // of the tree: a + b + c … makes a deep one without nesting

// Binary operators, each row binding tighter than those before; `not` as the comparisons.
const Words kOperators[] = {{"or"},     {"and"}, {"==", "!=", "<", "<=", ">", ">=", "in", "not in"},
                            {"+", "-"}, {"~"},   {"%"}};
constexpr size_t kComparison = 2;

class Parser : Scanner {
 public:
  explicit Parser(std::string_view source) : Scanner(source) {}

  Node run() { return block({}); }

 private:
  struct Level {  // expressions and blocks recurse through here
    explicit Level(Parser& parser) : depth(parser.depth_) {
      if (++depth > kMaxNesting) parser.fail(fmt::format("nesting deeper than {}", kMaxNesting));
    }
    ~Level() { --depth; }
    int& depth;
  };

  // --- the tree, whose nodes know the line of the last word that was passed
  template <typename... Kids>
  Node make(Op op, std::string_view text, Kids... kids) const {
    Node node{op, passed_line_, std::string(text)};
    (add(node, std::move(kids)), ...);
    return node;
  }
  template <typename... Kids>
  Node make_call(Function function, Kids... kids) const {
    Node node = make(Op::call, "", std::move(kids)...);
    node.function = function;
    return node;
  }
  Node missing() const { return make(Op::missing, ""); }

  void add(Node& node, Node kid) const {
    node.depth = std::max(node.depth, kid.depth + 1);
    if (node.depth > kMaxDepth) fail(fmt::format("an expression of more than {} levels", kMaxDepth));
    node.kids.push_back(std::move(kid));
  }

  // --- statements
  // Up to a tag that begins with one of `ends`, which is left to the caller.
  Node block(const Words& ends) {
    const Level level(*this);
    Node out = make(Op::block, "");
    for (;;) {
      const std::string_view text = open_tag();
      if (!text.empty()) add(out, make(Op::output, "", make(Op::string, text)));
      if (close_.empty()) break;
      if (close_ == "%}" && any_of(ends, word_)) return out;
      if (close_ == "%}") add(out, statement());
      if (close_ == "}}") add(out, make(Op::output, "", expression()));
      close_tag();
    }
    if (!ends.empty()) fail(fmt::format("the template ends without '{}'", ends.back()));
    return out;
  }

  Node statement() {
    const std::string_view word = name();
    if (word == "if") return if_statement();
    if (word == "for") return for_statement();
    if (word == "set") return set_statement();
    fail(fmt::format("unsupported statement '{}'", word), passed_line_);
  }

  Node if_statement() {  // elif is an if in the else of the one before
    const Level level(*this);
    Node test = expression();
    close_tag();
    Node body = block({"elif", "else", "endif"});
    Node other = skip("elif") ? if_statement() : else_block("endif");
    return make(Op::condition, "", std::move(test), std::move(body), std::move(other));
  }

  Node else_block(std::string_view end) {
    const bool there = skip("else");
    if (there) close_tag();
    Node other = there ? block({end}) : missing();
    expect(end);
    return other;
  }

  Node for_statement() {
    Node targets = make(Op::block, "");
    do add(targets, make(Op::name, name()));
    while (skip(","));
    expect("in");
    Node iterable = binary(0);  // not expression(): here `if` chooses items
    Node condition = skip("if") ? expression() : missing();
    close_tag();
    Node body = block({"else", "endfor"});
    Node other = else_block("endfor");
    return make(Op::for_, "", std::move(targets), std::move(iterable), std::move(condition), std::move(body),
                std::move(other));
  }

  Node set_statement() {
    Node variable = make(Op::name, name());
    const std::string_view attribute = skip(".") ? name() : "";
    expect("=");
    if (attribute.empty()) return make(Op::set, variable.text, expression());
    return make_call(set_attribute, std::move(variable), make(Op::string, attribute), expression());
  }

  // --- expressions
  Node expression() {
    const Level level(*this);
    Node value = binary(0);
    if (!skip("if")) return value;
    Node test = binary(0);
    Node other = skip("else") ? expression() : missing();
    return make(Op::condition, "", std::move(test), std::move(value), std::move(other));
  }

  Node binary(size_t row) {
    if (row == std::size(kOperators)) return filters(unary());
    if (row == kComparison && skip("not")) {
      const Level level(*this);
      return make_call(negate, binary(kComparison));
    }
    Node left = binary(row + 1);
    for (bool more = true; more; more = row != kComparison) {  // a < b < c is unsupported
      const std::string_view op = is("not") && word_after() == "in" ? "not in" : word_;
      if (!any_of(kOperators[row], op)) break;
      if (next() == "not") next();
      left = make(Op::binary, op, std::move(left), binary(row + 1));
    }
    return left;
  }

  Node unary() {
    if (!skip("-")) return postfix(primary());
    const Level level(*this);
    return make(Op::binary, "-", make(Op::integer, "0"), unary());
  }

  Node primary() {
    if (skip("[")) return items(make_list, "]");
    if (skip("{")) return items(make_dict, "}");
    if (skip("(")) {
      Node inner = expression();
      expect(")");
      return inner;
    }
    if (is_string(word_)) return string();
    if (!word_.empty() && is_digit(word_[0])) {
      if (!std::all_of(word_.begin(), word_.end(), is_digit) || word_.size() > 18)
        fail(fmt::format("unsupported number '{}'", word_));
      return make(Op::integer, next());
    }
    if (!is_name(word_) || any_of({"and", "or", "not", "in", "is", "if", "else"}, word_))
      unexpected("an expression");
    const std::string_view name = next();
    if (!is("(")) return make(Op::name, name);
    if (name == "namespace" && skip("(")) return items(make_namespace, ")");
    return arguments(Builtin::function, name, missing());
  }

  Node string() {
    static constexpr std::string_view kFrom = "\\'\"nrt", kTo = "\\'\"\n\r\t";
    const std::string_view word = next();
    std::string text;
    for (size_t i = 1; i + 1 < word.size(); ++i) {
      const bool escaped = word[i] == '\\';
      const size_t known = escaped ? kFrom.find(word[++i]) : 0;
      if (known == kFrom.npos) fail(fmt::format("unsupported escape '\\{}'", word[i]), passed_line_);
      text += escaped ? kTo[known] : word[i];
    }
    return make(Op::string, text);
  }

  // Behind an opening bracket: [a, b], {'k': a}, namespace(k=a). The keys are kids, too, each before its value.
  Node items(Function function, std::string_view close) {
    Node out = make_call(function);
    while (!skip(close)) {
      if (function == make_dict) add(out, expression()), expect(":");
      if (function == make_namespace) add(out, make(Op::string, name())), expect("=");
      add(out, expression());
      if (!is(close)) expect(",");
    }
    return out;
  }

  Node postfix(Node object) {
    for (;;) {
      if (skip("[")) {
        object = subscript(std::move(object));
      } else if (skip(".")) {
        const std::string_view member = name();
        if (is("(")) {
          object = arguments(Builtin::method, member, std::move(object));
        } else {
          check_attribute(object, member);
          object = make_call(get_item, std::move(object), make(Op::string, member));
        }
      } else {
        return object;
      }
    }
  }

  void check_attribute(const Node& object, std::string_view member) const {
    static const Words methods = {"clear", "copy",    "fromkeys",   "get",    "items", "keys",
                                  "pop",   "popitem", "setdefault", "update", "values"};
    if (any_of(methods, member))  // Python would take the method, not the key
      fail(fmt::format("'{0}' is a method of every mapping, write ['{0}'] for the key", member));
    if (object.op == Op::name && object.text == "loop" &&
        !any_of({"index", "index0", "first", "last", "length"}, member))
      fail(fmt::format("unsupported: loop.{}", member));
  }

  Node subscript(Node object) {
    const auto bound = [&] { return is(":") || is("]") ? missing() : expression(); };
    Node begin = is(":") ? missing() : expression();
    if (skip("]")) return make_call(get_item, std::move(object), std::move(begin));
    expect(":");
    Node end = bound();
    skip(":");
    Node step = bound();
    expect("]");
    return make_call(slice, std::move(object), std::move(begin), std::move(end), std::move(step));
  }

  // --- functions, filters, tests, methods
  Node filters(Node subject) {
    while (is("|") || is("is")) {
      const auto kind = next() == "|" ? Builtin::filter : Builtin::test;
      const bool negated = kind == Builtin::test && skip("not");
      subject = arguments(kind, name(), std::move(subject));
      if (negated) subject = make_call(negate, std::move(subject));
    }
    return subject;
  }

  // At the arguments, if there are any: they go to the places of their parameters.
  Node arguments(Builtin::Kind kind, std::string_view function, Node subject) {
    static constexpr const char* kKinds[] = {"filter", "test", "method", "function"};
    const Builtin* builtin = find_builtin(kind, function);
    if (!builtin) fail(fmt::format("unsupported {} '{}'", kKinds[kind], function));
    const auto wrong = [&](const std::string& problem) { fail(fmt::format("'{}': {}", function, problem)); };
    Words params(builtin->params.begin(), builtin->params.end());
    params.erase(std::find(params.begin(), params.end(), ""), params.end());
    std::vector<Node> given(params.size(), missing());
    size_t place = 0;
    for (bool more = skip("("); more && !skip(")"); ++place) {
      if (is_name(word_) && word_after() == "=") {
        place = size_t(std::find(params.begin(), params.end(), word_) - params.begin());
        if (place == params.size()) wrong(fmt::format("unsupported argument '{}'", word_));
        next(), next();
      }
      if (place >= params.size() || given[place].op != Op::missing) wrong("unsupported: too many arguments");
      given[place] = expression();
      const bool names_test = given[place].op == Op::string && find_builtin(Builtin::test, given[place].text);
      if (params[place] == "test" && !names_test)
        fail(fmt::format("unsupported test '{}'", given[place].text));
      if (!is(")")) expect(",");
    }
    for (size_t i = 0; i < builtin->required; ++i)
      if (given[i].op == Op::missing) wrong(fmt::format("argument '{}' is missing", params[i]));
    Node node = make_call(builtin->call, std::move(subject));
    for (Node& argument : given) add(node, std::move(argument));
    return node;
  }

  int depth_ = 0;
};

}  // namespace

Node parse(std::string_view source) { return Parser(source).run(); }

}  // namespace nano::jinja
