// Chat templates: the subset of Jinja that real templates use, with trim_blocks and lstrip_blocks on as
// transformers sets them. Templates are foreign code: steps, depth and output size are limited.
// A feature it lacks is an Error with line and feature when the template is compiled, never another template.
// Here: if, for, set, namespace, what jinja/builtins.cpp lists, and + - % ~ and comparisons. Not here: macros, block
// set, raw, break, includes, tuples, arithmetic on reals, printing a list or mapping other than with tojson.
// The work is split; jinja.h is the map.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace nano {

namespace jinja {
struct Node;  // text/jinja.h
}

// The rendered conversation, cut where foreign content begins and ends, so that "<|im_end|>" typed by a user is
// tokenised as text while the same string in the template is the control token.
struct RenderedSpan {
  std::string text;
  bool from_template;  // true: written by the template; false: came from the messages
};

// Whose text it is: literals and text of the template, and variables named *_token (bos_token …), are the
// template's own, and so are printed numbers and true, false, none; every other variable's strings are foreign, also
// after trim, +, slices, split, replace … and inside tojson, whose quotes and brackets are foreign too.

class ChatTemplate {
 public:
  explicit ChatTemplate(std::string_view source);  // Error: syntax or unsupported feature, with its line
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;

  // `variables`: messages, tools, add_generation_prompt, bos_token, eos_token, … Ordered JSON keeps key order for
  // tojson. Error: raise_exception's own message (the Error's problem), what Jinja would raise too, or a limit on
  // steps, memory, output and depth. strftime_now is the local time.
  std::vector<RenderedSpan> render(const nlohmann::ordered_json& variables) const;
  std::string render_text(const nlohmann::ordered_json& variables) const;  // the spans joined

 private:
  std::unique_ptr<jinja::Node> program_;
};

}  // namespace nano
