// Runs a template: one recursive walk over the tree for statements, one for expressions. The parser has bounded the
// tree's depth and there are no functions of the template's own, so the recursion is bounded, too.
#include <algorithm>

#include <fmt/format.h>

#include "text/jinja.h"  // Node, Context, Value, Text

namespace nano::jinja {
namespace {

class Evaluator {
 public:
  Text run(const Node& program, const nlohmann::ordered_json& variables) {
    static constexpr std::string_view kSuffix =
        "_token";  // bos_token … are the model's, so the template's own
    for (const auto& [name, value] : variables.items()) {
      const bool is_token = value.is_string() && name.size() >= kSuffix.size() &&
                            name.compare(name.size() - kSuffix.size(), kSuffix.size(), kSuffix) == 0;
      const Value key = c_.own_string(name);
      set(key.text->bytes, c_.from_json(value, is_token ? Text::kOwn : Text::kForeign));
    }
    execute(program);
    return std::move(out_);
  }

 private:
  // --- names: one stack of them; a scope is what lies above scope_
  Value* lookup(std::string_view name, size_t from) {
    c_.charge(1 + names_.size() / 64);
    for (size_t i = names_.size(); i-- > from;)
      if (names_[i].first == name) return &names_[i].second;
    return nullptr;
  }
  void set(std::string_view name, const Value& value) {
    if (Value* known = lookup(name, scope_)) {
      *known = value;
    } else {
      names_.emplace_back(name, value);
    }
  }
  template <typename Body>
  void in_scope(Body body) {
    const size_t outer = std::exchange(scope_, names_.size());
    body();
    names_.resize(scope_);
    scope_ = outer;
  }

  // --- statements
  void execute(const Node& node) {
    c_.charge(1);
    c_.line = node.line;
    switch (node.op) {
      case Op::data: return c_.append(out_, *c_.own_string(node.text).text);
      case Op::output: return c_.append(out_, to_text(c_, eval(node.kids[0])));
      case Op::set: return set(node.text, eval(node.kids[0]));
      case Op::set_attribute: return set_attribute(node);
      case Op::for_: return execute_for(node);
      case Op::if_: {
        size_t i = 0;
        while (i + 1 < node.kids.size() && !truthy(eval(node.kids[i]))) i += 2;
        if (i < node.kids.size()) execute(node.kids[std::min(i + 1, node.kids.size() - 1)]);
        return;
      }
      default:
        for (const Node& kid : node.kids) execute(kid);
    }
  }

  void set_attribute(const Node& node) {
    const Value space = eval(node.kids[0]), value = eval(node.kids[1]);
    if (!space.is(Kind::name_space)) c_.fail(fmt::format("'{}' is not a namespace", node.kids[0].text));
    if (Value* known = find(c_, *space.dict, node.text)) {
      *known = value;
    } else {
      space.dict->items.emplace_back(c_.own_string(node.text).text, value);
    }
  }

  void execute_for(const Node& node) {
    const Node &targets = node.kids[0], &condition = node.kids[2];
    const std::vector<Value> all = iterate(c_, eval(node.kids[1]));
    std::vector<Value> items;
    for (const Value& item : all) {
      if (condition.op == Op::missing) {
        items.push_back(item);
        continue;
      }
      in_scope([&] {
        unpack(targets, item);
        if (truthy(eval(condition))) items.push_back(item);
      });
    }
    const Value loop = c_.dict({}, Kind::name_space);
    for (size_t i = 0; i < items.size(); ++i)
      in_scope([&] {
        update_loop(*loop.dict, items, i);
        set("loop", loop);
        unpack(targets, items[i]);
        execute(node.kids[3]);
      });
    if (items.empty() && node.kids[4].op != Op::missing) in_scope([&] { execute(node.kids[4]); });
  }

  void unpack(const Node& targets, const Value& item) {
    if (targets.kids.size() == 1) return set(targets.kids[0].text, item);
    const std::vector<Value> parts = iterate(c_, item);
    if (parts.size() != targets.kids.size())
      c_.fail(fmt::format("{} values for {} names", parts.size(), targets.kids.size()));
    for (size_t i = 0; i < parts.size(); ++i) set(targets.kids[i].text, parts[i]);
  }

  void update_loop(Dict& loop, const std::vector<Value>& items, size_t at) {
    const int64_t i = int64_t(at), n = int64_t(items.size());
    const std::pair<const char*, Value> values[] = {{"index0", integer(i)},
                                                    {"index", integer(i + 1)},
                                                    {"first", boolean(i == 0)},
                                                    {"last", boolean(i + 1 == n)},
                                                    {"length", integer(n)},
                                                    {"revindex", integer(n - i)},
                                                    {"revindex0", integer(n - i - 1)},
                                                    {"previtem", i > 0 ? items[at - 1] : Value{}},
                                                    {"nextitem", i + 1 < n ? items[at + 1] : Value{}}};
    if (loop.items.empty())
      for (const auto& [name, value] : values) loop.items.emplace_back(c_.own_string(name).text, value);
    for (size_t k = 0; k < loop.items.size(); ++k) loop.items[k].second = values[k].second;
  }

  // --- expressions
  Value eval(const Node& node) {
    c_.charge(1);
    if (node.op == Op::and_ || node.op == Op::or_) {
      const Value left = eval(node.kids[0]);
      return truthy(left) == (node.op == Op::or_) ? left : eval(node.kids[1]);
    }
    if (node.op == Op::condition) return eval(node.kids[truthy(eval(node.kids[0])) ? 1 : 2]);
    std::vector<Value> v;  // the operands
    for (const Node& kid : node.kids) v.push_back(eval(kid));
    c_.line = node.line;
    switch (node.op) {
      case Op::missing: return {};
      case Op::none: return c_.from_json(nullptr, Text::kOwn);
      case Op::boolean: return boolean(node.integer != 0);
      case Op::integer: return integer(node.integer);
      case Op::string: return c_.own_string(node.text);
      case Op::name: return name(node);
      case Op::list: return c_.list(std::move(v));
      case Op::dict:
      case Op::name_space: return dict(node, v);
      case Op::attribute:
      case Op::item: return item(node, v);
      case Op::slice: return slice(v);
      case Op::call: return call(node, v);
      case Op::not_: return boolean(!truthy(v[0]));
      case Op::negate: return arithmetic(Op::subtract, integer(0), v[0]);
      default: return binary(node.op, v[0], v[1]);
    }
  }

  Value name(const Node& node) {
    if (const Value* found = lookup(node.text, 0)) return *found;
    Value value;
    value.name = &node.text;
    if (node.text == "namespace" || find_builtin(Builtin::function, node.text)) value.kind = Kind::function;
    return value;
  }

  Value dict(const Node& node, const std::vector<Value>& v) {
    Dict dict;
    for (size_t i = 0; i < v.size(); i += 2) {
      if (!v[i].is(Kind::string)) c_.fail("unsupported: a dict key that is not a string");
      if (Value* known = find(c_, dict, v[i].text->bytes)) {
        *known = v[i + 1];
      } else {
        dict.items.emplace_back(v[i].text, v[i + 1]);
      }
    }
    return c_.dict(std::move(dict), node.op == Op::dict ? Kind::dict : Kind::name_space);
  }

  Value item(const Node& node, const std::vector<Value>& v) {
    const bool dotted = node.op == Op::attribute;
    if (dotted && !v[0].is(Kind::dict) && !v[0].is(Kind::name_space) && !v[0].is(Kind::undefined)) return {};
    Value found = get_item(c_, v[0], dotted ? c_.own_string(node.text) : v[1]);
    if (found.is(Kind::undefined)) found.name = dotted ? &node.text : nullptr;
    return found;
  }

  Value slice(const std::vector<Value>& v) {
    for (size_t i = 1; i < v.size(); ++i)
      if (!v[i].is_int() && !v[i].is(Kind::undefined) && !v[i].is(Kind::none))
        c_.fail("a slice needs integers");
    if (!v[0].is(Kind::string) && !v[0].is(Kind::list))
      c_.fail(fmt::format("a {} has no slices", type_name(v[0])));
    const std::vector<Value> items = iterate(c_, v[0]);
    const int64_t n = int64_t(items.size()), step = v[3].is_int() ? v[3].integer : 1;
    if (step == 0) c_.fail("slice step cannot be zero");
    const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;  // as Python's slice.indices
    const auto bound = [&](const Value& b, int64_t open) {
      return b.is_int() ? std::clamp(b.integer < 0 ? b.integer + n : b.integer, low, high) : open;
    };
    const int64_t begin = bound(v[1], step > 0 ? low : high), end = bound(v[2], step > 0 ? high : low);
    const int64_t stride = std::clamp(step, -n - 1, n + 1);  // no overflow below
    std::vector<Value> chosen;
    Text text;
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += stride) {
      if (v[0].is(Kind::list)) chosen.push_back(items[size_t(i)]);
      if (v[0].is(Kind::string)) c_.append(text, *items[size_t(i)].text);
    }
    return v[0].is(Kind::list) ? c_.list(std::move(chosen), v[0].list->tuple) : c_.string(std::move(text));
  }

  Value call(const Node& node, const std::vector<Value>& v) {
    if (node.builtin->kind == Builtin::method && v[0].is(Kind::undefined)) get_item(c_, v[0], {});  // says so
    return node.builtin->call(c_, v);
  }

  Value binary(Op op, const Value& a, const Value& b) {
    switch (op) {
      case Op::equal: return boolean(equal(c_, a, b));
      case Op::not_equal: return boolean(!equal(c_, a, b));
      case Op::less: return boolean(less(c_, a, b));
      case Op::greater: return boolean(less(c_, b, a));
      case Op::less_equal: return boolean(!less(c_, b, a));
      case Op::greater_equal: return boolean(!less(c_, a, b));
      case Op::in: return boolean(contains(c_, b, a));
      case Op::not_in: return boolean(!contains(c_, b, a));
      case Op::concat: return join(to_text(c_, a), to_text(c_, b));
      default: break;
    }
    if (op == Op::add && a.is(Kind::string) && b.is(Kind::string)) return join(*a.text, *b.text);
    if (op == Op::add && a.is(Kind::list) && b.is(Kind::list)) {
      std::vector<Value> items = a.list->items;
      items.insert(items.end(), b.list->items.begin(), b.list->items.end());
      return c_.list(std::move(items));
    }
    return arithmetic(op, a, b);
  }

  Value join(Text left, const Text& right) {
    c_.append(left, right);
    return c_.string(std::move(left));
  }

  Value arithmetic(Op op, const Value& a, const Value& b) {
    for (const Value* v : {&a, &b})
      if (v->is(Kind::undefined)) get_item(c_, *v, {});  // says what is undefined
    if (!a.is_int() || !b.is_int())
      c_.fail(fmt::format("unsupported operand types: {} and {}", type_name(a), type_name(b)));
    const int64_t x = a.integer, y = b.integer;
    int64_t result = 0;
    bool overflow = false;
    if (op == Op::add) overflow = __builtin_add_overflow(x, y, &result);
    if (op == Op::subtract) overflow = __builtin_sub_overflow(x, y, &result);
    if (op == Op::multiply) overflow = __builtin_mul_overflow(x, y, &result);
    if (op == Op::floor_divide || op == Op::modulo) {  // rounded down, the remainder has the divisor's sign
      if (y == 0) c_.fail("division by zero");
      overflow = x == INT64_MIN && y == -1;
      const int64_t rest = overflow ? 0 : x % y;
      const bool down = rest != 0 && (rest < 0) != (y < 0);
      if (!overflow) result = op == Op::modulo ? rest + (down ? y : 0) : x / y - down;
    }
    if (overflow) c_.fail("a number is beyond 64 bits");
    return integer(result);
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
