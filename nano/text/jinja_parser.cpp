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

// Binary operators from loose to tight. Level 3, `not`, is no binary one but has its place between.
struct Operator {
  std::string_view text;
  int level;
  Op op;
};
constexpr int kNot = 3, kComparison = 4, kUnary = 8;
constexpr Operator kOperators[] = {
    {"or", 1, Op::or_},     {"and", 2, Op::and_},        {"==", 4, Op::equal},   {"!=", 4, Op::not_equal},
    {"<", 4, Op::less},     {"<=", 4, Op::less_equal},   {">", 4, Op::greater},  {">=", 4, Op::greater_equal},
    {"in", 4, Op::in},      {"+", 5, Op::add},           {"-", 5, Op::subtract}, {"~", 6, Op::concat},
    {"*", 7, Op::multiply}, {"//", 7, Op::floor_divide}, {"%", 7, Op::modulo},
};

template <typename... Kids>
std::vector<Node> nodes(Kids... kids) {  // an initializer list would copy them
  std::vector<Node> out;
  (out.push_back(std::move(kids)), ...);
  return out;
}

Node make(Op op, int line, std::string text = "", std::vector<Node> kids = {}) {
  Node node{op, line, std::move(text), std::move(kids)};
  for (const Node& kid : node.kids) node.depth = std::max(node.depth, kid.depth + 1);
  if (node.depth > kMaxDepth)
    syntax_error(line, fmt::format("an expression of more than {} levels", kMaxDepth));
  return node;
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
  bool next_is(std::string_view text) const {
    return now().kind != Token::stop && tokens_[at_ + 1].text == text;
  }
  Token take() { return now().kind == Token::stop ? now() : tokens_[at_++]; }
  bool skip(std::string_view text) { return is(text) && (++at_, true); }

  [[noreturn]] void unexpected(std::string_view wanted) const {
    const std::string got = now().kind == Token::end    ? "the end of the tag"
                            : now().kind == Token::stop ? "the end of the template"
                                                        : "'" + now().text + "'";
    syntax_error(line(), fmt::format("expected {}, got {}", wanted, got));
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

  // Expressions and blocks recurse through here.
  class Level {
   public:
    explicit Level(Parser& parser) : depth_(parser.depth_) {
      if (++depth_ > kMaxNesting)
        syntax_error(parser.line(), fmt::format("nesting deeper than {}", kMaxNesting));
    }
    ~Level() { --depth_; }

   private:
    int& depth_;
  };

  // --- statements
  // Up to a tag that begins with one of `ends`, which is left to the caller.
  Node block(const std::vector<std::string_view>& ends) {
    const Level level(*this);
    const int at_line = line();
    std::vector<Node> out;
    while (now().kind != Token::stop) {
      const Token token = take();
      if (token.kind == Token::data) {
        out.push_back(make(Op::data, token.line, token.text));
      } else if (token.kind == Token::output_begin) {
        out.push_back(make(Op::output, token.line, "", nodes(expression())));
        expect_end();
      } else {
        if (std::any_of(ends.begin(), ends.end(), [&](auto end) { return is(end); })) break;
        out.push_back(statement());
        expect_end();
      }
    }
    if (now().kind == Token::stop && !ends.empty())
      syntax_error(line(), fmt::format("the template ends without '{}'", ends.back()));
    return make(Op::block, at_line, "", std::move(out));
  }

  Node statement() {
    const int at_line = line();
    const std::string word = name();
    if (word == "if") return if_statement(at_line);
    if (word == "for") return for_statement(at_line);
    if (word == "set") return set_statement(at_line);
    syntax_error(at_line, fmt::format("unsupported statement '{}'", word));
  }

  Node if_statement(int at_line) {
    std::vector<Node> kids;
    do {
      kids.push_back(expression());
      expect_end();
      kids.push_back(block({"elif", "else", "endif"}));
    } while (skip("elif"));
    if (is("else")) kids.push_back(else_block("endif"));
    expect("endif");
    return make(Op::if_, at_line, "", std::move(kids));
  }

  Node else_block(std::string_view end) {
    expect("else");
    expect_end();
    return block({end});
  }

  Node for_statement(int at_line) {
    std::vector<Node> targets;
    const bool brackets = skip("(");
    do targets.push_back(make(Op::name, line(), target()));
    while (skip(","));
    if (brackets) expect(")");
    expect("in");
    Node iterable = binary(1);  // no condition: here `if` chooses items
    Node condition = skip("if") ? expression() : make(Op::missing, at_line);
    if (is("recursive")) syntax_error(line(), "unsupported: recursive loop");
    expect_end();
    Node body = block({"else", "endfor"});
    Node other = is("else") ? else_block("endfor") : make(Op::missing, at_line);
    expect("endfor");
    return make(Op::for_, at_line, "",
                nodes(make(Op::list, at_line, "", std::move(targets)), std::move(iterable),
                      std::move(condition), std::move(body), std::move(other)));
  }

  std::string target() {
    for (const char* reserved : {"true", "false", "none", "True", "False", "None", "loop"})
      if (is(reserved)) unexpected("a name to assign to");
    return name();
  }

  Node set_statement(int at_line) {
    const std::string variable = target();
    const bool to_attribute = skip(".");
    const std::string attribute = to_attribute ? name() : "";
    if (is(",")) syntax_error(at_line, "unsupported: set of several names");
    if (!is("=")) syntax_error(at_line, "unsupported: set without '='");
    ++at_;
    Node value = expression();
    if (is(",")) syntax_error(at_line, "unsupported: a tuple");
    if (!to_attribute) return make(Op::set, at_line, variable, nodes(std::move(value)));
    return make(Op::set_attribute, at_line, attribute,
                nodes(make(Op::name, at_line, variable), std::move(value)));
  }

  // --- expressions
  Node expression() {
    const Level level(*this);
    Node value = binary(1);
    while (is("if")) {
      const int at_line = take().line;
      Node test = binary(1);
      Node other = skip("else") ? expression() : make(Op::missing, at_line);
      value = make(Op::condition, at_line, "", nodes(std::move(test), std::move(value), std::move(other)));
    }
    return value;
  }

  const Operator* operator_at(int level) const {
    if (now().kind != Token::symbol && now().kind != Token::name) return nullptr;
    for (const Operator& o : kOperators)
      if (o.level == level && o.text == now().text) return &o;
    return nullptr;
  }

  Node binary(int level) {
    if (level == kUnary) return filters(unary());
    if (level == kNot && is("not")) {
      const Level nesting(*this);
      const int at_line = take().line;
      return make(Op::not_, at_line, "", nodes(binary(kNot)));
    }
    Node left = binary(level + 1);
    for (int count = 1;; ++count) {
      const int at_line = line();
      const bool not_in = level == kComparison && is("not") && next_is("in");
      if (not_in) ++at_;
      const Operator* found = operator_at(level);
      if (!found) break;
      if (level == kComparison && count > 1) syntax_error(at_line, "unsupported: a chain of comparisons");
      ++at_;
      left = make(not_in ? Op::not_in : found->op, at_line, "", nodes(std::move(left), binary(level + 1)));
    }
    for (const char* unknown : {"/", "**"})
      if (is(unknown)) syntax_error(line(), fmt::format("unsupported operator '{}'", unknown));
    return left;
  }

  Node unary() {
    const int at_line = line();
    if (!skip("-")) return postfix(primary());
    const Level level(*this);
    return make(Op::negate, at_line, "", nodes(unary()));
  }

  Node primary() {
    const Token token = now();
    if (token.kind == Token::name) return variable();
    if (token.kind == Token::string) return make(Op::string, token.line, take().text);
    if (token.kind == Token::integer) return constant(Op::integer, token.line, std::stoll(take().text));
    const Level level(*this);
    if (skip("(")) {
      Node inner = expression();
      if (is(",")) syntax_error(line(), "unsupported: a tuple");
      expect(")");
      return inner;
    }
    if (skip("[")) return items(Op::list, "]");
    if (skip("{")) return items(Op::dict, "}");
    unexpected("an expression");
  }

  static Node constant(Op op, int at_line, int64_t value) {
    Node node = make(op, at_line);
    node.integer = value;
    return node;
  }

  // Behind an opening bracket: [a, b], {'k': a}, and namespace(k=a), which is kept as a dict is.
  Node items(Op op, std::string_view close) {
    const int at_line = line();
    std::vector<Node> kids;
    while (!skip(close)) {
      if (!kids.empty()) expect(",");
      if (skip(close)) break;
      if (op == Op::name_space) {
        kids.push_back(make(Op::string, line(), name()));
        expect("=");
      }
      kids.push_back(expression());
      if (op != Op::dict) continue;
      expect(":");
      kids.push_back(expression());
    }
    return make(op, at_line, "", std::move(kids));
  }

  Node variable() {
    const Token token = take();
    const std::string& word = token.text;
    if (word == "true" || word == "True") return constant(Op::boolean, token.line, 1);
    if (word == "false" || word == "False") return constant(Op::boolean, token.line, 0);
    if (word == "none" || word == "None") return make(Op::none, token.line);
    for (const char* keyword : {"and", "or", "not", "in", "is", "if", "else", "elif"})
      if (word == keyword) syntax_error(token.line, fmt::format("expected an expression, got '{}'", word));
    if (!is("(")) return make(Op::name, token.line, word);
    if (word == "namespace") return ++at_, items(Op::name_space, ")");
    return call(Builtin::function, word, make(Op::missing, token.line));
  }

  Node postfix(Node object) {
    while (true) {
      const int at_line = line();
      if (skip(".")) {
        const std::string member = name();
        if (is("(")) {
          object = call(Builtin::method, member, std::move(object));
        } else {
          check_attribute(object, member);
          object = make(Op::attribute, at_line, member, nodes(std::move(object)));
        }
      } else if (skip("[")) {
        object = subscript(std::move(object), at_line);
      } else {
        if (is("(")) syntax_error(at_line, "unsupported: a call of something that is not a function's name");
        return object;
      }
    }
  }

  static void check_attribute(const Node& object, std::string_view member) {
    for (const char* method : {"clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem",
                               "setdefault", "update", "values"})
      if (member == method)  // Python would take the method, not the key
        syntax_error(object.line,
                     fmt::format("'{0}' is a method of every mapping, write ['{0}'] for the key", member));
    if (object.op != Op::name || object.text != "loop") return;
    for (const char* known :
         {"index", "index0", "revindex", "revindex0", "first", "last", "length", "previtem", "nextitem"})
      if (member == known) return;
    syntax_error(object.line, fmt::format("unsupported: loop.{}", member));
  }

  Node subscript(Node object, int at_line) {
    std::vector<Node> kids = nodes(std::move(object));
    const auto part = [&] {
      const bool given = !is(":") && !is("]");
      kids.push_back(given ? expression() : make(Op::missing, at_line));
    };
    if (is("]")) unexpected("an expression");
    part();
    if (skip("]")) return make(Op::item, at_line, "", std::move(kids));
    expect(":"), part();
    skip(":"), part();
    expect("]");
    return make(Op::slice, at_line, "", std::move(kids));
  }

  // --- functions, filters, tests, methods
  Node filters(Node subject) {
    while (is("|") || is("is")) {
      const int at_line = line();
      const auto kind = take().text == "|" ? Builtin::filter : Builtin::test;
      const bool negated = kind == Builtin::test && skip("not");
      subject = call(kind, name(), std::move(subject));
      if (negated) subject = make(Op::not_, at_line, "", nodes(std::move(subject)));
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
    const auto wrong = [&](const std::string& what) {
      syntax_error(at_line, fmt::format("'{}': {}", function, what));
    };
    if (skip("(")) {
      const Level level(*this);
      for (size_t count = 0; !skip(")"); ++count) {
        if (count > 0) expect(",");
        const bool named = now().kind == Token::name && next_is("=");
        const std::string key = named ? take().text : "";
        if (named) ++at_;
        const auto by_name = [&](const std::string& p) { return p == key || p == key + "="; };
        const size_t place =
            named ? size_t(std::find_if(params.begin(), params.end(), by_name) - params.begin()) : count;
        if (place >= params.size() || (!named && params[place].back() == '='))
          wrong(named ? fmt::format("unsupported argument '{}'", key) : "too many arguments");
        if (kids[place + 1].op != Op::missing) wrong("an argument is given twice");
        kids[place + 1] = expression();
      }
    } else if (kind == Builtin::test && (now().kind == Token::string || now().kind == Token::integer)) {
      unexpected("'(' before the argument of a test");
    }
    for (size_t i = 0; i < params.size(); ++i) {
      const Node& argument = kids[i + 1];
      if (i < builtin->required && argument.op == Op::missing)
        wrong(fmt::format("argument '{}' is missing", params[i]));
      if (params[i] == "test" && argument.op != Op::missing &&
          (argument.op != Op::string || !find_builtin(Builtin::test, argument.text)))
        wrong(fmt::format("unsupported test '{}'", argument.text));
    }
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
