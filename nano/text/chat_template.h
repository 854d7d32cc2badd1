// Chat templates: the subset of Jinja that real templates use, with trim_blocks and lstrip_blocks on as
// transformers sets them. Templates are foreign code: steps, depth and output size are limited.
// A feature it lacks is an Error with line and feature when the template is compiled, never another template.
// Here: if, for (break, continue), set, block set, filter blocks, generation, macros of the top level, namespace,
// what jinja/builtins.cpp and strings.cpp list, and + - * % ~ and comparisons. Not here: call, raw, includes,
// arithmetic on reals, another case of letters beyond ASCII, options of formats.
// The work is split; jinja.h is the map.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace nano {

namespace jinja {
struct Node;  // text/jinja/jinja.h
}

// The rendered conversation, cut where foreign content begins and ends, so that "<|im_end|>" typed by a user is
// tokenised as text while the same string in the template is the control token.
struct RenderedSpan {
  std::string text;
  bool from_template;  // true: written by the template; false: came from the messages
};

// Whose text it is: literals and text of the template, variables named *_token (bos_token …) and the roles of
// messages (as far as they are words) are the template's own, and so are printed numbers and true, false, none. Every
// other variable's strings are foreign. Byte by byte, through +, join, replace, format, upper, slices, macros, block
// set …: a control token is one where all its bytes are the template's. The quotes and brackets of a printed list or
// mapping are foreign.

class ChatTemplate {
 public:
  explicit ChatTemplate(std::string_view source);  // Error: syntax or unsupported feature, with its line
  ~ChatTemplate();

  // `variables`: messages, tools, add_generation_prompt, bos_token, eos_token, … Ordered JSON keeps key order for
  // tojson. Error: raise_exception's own message (the Error's problem), what Jinja would raise too, or a limit on
  // steps, memory, output and depth. strftime_now is the local time.
  std::vector<RenderedSpan> render(const nlohmann::ordered_json& variables) const;
  std::string render_text(const nlohmann::ordered_json& variables) const;  // the spans joined

 private:
  std::unique_ptr<jinja::Node> program_;
};

}  // namespace nano
