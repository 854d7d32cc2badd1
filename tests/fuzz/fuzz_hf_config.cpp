// Any text as config.json: an Error or a config whose tensors can be listed.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"               // Error
#include "base/json.h"                // parse_json
#include "checkpoint/hf_config.h"     // parse_hf_config
#include "checkpoint/tensor_names.h"  // model_tensors

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const nlohmann::json config = nano::parse_json(text, "config.json");
    const nano::ModelConfig parsed = nano::parse_hf_config(config, "config.json");
    if (parsed.L < 50) (void)nano::model_tensors(parsed);
  } catch (const nano::Error&) {
  }
  return 0;
}
