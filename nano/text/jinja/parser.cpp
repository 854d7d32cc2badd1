// A template's source to a tree, by recursive descent with Jinja's precedence. Everything that is unsupported (a
// statement, an operator, a filter, a test, a method, an argument) is found here, when the template is compiled.
#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "text/jinja/jinja.h"    // Node, Builtin
#include "text/jinja/scanner.h"  // Scanner

namespace nano::jinja {
namespace {

constexpr int kMaxNesting = 100;  // of brackets and blocks in the source
constexpr int kMaxDepth = 300;    // of the tree: a + b + c … makes a deep one without nesting

// Binary operators, each row binding tighter than those before; `not` as the comparisons.
const Words kOperators[] = {{"or"},     {"and"}, {"==", "!=", "<", "<=", ">", ">=", "in", "not in"},
                            {"+", "-"}, {"~"},   {"*", "%"}};
constexpr size_t kComparison = 2;

class Parser : Scanner {
 public:
  explicit Parser(std::string_view source) : Scanner(source) {}

  Node run() {
    Node program = block({});
    for (const auto& [called, line] : called_)
      if (!macros_.contains(called)) fail(fmt::format("unsupported function '{}'", called), line);
    return program;
  }

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
    if (word == "macro") return macro_statement();
    if (word == "filter")
      return make(Op::output, "", captured("endfilter", arguments(Builtin::filter, name(), body_text())));
    // What transformers marks as the model's own words when it trains on them; the text is the body's.
    if (word == "generation") return make(Op::output, "", captured("endgeneration", body_text()));
    if ((word == "break" || word == "continue") && loops_ > 0) return make(Op::jump, word);
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
    Node body = inner_block({"else", "endfor"}, loops_ + 1);
    Node other = else_block("endfor");
    return make(Op::for_, "", std::move(targets), std::move(iterable), std::move(condition), std::move(body),
                std::move(other));
  }

  Node set_statement() {
    Node variable = make(Op::name, name());
    const std::string_view attribute = skip(".") ? name() : "";
    if (!is("=") && !is("|") && !is("")) unexpected("'='");
    Node value = skip("=") ? expression() : captured("endset", body_text());
    if (attribute.empty()) return make(Op::set, variable.text, std::move(value));
    return make_call(set_attribute, std::move(variable), make(Op::string, attribute), std::move(value));
  }

  // A block whose variables are its own, with so many loops around that it can break.
  Node inner_block(const Words& ends, int loops) {
    const int outer = std::exchange(loops_, loops);
    ++scopes_;
    Node body = block(ends);
    --scopes_;
    loops_ = outer;
    return body;
  }

  Node body_text() const { return make(Op::name, "|"); }
  // {% set x | f %} … {% endset %} and their like, at what filters the body's text.
  Node captured(std::string_view end, Node value) {
    value = filters(std::move(value));
    close_tag();
    Node body = inner_block({end}, 0);
    expect(end);
    return make(Op::capture, "", std::move(body), std::move(value));
  }

  Node macro_statement() {
    // Jinja's macros see the variables around them; here these are the template's own, so that no scope outlives its
    // block.
    if (scopes_ > 0) fail("unsupported: a macro inside a loop, a macro or a block set", passed_line_);
    Node macro = make(Op::macro, name());
    if (find_builtin(Builtin::function, macro.text)) fail("unsupported: a macro with a function's name");
    macros_.insert(macro.text);
    expect("(");
    std::vector<Node> params;
    while (!skip(")")) {
      const std::string_view param = name();
      params.push_back(make(Op::set, param, skip("=") ? expression() : missing()));
      if (!is(")")) expect(",");
    }
    close_tag();
    add(macro, inner_block({"endmacro"}, 0));
    expect("endmacro");
    for (Node& param : params) add(macro, std::move(param));
    return macro;
  }

  Node macro_call(std::string_view name) {
    called_.emplace_back(name, passed_line_);
    Node out = make(Op::macro_call, name);
    for (expect("("); !skip(")");) {
      const bool named = is_name(word_) && word_after() == "=";
      const std::string_view param = named ? next() : "";
      if (named) expect("=");
      add(out, make(Op::set, param, expression()));
      if (!is(")")) expect(",");
    }
    return out;
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
    if (skip("[")) return items(make_call(make_list), "]");
    if (skip("{")) return items(make_call(make_dict), "}", ":");
    if (skip("(")) {
      if (is(")")) return items(make_call(make_tuple), ")");
      Node inner = expression();
      if (skip(")")) return inner;
      if (!skip(",")) unexpected("')'");
      return items(make_call(make_tuple, std::move(inner)), ")");
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
    if (name == "namespace" && skip("(")) return items(make_call(make_namespace), ")", "=");
    if (name == "dict" && skip("(")) return items(make_call(make_dict), ")", "=");
    if (!find_builtin(Builtin::function, name)) return macro_call(name);
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
  Node items(Node out, std::string_view close, std::string_view behind_key = "") {
    while (!skip(close)) {
      if (!behind_key.empty()) {
        add(out, behind_key == ":" ? expression() : make(Op::string, name()));
        expect(behind_key);
      }
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
          const Function function = is_method(object, member) ? get_method_name : get_item;
          object = make_call(function, std::move(object), make(Op::string, member));
        }
      } else {
        return object;
      }
    }
  }

  bool is_method(const Node& object, std::string_view member) const {
    static const Words methods = {"clear", "copy",    "fromkeys",   "get",    "items", "keys",
                                  "pop",   "popitem", "setdefault", "update", "values"};
    if (object.op == Op::name && object.text == "loop" &&
        std::find(std::begin(kLoopNames), std::end(kLoopNames), member) == std::end(kLoopNames))
      fail(fmt::format("unsupported: loop.{}", member));
    return any_of(methods, member);
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
    const Words params(builtin->params.begin(),
                       std::find(builtin->params.begin(), builtin->params.end(), ""));
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
      if (const std::string_view role = params[place]; role == "test" || role == "filter") {
        const bool known = find_builtin(role == "test" ? Builtin::test : Builtin::filter, given[place].text);
        if (given[place].op != Op::string || !known)
          fail(fmt::format("unsupported {} '{}'", role, given[place].text));
      }
      if (!is(")")) expect(",");
    }
    for (size_t i = 0; i < builtin->required; ++i)
      if (given[i].op == Op::missing) wrong(fmt::format("argument '{}' is missing", params[i]));
    Node node = make_call(builtin->call, std::move(subject));
    for (Node& argument : given) add(node, std::move(argument));
    return node;
  }

  int depth_ = 0, loops_ = 0, scopes_ = 0;
  std::set<std::string, std::less<>> macros_;
  std::vector<std::pair<std::string, int>> called_;  // what must be macros, and in which line
};

}  // namespace

Node parse(std::string_view source) { return Parser(source).run(); }

}  // namespace nano::jinja
