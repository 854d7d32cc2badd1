#include "text/normalizer.h"

#include <cstdlib>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <utf8proc.h>

#include "base/error.h"  // Error
#include "text/utf8.h"   // utf8_length

namespace nano {
namespace {

// Composition sorts runs of combining marks in quadratic time. Real text has a handful in a row.
constexpr int kMostMarksInARow = 1000;

void check_marks(const std::string& text) {
  int marks = 0;
  for (size_t i = 0; i < text.size();) {
    utf8proc_int32_t c = 0;
    auto at = reinterpret_cast<const utf8proc_uint8_t*>(text.data() + i);
    i += size_t(utf8proc_iterate(at, utf8proc_ssize_t(text.size() - i), &c));
    marks = utf8proc_get_property(c)->combining_class != 0 ? marks + 1 : 0;
    if (marks > kMostMarksInARow)
      throw Error(
          fmt::format("the text has more than {} combining marks in a row at byte {}", kMostMarksInARow, i));
  }
}

std::string compose(const std::string& text) {
  check_marks(text);
  utf8proc_uint8_t* composed = nullptr;
  auto options = utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                       utf8proc_ssize_t(text.size()), &composed, options);
  std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(composed, std::free);
  if (size < 0) throw Error(fmt::format("the text can't be normalised: {}", utf8proc_errmsg(size)));
  return std::string(reinterpret_cast<char*>(composed), size_t(size));
}

std::string replace_all(const std::string& text, const Regex& pattern, const std::string& content) {
  std::string out;
  size_t done = 0;
  pattern.find_all(text, [&](size_t begin, size_t end) {
    out.append(text, done, begin - done);
    out += content;
    done = end;
  });
  return out.append(text, done, text.npos);
}

}  // namespace

void Normalizer::add_nfc() { steps_.push_back({Step::Kind::nfc}); }
void Normalizer::add_replace(Regex pattern, std::string content) {
  steps_.push_back({Step::Kind::replace, std::make_unique<Regex>(std::move(pattern)), std::move(content)});
}
void Normalizer::add_prepend(std::string prefix) {
  steps_.push_back({Step::Kind::prepend, nullptr, std::move(prefix)});
}

std::string Normalizer::normalize(std::string text) const {
  for (const Step& step : steps_) {
    if (text.empty()) break;
    switch (step.kind) {
      case Step::Kind::nfc: text = compose(text); break;
      case Step::Kind::replace: text = replace_all(text, *step.pattern, step.content); break;
      case Step::Kind::prepend: text = step.content + text; break;
    }
  }
  return text;
}

}  // namespace nano
