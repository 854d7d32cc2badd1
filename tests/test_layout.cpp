// The shape of the source tree, checked: who may include whom, how long files are, and that each lesson module's
// object defines exactly the functions of its header (so that a learner's file can be linked in its place).
#include "catch.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<fs::path> sources(const fs::path& root) {
  std::vector<fs::path> list;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".h" || extension == ".cpp" || extension == ".cu") list.push_back(entry.path());
  }
  std::sort(list.begin(), list.end());
  return list;
}

std::string folder_of(const fs::path& path) {  // "core" for nano/core/step.h, "main" for nano/main.cpp
  const fs::path relative = fs::relative(path, "nano");
  return relative.has_parent_path() ? relative.begin()->string() : "main";
}

std::string run(const std::string& command) {
  std::string output;
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 4096> buffer;
  while (size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) output.append(buffer.data(), n);
  CHECK(pclose(pipe) == 0);
  return output;
}

long count_lines(const fs::path& path) {
  const std::string text = read(path);
  return std::count(text.begin(), text.end(), '\n');
}

// Also without empty default arguments.
std::string without_comments(const std::string& text) {
  return std::regex_replace(text, std::regex("//[^\n]*| = \\{\\}"), "");
}

}  // namespace

TEST_CASE("layers include only what is below them") {
  // model/model_config.h and quant/linear.h are descriptions without code of their layer; checkpoint/weights.h is
  // how the model sees a file.
  const std::map<std::string, std::set<std::string>> allowed = {
      {"base", {"base"}},
      {"core", {"core", "base"}},
      {"quant", {"quant", "base"}},
      {"backend", {"backend", "quant", "base"}},
      {"checkpoint", {"checkpoint", "quant", "base", "model/model_config.h"}},
      {"model", {"model", "base", "quant/linear.h", "backend/backend.h", "checkpoint/weights.h"}},
      {"text", {"text", "base", "checkpoint/gguf.h"}},
      {"engine", {"engine", "core", "model", "base", "backend/backend.h"}},
      {"bench",
       {"bench", "llm", "engine", "core", "model", "backend/backend.h", "backend/observers.h", "quant",
        "base"}},
      {"app",
       {"app", "bench", "llm", "engine", "core", "model", "backend/backend.h", "backend/observers.h", "text",
        "checkpoint", "quant", "base"}},
      {"server", {"server", "app", "engine", "core", "text", "base"}},
      {"main", {"app", "server", "base"}},
  };
  const std::regex include("#include \"([^\"]+)\"");
  int checked = 0;
  for (const fs::path& path : sources("nano")) {
    const std::string text = read(path), folder = folder_of(path);
    INFO(path.string());
    REQUIRE(allowed.count(folder) == 1);
    for (std::sregex_iterator it(text.begin(), text.end(), include), end; it != end; ++it) {
      const std::string target = (*it)[1], target_folder = target.substr(0, target.find('/'));
      INFO("includes " << target);
      CHECK((allowed.at(folder).count(target) == 1 || allowed.at(folder).count(target_folder) == 1));
      ++checked;
    }
    CHECK(text.find("cuda") == std::string::npos);  // CUDA headers live in kernels/ and a few named files
  }
  CHECK(checked > 100);
}

TEST_CASE("a file fits a sitting, the must-read path fits an afternoon") {
  long must_read = 0;
  for (const fs::path& path : sources("nano")) {
    INFO(path.string());
    CHECK(count_lines(path) <= 400);
    const std::string folder = folder_of(path), name = path.filename().string();
    const bool on_path = folder == "core" || folder == "model" || folder == "engine" || name == "tensor.h" ||
                         name == "backend.h" || name.rfind("ref", 0) == 0;
    if (on_path) must_read += count_lines(path);
  }
  CHECK(must_read <= 4000);
  CHECK(must_read > 1000);
}

// R4: one module = one header, one source. The object defines the header's functions, all and only them.
TEST_CASE("a lesson module's object defines exactly its header's functions") {
  for (const std::string module :
       {"prefix_cache", "block_manager", "chunk_planner", "scheduler", "sampler"}) {
    INFO(module);
    const std::string header = without_comments(read("nano/core/" + module + ".h"));
    std::set<std::string> declared;
    const std::regex declaration("[\\w>&*:] +[&*]?(~?\\w+)\\(([^;{}]*)\\)( const)?;|(?:explicit )(\\w+)\\(");
    for (std::sregex_iterator it(header.begin(), header.end(), declaration), end; it != end; ++it)
      declared.insert((*it)[1].matched ? (*it)[1].str() : (*it)[4].str());
    // Constructors without `explicit`: "  Name(...);" at the start of a line.
    const std::regex constructor("\n  ([A-Z]\\w+)\\(");
    for (std::sregex_iterator it(header.begin(), header.end(), constructor), end; it != end; ++it)
      declared.insert((*it)[1]);
    // "int num_waiting() const, num_running() const;"
    const std::regex second("\\) const, (\\w+)\\(");
    for (std::sregex_iterator it(header.begin(), header.end(), second), end; it != end; ++it)
      declared.insert((*it)[1]);

    std::set<std::string> defined;
    std::istringstream symbols(run("nm -C --defined-only " NANO_BUILD_DIR "/obj/nano/core/" + module + ".o"));
    for (std::string line; std::getline(symbols, line);) {
      const size_t at = line.find(" T nano::");
      if (at == std::string::npos) continue;
      std::string name = line.substr(at + 3, line.find('(') - at - 3);
      name = name.substr(0, name.find("[abi:"));
      defined.insert(name.substr(name.rfind(':') + 1));
    }
    CHECK(defined == declared);
    CHECK(!defined.empty());
  }
}
