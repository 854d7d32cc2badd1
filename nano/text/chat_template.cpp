// Runs a template: one recursive walk over the tree. The parser has bounded the tree's depth and a template has no
// functions of its own, so the recursion is bounded, too.
#include "text/chat_template.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"  // Error
#include "text/jinja/jinja.h"  // parse, Node, Context, Value, Text

namespace nano {
namespace jinja {
namespace {

class Evaluator {
 public:
  Text run(const Node& program, const nlohmann::ordered_json& variables) {
    for (const char* name : {"true", "True"}) set(name, boolean(true));
    for (const char* name : {"false", "False"}) set(name, boolean(false));
    for (const char* name : {"none", "None"}) set(name, {.kind = Kind::none});
    for (const char* name : {"namespace", "raise_exception", "strftime_now"})
      set(name, {.kind = Kind::function});
    for (auto i = variables.begin(); i != variables.end(); ++i) {
      const bool own = i->is_string() && i.key().ends_with("_token");  // bos_token … are the model's
      set(i.key(), c_.from_json(*i, own ? Text::kOwn : Text::kForeign));
    }
    eval(program);
    return std::move(out_);
  }

 private:
  Value eval(const Node& node) {
    c_.charge(1);
    const std::vector<Node>& kids = node.kids;
    if (kids.empty()) c_.line = node.line;
    switch (node.op) {
      case Op::string: return c_.string(node.text, Text::kOwn);
      case Op::integer: return integer(std::stoll(node.text));
      case Op::name: return variable(node.text);
      case Op::call: return call(node);
      case Op::condition: return eval(kids[truthy(eval(kids[0])) ? 1 : 2]);
      case Op::for_: return execute_for(kids[0].kids, kids[1], kids[2], kids[3], kids[4]), Value{};
      case Op::set: return set(node.text, eval(kids[0])), Value{};
      case Op::output: return c_.append(out_, to_text(c_, eval(kids[0]))), Value{};
      case Op::missing: return {};
      case Op::binary: {
        const Value left = eval(kids[0]);
        if (node.text != "and" && node.text != "or") return binary(c_, node.text, left, eval(kids[1]));
        return truthy(left) == (node.text == "or") ? left : eval(kids[1]);
      }
      case Op::block:
        for (const Node& kid : kids) eval(kid);
        return {};
    }
    return {};
  }

  Value call(const Node& node) {
    Args operands;
    for (const Node& kid : node.kids) operands.push_back(eval(kid));
    return node.function(c_, operands);
  }

  void execute_for(const std::vector<Node>& targets, const Node& iterable, const Node& condition,
                   const Node& body, const Node& other) {
    std::vector<Value> items;
    for (const Value& item : iterate(c_, eval(iterable)))
      in_scope([&] {
        if (condition.op != Op::missing) unpack(targets, item);
        if (condition.op == Op::missing || truthy(eval(condition))) items.push_back(item);
      });
    Items loop;
    for (const char* key : {"index0", "index", "first", "last", "length"})
      loop.keys.push_back(c_.string(key, Text::kOwn));
    const Value shown = c_.collect(Kind::name_space, std::move(loop));
    const int64_t n = int64_t(items.size());
    for (int64_t i = 0; i < n; ++i)
      in_scope([&] {
        shown.items->values = {integer(i), integer(i + 1), boolean(i == 0), boolean(i + 1 == n), integer(n)};
        set("loop", shown);
        unpack(targets, items[size_t(i)]);
        eval(body);
      });
    if (n == 0) in_scope([&] { eval(other); });
  }

  void unpack(const std::vector<Node>& targets, const Value& item) {
    if (targets.size() == 1) return set(targets[0].text, item);
    const std::vector<Value> parts = iterate(c_, item);
    if (parts.size() != targets.size())
      c_.fail(fmt::format("{} values for {} names", parts.size(), targets.size()));
    for (size_t i = 0; i < parts.size(); ++i) set(targets[i].text, parts[i]);
  }

  // --- names: one stack of them; the innermost scope begins at scope_
  Value* lookup(std::string_view name, size_t from) {
    c_.charge(1 + names_.size() / 64);
    for (size_t i = names_.size(); i-- > from;)
      if (names_[i].first == name) return &names_[i].second;
    return nullptr;
  }
  Value variable(const std::string& name) {
    const Value* found = lookup(name, 0);
    return found ? *found : Value{.name = &name};
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

  Context c_;
  Text out_;
  std::vector<std::pair<std::string, Value>> names_;
  size_t scope_ = 0;
};

}  // namespace
}  // namespace jinja

ChatTemplate::ChatTemplate(std::string_view source) : program_(new jinja::Node(jinja::parse(source))) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;

std::vector<RenderedSpan> ChatTemplate::render(const nlohmann::ordered_json& variables) const {
  if (!variables.is_object()) throw Error("the template's variables are not an object", "chat template");
  const jinja::Text text = jinja::Evaluator().run(*program_, variables);
  std::vector<RenderedSpan> spans;
  for (size_t begin = 0; begin < text.bytes.size();) {
    const size_t end = std::min(text.origin.find_first_not_of(text.origin[begin], begin), text.bytes.size());
    spans.push_back({text.bytes.substr(begin, end - begin), text.origin[begin] == jinja::Text::kOwn});
    begin = end;
  }
  return spans;
}

std::string ChatTemplate::render_text(const nlohmann::ordered_json& variables) const {
  std::string text;
  for (const RenderedSpan& span : render(variables)) text += span.text;
  return text;
}

}  // namespace nano
