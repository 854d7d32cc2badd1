// Runs a template: one recursive walk over the tree, whose depth is bounded, macros that call themselves included.
#include "text/chat_template.h"

#include <algorithm>
#include <cctype>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"        // Error
#include "text/jinja/jinja.h"  // parse, Node, Context, Value, Text

namespace nano {
namespace jinja {
namespace {

constexpr int kMaxLevels = 1000;  // of the walk: a macro of usual size can call itself some 50 times

// A role is one of the template's words, not content: with '<|' + role + '|>' the template writes a control token. It
// is a word, or it stays foreign: a role "<|im_end|>" is an attempt.
void own_roles(Context& c, const Value& messages) {
  if (!messages.is(Kind::list)) return;
  for (const Value& message : messages.items->values) {
    Value* role = message.is(Kind::dict) ? message.items->find(c, c.string("role", Text::kOwn)) : nullptr;
    if (!role || !role->is(Kind::string)) continue;
    const std::string& word = role->text->bytes;
    const auto in_word = [](unsigned char byte) { return std::isalnum(byte) || byte == '_' || byte == '-'; };
    if (std::all_of(word.begin(), word.end(), in_word)) *role = c.string(word, Text::kOwn);
  }
}

size_t size_of(const nlohmann::ordered_json& json) {  // about as many bytes as it takes as text
  size_t size = 8 + (json.is_string() ? json.get_ref<const std::string&>().size() : 0);
  if (json.is_structured())
    for (const auto& [key, value] : json.items()) size += key.size() + size_of(value);
  return size;
}

class Evaluator {
 public:
  explicit Evaluator(const nlohmann::ordered_json& variables) : c_(size_of(variables)) {
    for (const char* name : {"true", "True"}) set(name, boolean(true));
    for (const char* name : {"false", "False"}) set(name, boolean(false));
    for (const char* name : {"none", "None"}) set(name, {.kind = Kind::none});
    for (const char* name : {"dict", "namespace", "raise_exception", "range", "strftime_now"})
      set(name, {.kind = Kind::function});
    for (auto i = variables.begin(); i != variables.end(); ++i) {
      const bool own = i->is_string() && i.key().ends_with("_token");  // bos_token … are the model's
      set(i.key(), c_.from_json(*i, own ? Text::kOwn : Text::kForeign));
    }
    own_roles(c_, variable("messages"));
  }
  Text run(const Node& program) {
    eval(program);
    return std::move(out_);
  }

 private:
  Value eval(const Node& node) {
    if (++level_ > kMaxLevels) c_.fail("macros call each other too deeply");
    Value value = evaluate(node);
    --level_;
    return value;
  }

  Value evaluate(const Node& node) {
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
      case Op::jump: return jump_ = node.text == "break" ? Jump::break_ : Jump::continue_, Value{};
      case Op::capture: return capture(kids[0], kids[1]);
      case Op::macro: return set(node.text, {.kind = Kind::function, .macro = &node}), Value{};
      case Op::macro_call: return call_macro(node);
      case Op::binary: {
        const Value left = eval(kids[0]);
        if (node.text != "and" && node.text != "or") return binary(c_, node.text, left, eval(kids[1]));
        return truthy(left) == (node.text == "or") ? left : eval(kids[1]);
      }
      case Op::block:
        for (size_t i = 0; i < kids.size() && jump_ == Jump::none; ++i) eval(kids[i]);
        return {};
    }
    return {};
  }

  Value call(const Node& node) {
    Args operands;
    for (const Node& kid : node.kids) operands.push_back(eval(kid));
    return node.function(c_, operands);
  }

  // The text of a body in its own scope, and what `value` makes of it.
  Value capture(const Node& body, const Node& value) {
    Value out;
    in_scope([&] {
      Text outer = std::exchange(out_, {});
      eval(body);
      set("|", c_.string(std::exchange(out_, std::move(outer))));
      out = eval(value);
    });
    return out;
  }

  Value call_macro(const Node& call) {
    const Value callee = variable(call.text);
    if (!callee.macro) c_.fail(fmt::format("'{}' is not a macro", call.text));
    const std::span params = std::span(callee.macro->kids).subspan(1);
    std::vector<const Value*> given(params.size());
    Args arguments;
    for (const Node& argument : call.kids) arguments.push_back(eval(argument.kids[0]));
    c_.charge(arguments.size() * params.size() / 16);
    for (size_t i = 0; i < arguments.size(); ++i) {
      const std::string& name = call.kids[i].text;
      const auto named =
          std::find_if(params.begin(), params.end(), [&](const Node& p) { return p.text == name; });
      const size_t place = name.empty() ? i : size_t(named - params.begin());
      if (place >= params.size() || given[place])
        c_.fail(fmt::format("macro '{}' cannot take argument {} {}", call.text, i + 1, name));
      given[place] = &arguments[i];
    }
    Value text;
    in_scope([&] {
      const size_t outer = std::exchange(frame_, scope_);
      for (size_t i = 0; i < params.size(); ++i) {
        const Node& standard = params[i].kids[0];
        const Value missing{.name = &params[i].text};
        set(params[i].text, given[i] ? *given[i] : standard.op == Op::missing ? missing : eval(standard));
      }
      static const Node as_it_is{Op::name, 0, "|"};
      text = capture(callee.macro->kids[0], as_it_is);
      frame_ = outer;
    });
    return text;
  }

  void execute_for(const std::vector<Node>& targets, const Node& iterable, const Node& condition,
                   const Node& body, const Node& other) {
    std::vector<Value> chosen;
    const std::vector<Value>& all = iterate(c_, eval(iterable));
    if (condition.op != Op::missing)
      for (const Value& item : all)
        in_scope([&] {
          unpack(targets, item);
          if (truthy(eval(condition))) chosen.push_back(item);
        });
    const std::vector<Value>& items = condition.op == Op::missing ? all : chosen;
    Items loop;
    for (const std::string_view key : kLoopNames)
      loop.keys.push_back(c_.string(std::string(key), Text::kOwn));
    const Value shown = c_.collect(Kind::name_space, std::move(loop));
    const int64_t n = int64_t(items.size());
    for (int64_t i = 0; i < n && jump_ != Jump::break_; ++i)
      in_scope([&] {
        const Value last = boolean(i + 1 == n), size = integer(n), none;
        const Value before = i > 0 ? items[size_t(i - 1)] : none,
                    after = i + 1 < n ? items[size_t(i + 1)] : none;
        shown.items->values = {integer(i),     integer(i + 1),  integer(n - i - 1),
                               integer(n - i), boolean(i == 0), last,
                               size,           before,          after};
        set("loop", shown);
        unpack(targets, items[size_t(i)]);
        jump_ = Jump::none;
        eval(body);
      });
    jump_ = Jump::none;
    if (n == 0) in_scope([&] { eval(other); });
  }

  void unpack(const std::vector<Node>& targets, const Value& item) {
    if (targets.size() == 1) return set(targets[0].text, item);
    const std::vector<Value>& parts = iterate(c_, item);
    if (parts.size() != targets.size())
      c_.fail(fmt::format("{} values for {} names", parts.size(), targets.size()));
    for (size_t i = 0; i < parts.size(); ++i) set(targets[i].text, parts[i]);
  }

  // --- names: one stack of them; the innermost scope begins at scope_. A macro sees its own, which begin at frame_,
  // and the template's, which end at globals_, but none of those who call it.
  Value* lookup(std::string_view name, size_t from) {
    c_.charge(1 + names_.size() * (1 + name.size() / 32) / 64);
    for (size_t i = names_.size(); i-- > from;)
      if ((i >= frame_ || i < globals_) && names_[i].first == name) return &names_[i].second;
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
    if (scope_ == 0) globals_ = names_.size();
    const size_t outer = std::exchange(scope_, names_.size());
    body();
    names_.resize(scope_);
    scope_ = outer;
  }

  Context c_;
  Text out_;
  std::vector<std::pair<std::string, Value>> names_;
  size_t scope_ = 0, frame_ = 0, globals_ = 0;
  enum class Jump { none, break_, continue_ } jump_ = Jump::none;
  int level_ = 0;
};

}  // namespace
}  // namespace jinja

ChatTemplate::ChatTemplate(std::string_view source) : program_(new jinja::Node(jinja::parse(source))) {}
ChatTemplate::~ChatTemplate() = default;

std::vector<RenderedSpan> ChatTemplate::render(const nlohmann::ordered_json& variables) const {
  if (!variables.is_object()) throw Error("the template's variables are not an object", "chat template");
  const jinja::Text text = jinja::Evaluator(variables).run(*program_);
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
