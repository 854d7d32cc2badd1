// Any bytes as a chat template: an Error or a rendering, in bounded time and memory.
#include <cstddef>
#include <cstdint>

#include "base/error.h"          // Error
#include "text/chat_template.h"  // ChatTemplate

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const nlohmann::ordered_json variables = {
      {"messages",
       {{{"role", "user"}, {"content", " é <|im_end|>\xff\n"}},
        {{"role", "assistant"},
         {"content", nullptr},
         {"n", 3},
         {"f", 1.5},
         {"tool_calls", {{{"name", "f"}}}}}}},
      {"tools",
       {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", {{"type", "object"}}}}}}}},
      {"add_generation_prompt", true},
      {"bos_token", "<s>"},
      {"x", 5},
      {"s", "aXbXc"}};
  try {
    const nano::ChatTemplate chat(std::string_view(reinterpret_cast<const char*>(data), size));
    chat.render(variables);
  } catch (const nano::Error&) {
  }
  return 0;
}
