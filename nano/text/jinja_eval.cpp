// Runs a template: one recursive walk over the tree. The parser has bounded the tree's depth and a template has no
// functions of its own, so the recursion is bounded, too.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "text/jinja.h"  // Node, Context, Value, Text

namespace nano::jinja {
namespace {

class Evaluator {
 public:
  Text run(const Node& program, const nlohmann::ordered_json& variables) {
    for (const char* name : {"true", "True"}) set(name, boolean(true));
    for (const char* name : {"false", "False"}) set(name, boolean(false));
    for (const char* name : {"none", "None"}) set(name, {.kind = Kind::none});
    for (const auto& [key, value] : variables.items()) {
      const std::string_view name = c_.string(key, Text::kOwn).text->bytes;
      const bool own = value.is_string() && name.ends_with("_token");  // bos_token … are the model's
      set(name, c_.from_json(value, own ? Text::kOwn : Text::kForeign));
    }
    eval(program);
    return std::move(out_);
  }

 private:
  // --- names: one stack of them; the innermost scope begins at scope_
  Value* lookup(std::string_view name, size_t from) {
    c_.charge(1 + names_.size() / 64);
    for (size_t i = names_.size(); i-- > from;)
      if (names_[i].first == name) return &names_[i].second;
    return nullptr;
  }
  void set(std::string_view name, const Value& value) {
    Value* known = lookup(name, scope_);
    (known ? *known : names_.emplace_back(name, Value{}).second) = value;
  }
  template <typename Body>
  void in_scope(Body body) {
    const size_t outer = std::exchange(scope_, names_.size());
    body();
    names_.resize(scope_);
    scope_ = outer;
  }

  // --- statements, whose value is nothing
  void set_attribute(const Node& node, const Value& value, const Value& space) {
    if (!space.is(Kind::name_space)) c_.fail(fmt::format("'{}' is not a namespace", node.kids[1].text));
    space.items->set(c_.string(node.text, Text::kOwn), value);
  }

  void execute_for(const Node& node) {
    const Node& condition = node.kids[2];
    std::vector<Value> items;
    for (const Value& item : iterate(c_, eval(node.kids[1])))
      in_scope([&] {
        if (condition.op != Op::missing) unpack(node.kids[0], item);
        if (condition.op == Op::missing || truthy(eval(condition))) items.push_back(item);
      });
    const Value loop = c_.collect(Kind::name_space, {});
    for (size_t i = 0; i < items.size(); ++i)
      in_scope([&] {
        update_loop(*loop.items, int64_t(i), int64_t(items.size()));
        set("loop", loop);
        unpack(node.kids[0], items[i]);
        eval(node.kids[3]);
      });
    if (items.empty()) in_scope([&] { eval(node.kids[4]); });
  }

  void unpack(const Node& targets, const Value& item) {
    if (targets.kids.size() == 1) return set(targets.kids[0].text, item);
    const std::vector<Value> parts = iterate(c_, item);
    if (parts.size() != targets.kids.size())
      c_.fail(fmt::format("{} values for {} names", parts.size(), targets.kids.size()));
    for (size_t i = 0; i < parts.size(); ++i) set(targets.kids[i].text, parts[i]);
  }

  void update_loop(Items& loop, int64_t i, int64_t n) {
    if (loop.keys.empty())
      for (const char* key : {"index0", "index", "first", "last", "length"})
        loop.keys.push_back(c_.string(key, Text::kOwn));
    loop.values = {integer(i), integer(i + 1), boolean(i == 0), boolean(i + 1 == n), integer(n)};
  }

  // --- the walk
  Value eval(const Node& node) {
    c_.charge(1);
    c_.line = node.line;
    switch (node.op) {  // those that choose what is evaluated
      case Op::condition: return eval(node.kids[truthy(eval(node.kids[0])) ? 1 : 2]);
      case Op::for_: return execute_for(node), Value{};
      case Op::binary: {
        if (node.text != "and" && node.text != "or") break;
        const Value left = eval(node.kids[0]);
        return truthy(left) == (node.text == "or") ? left : eval(node.kids[1]);
      }
      default: break;
    }
    std::vector<Value> v;  // the operands
    for (const Node& kid : node.kids) v.push_back(eval(kid));
    c_.line = node.line;
    switch (node.op) {
      case Op::data: return c_.append(out_, *c_.string(node.text, Text::kOwn).text), Value{};
      case Op::output: return c_.append(out_, to_text(c_, v[0])), Value{};
      case Op::set: return set(node.text, v[0]), Value{};
      case Op::set_attribute: return set_attribute(node, v[0], v[1]), Value{};
      case Op::integer: return integer(std::stoll(node.text));
      case Op::string: return c_.string(node.text, Text::kOwn);
      case Op::name: return name(node);
      case Op::list: return c_.list(std::move(v));
      case Op::dict: return dict(Kind::dict, v);
      case Op::name_space: return dict(Kind::name_space, v);
      case Op::item: return get_item(c_, v[0], v[1]);
      case Op::slice: return slice(v);
      case Op::call: return node.builtin->call(c_, v);
      case Op::not_: return boolean(!truthy(v[0]));
      case Op::binary: return binary(node.text, v[0], v[1]);
      default: return {};
    }
  }

  Value name(const Node& node) {
    if (const Value* found = lookup(node.text, 0)) return *found;
    const bool function = node.text == "namespace" || find_builtin(Builtin::function, node.text);
    return {.kind = function ? Kind::function : Kind::undefined, .name = &node.text};
  }

  Value dict(Kind kind, const std::vector<Value>& v) {
    Items items;
    for (size_t i = 0; i < v.size(); i += 2) {
      if (!v[i].is(Kind::string)) c_.fail("unsupported: a dict key that is not a string");
      c_.charge(items.keys.size() / 16);
      items.set(v[i], v[i + 1]);
    }
    return c_.collect(kind, std::move(items));
  }

  Value slice(const std::vector<Value>& v) {
    if (!v[0].is(Kind::string) && !v[0].is(Kind::list))
      c_.fail(fmt::format("a slice of {}", type_name(v[0])));
    for (size_t i = 1; i < 4; ++i)
      if (v[i].given() && !v[i].is_int()) c_.fail("unsupported: slice bounds that are not integers");
    const std::vector<Value> items = iterate(c_, v[0]);
    const int64_t n = int64_t(items.size());
    const int64_t step = v[3].given() ? std::clamp(v[3].integer, -n - 1, n + 1) : 1;
    if (step == 0) c_.fail("slice step cannot be zero");
    const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;  // as Python's slice.indices
    const auto bound = [&](const Value& b, int64_t open) {
      return b.given() ? std::clamp(b.integer < 0 ? b.integer + n : b.integer, low, high) : open;
    };
    const int64_t begin = bound(v[1], step > 0 ? low : high), end = bound(v[2], step > 0 ? high : low);
    std::vector<Value> chosen;
    Text text;
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
      chosen.push_back(items[size_t(i)]);
      if (v[0].is(Kind::string)) c_.append(text, *items[size_t(i)].text);
    }
    return v[0].is(Kind::list) ? c_.list(std::move(chosen)) : c_.string(std::move(text));
  }

  Value binary(const std::string& op, const Value& a, const Value& b) {
    if (op == "==") return boolean(equal(c_, a, b));
    if (op == "!=") return boolean(!equal(c_, a, b));
    if (op == "in") return boolean(contains(c_, b, a));
    if (op == "not in") return boolean(!contains(c_, b, a));
    if (op == "~") return join(to_text(c_, a), to_text(c_, b));
    if (op == "+" && a.is(Kind::string) && b.is(Kind::string)) return join(*a.text, *b.text);
    if (op == "+" && a.is(Kind::list) && b.is(Kind::list)) {
      std::vector<Value> values = a.items->values;
      values.insert(values.end(), b.items->values.begin(), b.items->values.end());
      return c_.list(std::move(values));
    }
    for (const Value* v : {&a, &b})
      if (!v->given()) get_item(c_, *v, {});  // says what is undefined
    if (!a.is_int() || !b.is_int())
      c_.fail(fmt::format("unsupported: {} {} {}", type_name(a), op, type_name(b)));
    const int64_t x = a.integer, y = b.integer;
    if (op == "<") return boolean(x < y);
    if (op == "<=") return boolean(x <= y);
    if (op == ">") return boolean(x > y);
    if (op == ">=") return boolean(x >= y);
    int64_t result = 0;
    if (op == "%" && y <= 0) c_.fail("unsupported: % of something that is not positive");
    if (op == "%") return integer(x % y < 0 ? x % y + y : x % y);  // has the sign of y, in Python
    if (op == "+" ? __builtin_add_overflow(x, y, &result) : __builtin_sub_overflow(x, y, &result))
      c_.fail("a number is beyond 64 bits");
    return integer(result);
  }

  Value join(Text left, const Text& right) {
    c_.append(left, right);
    return c_.string(std::move(left));
  }

  Context c_;
  Text out_;
  std::vector<std::pair<std::string_view, Value>> names_;
  size_t scope_ = 0;
};

}  // namespace

Text evaluate(const Node& program, const nlohmann::ordered_json& variables) {
  return Evaluator().run(program, variables);
}

}  // namespace nano::jinja
