// Tokens to a tree, by recursive descent with Jinja's precedence. Everything that is unsupported — a statement, an
// operator, a filter, a test, a method, an argument — is found here, when the template is compiled.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "text/jinja.h"  // Token, Node, Builtin

namespace nano::jinja {
namespace {

constexpr int kMaxNesting = 100;  // of brackets and blocks in the source
constexpr int kMaxDepth = 300;    // of the tree: a + b + c … makes a deep one without nesting

// Binary operators, each row binding tighter than those before. `not` binds between the rows 1 and 2.
const std::vector<std::string_view> kOperators[] = {
    {"or"}, {"and"}, {"==", "!=", "<", "<=", ">", ">=", "in", "not in"}, {"+", "-"}, {"~"}, {"%"}};
constexpr size_t kNot = 2, kComparison = 2;

Node make(Op op, int line, std::string text = "", std::vector<Node> kids = {}) {
  Node node{op, line, std::move(text), std::move(kids)};
  for (const Node& kid : node.kids) node.depth = std::max(node.depth, kid.depth + 1);
  if (node.depth > kMaxDepth)
    syntax_error(line, fmt::format("an expression of more than {} levels", kMaxDepth));
  return node;
}

template <typename... Kids>
Node make_of(Op op, int line, std::string text, Kids... kids) {
  std::vector<Node> out;  // an initializer list would copy them
  (out.push_back(std::move(kids)), ...);
  return make(op, line, std::move(text), std::move(out));
}

bool any_of(std::initializer_list<const char*> words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  Node run() { return block({}); }

 private:
  // --- tokens
  const Token& now() const { return tokens_[at_]; }
  int line() const { return now().line; }
  bool is(std::string_view text) const {  // a symbol or a word
    return (now().kind == Token::symbol || now().kind == Token::name) && now().text == text;
  }
  Token take() { return now().kind == Token::stop ? now() : tokens_[at_++]; }
  bool skip(std::string_view text) { return is(text) && (++at_, true); }

  [[noreturn]] void unexpected(std::string_view wanted) const {
    const bool has_text = now().kind != Token::end && now().kind != Token::stop;
    syntax_error(line(), fmt::format("unsupported here: expected {}, got {}", wanted,
                                     has_text ? "'" + now().text + "'" : "the end"));
  }
  void expect(std::string_view text) {
    if (!skip(text)) unexpected(fmt::format("'{}'", text));
  }
  void expect_end() {
    if (now().kind != Token::end) unexpected("the end of the tag");
    ++at_;
  }
  std::string name() {
    if (now().kind != Token::name) unexpected("a name");
    return take().text;
  }

  struct Level {  // expressions and blocks recurse through here
    explicit Level(Parser& parser) : depth(parser.depth_) {
      if (++depth > kMaxNesting)
        syntax_error(parser.line(), fmt::format("nesting deeper than {}", kMaxNesting));
    }
    ~Level() { --depth; }
    int& depth;
  };

  // --- statements
  // Up to a tag that begins with one of `ends`, which is left to the caller.
  Node block(std::initializer_list<const char*> ends) {
    const Level level(*this);
    Node out = make(Op::block, line());
    while (now().kind != Token::stop) {
      const Token token = take();
      if (token.kind == Token::data) {
        out.kids.push_back(make(Op::data, token.line, token.text));
      } else if (token.kind == Token::output_begin) {
        out.kids.push_back(make_of(Op::output, token.line, "", expression()));
        expect_end();
      } else {
        if (any_of(ends, now().text)) break;
        out.kids.push_back(statement());
        expect_end();
      }
    }
    if (now().kind == Token::stop && ends.size() > 0)
      syntax_error(line(), fmt::format("the template ends without '{}'", *(ends.end() - 1)));
    return make(Op::block, out.line, "", std::move(out.kids));
  }

  Node statement() {
    const int at_line = line();
    const std::string word = name();
    if (word == "if") return if_statement(at_line);
    if (word == "for") return for_statement(at_line);
    if (word == "set") return set_statement(at_line);
    syntax_error(at_line, fmt::format("unsupported statement '{}'", word));
  }

  Node if_statement(int at_line) {  // elif is an if in the else of the one before
    const Level level(*this);
    Node test = expression();
    expect_end();
    Node body = block({"elif", "else", "endif"});
    Node other = skip("elif") ? if_statement(at_line) : else_block("endif");
    return make_of(Op::condition, at_line, "", std::move(test), std::move(body), std::move(other));
  }

  Node else_block(const char* end) {
    Node other = make(Op::missing, line());
    if (skip("else")) {
      expect_end();
      other = block({end});
    }
    expect(end);
    return other;
  }

  Node for_statement(int at_line) {
    std::vector<Node> targets;
    do targets.push_back(make(Op::name, line(), name()));
    while (skip(","));
    expect("in");
    Node iterable = binary(0);  // not expression(): here `if` chooses items
    Node condition = skip("if") ? expression() : make(Op::missing, at_line);
    expect_end();
    Node body = block({"else", "endfor"});
    Node other = else_block("endfor");
    return make_of(Op::for_, at_line, "", make(Op::list, at_line, "", std::move(targets)),
                   std::move(iterable), std::move(condition), std::move(body), std::move(other));
  }

  Node set_statement(int at_line) {
    const std::string variable = name();
    const std::string attribute = skip(".") ? name() : "";
    expect("=");
    if (attribute.empty()) return make_of(Op::set, at_line, variable, expression());
    return make_of(Op::set_attribute, at_line, attribute, expression(), make(Op::name, at_line, variable));
  }

  // --- expressions
  Node expression() {
    const Level level(*this);
    Node value = binary(0);
    if (!is("if")) return value;
    const int at_line = take().line;
    Node test = binary(0);
    Node other = skip("else") ? expression() : make(Op::missing, at_line);
    return make_of(Op::condition, at_line, "", std::move(test), std::move(value), std::move(other));
  }

  std::string operator_at(size_t row) const {
    if (now().kind != Token::symbol && now().kind != Token::name) return "";
    const std::string text = is("not") && tokens_[at_ + 1].text == "in" ? "not in" : now().text;
    const auto& known = kOperators[row];
    return std::find(known.begin(), known.end(), text) != known.end() ? text : "";
  }

  Node binary(size_t row) {
    if (row == std::size(kOperators)) return filters(unary());
    if (row == kNot && is("not")) {
      const Level level(*this);
      const int at_line = take().line;
      return make_of(Op::not_, at_line, "", binary(kNot));
    }
    Node left = binary(row + 1);
    for (std::string text; text = operator_at(row), !text.empty();) {
      const int at_line = line();
      at_ += text == "not in" ? 2 : 1;
      left = make_of(Op::binary, at_line, text, std::move(left), binary(row + 1));
      if (row == kComparison) break;  // a < b < c is unsupported
    }
    return left;
  }

  Node unary() {
    const int at_line = line();
    if (!skip("-")) return postfix(primary());
    const Level level(*this);
    return make_of(Op::binary, at_line, "-", make(Op::integer, at_line, "0"), unary());
  }

  Node primary() {
    const Level level(*this);
    const Token token = now();
    if (token.kind == Token::string) return make(Op::string, token.line, take().text);
    if (token.kind == Token::integer) return make(Op::integer, token.line, take().text);
    if (skip("[")) return items(Op::list, "]");
    if (skip("{")) return items(Op::dict, "}");
    if (skip("(")) {
      Node inner = expression();
      expect(")");
      return inner;
    }
    if (token.kind != Token::name || any_of({"and", "or", "not", "in", "is", "if", "else"}, token.text))
      unexpected("an expression");
    ++at_;
    if (!is("(")) return make(Op::name, token.line, token.text);
    if (token.text == "namespace" && skip("(")) return items(Op::name_space, ")");
    return call(Builtin::function, token.text, make(Op::missing, token.line));
  }

  // Behind an opening bracket: [a, b], {'k': a}, and namespace(k=a), which is kept as a dict is.
  Node items(Op op, std::string_view close) {
    const int at_line = line();
    std::vector<Node> kids;
    while (!skip(close)) {
      if (op != Op::list) kids.push_back(op == Op::dict ? expression() : make(Op::string, line(), name()));
      if (op != Op::list) expect(op == Op::dict ? ":" : "=");
      kids.push_back(expression());
      if (!is(close)) expect(",");
    }
    return make(op, at_line, "", std::move(kids));
  }

  Node postfix(Node object) {
    while (true) {
      const int at_line = line();
      if (skip("[")) {
        object = subscript(std::move(object), at_line);
      } else if (skip(".")) {
        const std::string member = name();
        if (is("(")) {
          object = call(Builtin::method, member, std::move(object));
        } else {
          check_attribute(object, member);
          object = make_of(Op::item, at_line, "", std::move(object), make(Op::string, at_line, member));
        }
      } else {
        return object;
      }
    }
  }

  void check_attribute(const Node& object, const std::string& member) const {
    if (any_of({"clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update",
                "values"},
               member))  // Python would take the method, not the key
      syntax_error(line(),
                   fmt::format("'{0}' is a method of every mapping, write ['{0}'] for the key", member));
    if (object.op == Op::name && object.text == "loop" &&
        !any_of({"index", "index0", "first", "last", "length"}, member))
      syntax_error(line(), fmt::format("unsupported: loop.{}", member));
  }

  Node subscript(Node object, int at_line) {
    const auto part = [&] { return is(":") || is("]") ? make(Op::missing, at_line) : expression(); };
    Node begin = part();
    if (begin.op != Op::missing && skip("]"))
      return make_of(Op::item, at_line, "", std::move(object), std::move(begin));
    expect(":");
    Node end = part();
    skip(":");
    Node step = part();
    expect("]");
    return make_of(Op::slice, at_line, "", std::move(object), std::move(begin), std::move(end),
                   std::move(step));
  }

  // --- functions, filters, tests, methods
  Node filters(Node subject) {
    while (is("|") || is("is")) {
      const int at_line = line();
      const auto kind = take().text == "|" ? Builtin::filter : Builtin::test;
      const bool negated = kind == Builtin::test && skip("not");
      subject = call(kind, name(), std::move(subject));
      if (negated) subject = make_of(Op::not_, at_line, "", std::move(subject));
    }
    return subject;
  }

  // At the arguments, if there are any: they go to the places of their parameters.
  Node call(Builtin::Kind kind, const std::string& function, Node subject) {
    static constexpr const char* kKinds[] = {"filter", "test", "method", "function"};
    const int at_line = line();
    const Builtin* builtin = find_builtin(kind, function);
    if (!builtin) syntax_error(at_line, fmt::format("unsupported {} '{}'", kKinds[kind], function));
    std::vector<std::string> params;
    for (std::string_view rest = builtin->params; !rest.empty(); rest.remove_prefix(rest.find(' ') + 1))
      params.emplace_back(rest.substr(0, rest.find(' ')));
    std::vector<Node> kids(params.size() + 1, make(Op::missing, at_line));
    kids[0] = std::move(subject);
    size_t place = 0;
    for (bool more = skip("("); more && !skip(")"); ++place) {
      if (now().kind == Token::name && tokens_[at_ + 1].text == "=") {
        place = size_t(std::find(params.begin(), params.end(), now().text) - params.begin());
        if (place == params.size())
          syntax_error(at_line, fmt::format("'{}': unsupported argument '{}'", function, now().text));
        at_ += 2;
      }
      if (place >= params.size() || kids[place + 1].op != Op::missing)
        syntax_error(at_line, fmt::format("'{}': unsupported: too many arguments", function));
      kids[place + 1] = expression();
      if (params[place] == "test" && !find_builtin(Builtin::test, kids[place + 1].text))
        syntax_error(at_line, fmt::format("unsupported test '{}'", kids[place + 1].text));
      if (!is(")")) expect(",");
    }
    for (size_t i = 0; i < builtin->required; ++i)
      if (kids[i + 1].op == Op::missing)
        syntax_error(at_line, fmt::format("'{}': argument '{}' is missing", function, params[i]));
    Node node = make(Op::call, at_line, function, std::move(kids));
    node.builtin = builtin;
    return node;
  }

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

Node parse(std::string_view source) { return Parser(source).run(); }

}  // namespace nano::jinja
