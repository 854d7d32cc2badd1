// Levels of instructions: which there are, and that none of a higher one is reachable from a lower one.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "backend/backend.h"  // make_cpu_backend, cpu_isas
#include "catch.h"
#include "data.h"        // read_text
#include "subprocess.h"  // run_nano, tiny

using namespace nano_test;

namespace {

std::string output_of(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, n);
  REQUIRE(pclose(pipe) == 0);
  return text;
}

}  // namespace

TEST_CASE("levels of instructions: plain is everywhere, each can be asked for by name and says so") {
  const std::vector<std::string> isas = nano::cpu_isas();
  REQUIRE(!isas.empty());
  CHECK(isas.front() == "plain");
  auto describe = [](const std::string& isa) {
    return nano::make_cpu_backend(nano::ActivationDtype::int8, 1, false, isa)->describe();
  };
  CHECK(describe("auto") == describe(isas.back()));
  std::vector<std::string> all;
  for (const std::string& isa : isas) all.push_back(describe(isa));
  std::sort(all.begin(), all.end());
  CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
  CHECK(describe("plain") == "cpu: 1 thread, plain C++, int8 activations");
}

TEST_CASE("levels of instructions: one that the machine lacks is refused with what is missing") {
  const std::vector<std::string> isas = nano::cpu_isas();
  for (const char* isa : {"plain", "avx2", "avxvnni", "avx512", "amx", "neon"}) {
    const std::string message =
        error_of([&] { nano::make_cpu_backend(nano::ActivationDtype::int8, 1, false, isa); });
    CAPTURE(isa, message);
    if (std::find(isas.begin(), isas.end(), isa) != isas.end()) {
      CHECK(message.empty());
    } else {
      CHECK(message.find("--cpu-isa") == 0);
      CHECK((message.find("has no ") != message.npos || message.find("is no level of this") != message.npos));
    }
  }
  const auto wrong = run_nano({"run", tiny(), "x", "--cpu-isa", "sse"});
  CHECK(wrong.exit_code == 2);
  CHECK(wrong.err.find("--cpu-isa") != std::string::npos);
}

// Inline functions and templates are in each object that uses them, and the linker takes one for all. Were it one that
// was compiled with AVX-512, a machine without it would die of it.
TEST_CASE("levels of instructions: nothing of a level can be linked to but its entry") {
  const std::string folder = std::string(NANO_BUILD_DIR) + "/isa/";
  int levels = 0;
  for (const char* isa : {"plain", "avx2", "avxvnni", "avx512", "neon"}) {
    const std::string object = folder + isa + ".o";
    if (std::FILE* file = std::fopen(object.c_str(), "rb"))
      std::fclose(file);
    else
      continue;
    ++levels;
    const std::string symbols = output_of("nm -C --defined-only --extern-only " + object);
    CAPTURE(isa, symbols);
    CHECK(std::count(symbols.begin(), symbols.end(), '\n') == 1);
    CHECK(symbols.find(" T nano::" + std::string(isa) + "::make_backend(") != symbols.npos);
  }
  CHECK(levels >= 2);
}
