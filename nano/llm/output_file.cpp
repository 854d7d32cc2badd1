#include "llm/output_file.h"

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "base/error.h"  // Error
#include "llm/loader.h"  // find_model

namespace nano {

namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMost = 64 << 20;  // results are far smaller; of a trace the first line tells

bool is_ours(const std::string& path, uintmax_t size) {
  std::string text(size_t(std::min(size, kMost)), '\0');
  std::ifstream(path, std::ios::binary).read(text.data(), std::streamsize(text.size()));
  if (text[0] != '{') return false;
  auto parsed = [](const std::string& json) { return nlohmann::json::parse(json, nullptr, false); };
  const nlohmann::json line = parsed(text.substr(0, text.find('\n')));
  if (line.contains("trace") && line["trace"] == "nano") return true;
  const nlohmann::json all = size > kMost ? line : parsed(text);
  return all.contains("output_ids_digest") || (all.contains("output_ids") && all.contains("metrics"));
}

}  // namespace

void check_output_file(const std::string& flag, const std::string& output, const EngineOptions& options) {
  std::error_code ignored, end;  // of a file that is not there yet, or a directory that is none
  if (!fs::exists(output, ignored)) return;
  const bool regular = fs::is_regular_file(output, ignored);
  const uintmax_t size = regular ? fs::file_size(output, ignored) : 0;
  if (size > 0 && is_ours(output, size)) return;
  const fs::path model = find_model(options.model);
  bool same = fs::equivalent(output, model, ignored);
  const auto all = fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator it(model, all, end), none; !end && it != none; it.increment(end))
    same = same || fs::equivalent(output, it->path(), ignored);
  if (same)
    throw Error(output + " is a file of the model, and would be overwritten", flag, "name another file");
  if (size > 0)
    throw Error(output + " is there and is no result of nano's", flag, "name another file, or remove it");
}

}  // namespace nano
