#include "text/chat_template.h"

#include <algorithm>

#include "base/error.h"  // Error
#include "text/jinja.h"  // parse, evaluate, Node

namespace nano {

struct ChatTemplate::Program {
  jinja::Node node;
};

ChatTemplate::ChatTemplate(std::string_view source) : program_(new Program{jinja::parse(source)}) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;

std::vector<RenderedSpan> ChatTemplate::render(const nlohmann::ordered_json& variables) const {
  if (!variables.is_object()) throw Error("the template's variables are not an object", "chat template");
  const jinja::Text text = jinja::evaluate(program_->node, variables);
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
