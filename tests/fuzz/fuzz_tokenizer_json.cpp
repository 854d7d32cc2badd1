// A foreign tokenizer.json, and then a text through the tokenizer it makes: first line = text, rest = the file.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/error.h"           // Error, NANO_CHECK
#include "text/stream_decoder.h"  // StreamDecoder
#include "text/tokenizer.h"       // tokenizer_from_json

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  size_t line = std::min(input.find('\n'), size);
  std::string_view text = input.substr(0, line), file = input.substr(std::min(line + 1, size));
  try {
    auto tokenizer = nano::tokenizer_from_json(file, "fuzz");
    for (bool parse_special : {true, false}) {
      auto ids = tokenizer->encode(text, {true, parse_special});
      for (bool skip : {true, false}) {
        std::string decoded = tokenizer->decode(ids, skip);
        nano::StreamDecoder stream(*tokenizer, {}, false, skip);
        for (int32_t id : ids) stream.add(id);
        stream.finish();
        NANO_CHECK(stream.text() == decoded, "streamed text differs");
        NANO_CHECK(nano::find_invalid_utf8(decoded) == std::string::npos, "decoded text is not UTF-8");
      }
    }
  } catch (const nano::Error&) {
  }
  return 0;
}
