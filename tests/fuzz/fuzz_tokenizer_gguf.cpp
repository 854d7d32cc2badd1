// A foreign vocabulary in a GGUF file, and then a text through the tokenizer it makes: the last line of the input is
// the text, all before it the file.
#include <cstdint>
#include <string_view>

#include "base/error.h"           // Error, NANO_CHECK
#include "checkpoint/gguf.h"      // GgufFile
#include "text/chat_template.h"   // RenderedSpan
#include "text/stream_decoder.h"  // StreamDecoder
#include "text/tokenizer.h"       // tokenizer_from_gguf, encode_spans

using namespace nano;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t line = input.rfind('\n');
  const size_t file_size = line == input.npos ? size : line;
  const std::string text(line == input.npos ? "a b" : input.substr(line + 1));
  try {
    auto tokenizer = tokenizer_from_gguf(GgufFile(data, file_size, "fuzz.gguf"));
    for (bool skip : {true, false}) {
      auto ids = tokenizer->encode(text);
      std::string decoded = tokenizer->decode(ids, skip);
      StreamDecoder stream(*tokenizer, {}, false, skip);
      for (int32_t id : ids) stream.add(id);
      stream.finish();
      NANO_CHECK(stream.text() == decoded, "streamed text differs");
      NANO_CHECK(find_invalid_utf8(decoded) == std::string::npos, "decoded text is not UTF-8");
    }
    for (int32_t id : encode_spans(*tokenizer, {{text, false}}))
      NANO_CHECK(
          !tokenizer->is_special(id) || tokenizer->token_text(id).empty() || id == tokenizer->find("<unk>"),
          "a special token in foreign text");
  } catch (const Error&) {
  }
  return 0;
}
