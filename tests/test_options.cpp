// llm/options: the table that all command lines are made from.
#include <set>
#include <string>

#include "base/error.h"   // Error
#include "llm/options.h"  // EngineOptions, engine_flags
#include "catch.h"        // Catch2, version 2 or 3

TEST_CASE("the table of flags has each name once, and help for each") {
  std::set<std::string> names;
  for (const nano::Flag& flag : nano::engine_flags()) {
    CAPTURE(flag.name);
    CHECK(names.insert(flag.name).second);
    CHECK(!std::string(flag.help).empty());
    CHECK(!std::string(flag.group).empty());
    CHECK(std::string(flag.name).rfind("no-", 0) != 0);  // the twin would be --no-no-
  }
}

TEST_CASE("choices are one of the list, not a piece of it") {
  nano::check_choice("b", "a|b|c", "--x");
  nano::check_choice("anything", "", "--x");
  for (const char* value : {"", "a|b", "|", "d", "A"}) {
    CAPTURE(value);
    CHECK_THROWS_AS(nano::check_choice(value, "a|b|c", "--x"), nano::Error);
  }
  nano::EngineOptions options;
  nano::check_choices(options);
  options.scheduling = "best";
  CHECK_THROWS_AS(nano::check_choices(options), nano::Error);
}

TEST_CASE("options_json writes each flag under its name, and leaves out what was not given") {
  nano::EngineOptions options;
  options.model = "a \"b\" \xff";
  options.block_size = 7;
  const std::string json = nano::options_json(options);
  CHECK(json.find("\"block-size\":7") != std::string::npos);
  CHECK(json.find("\"scheduling\":\"continuous\"") != std::string::npos);
  CHECK(json.find("\"enable-prefix-caching\":true") != std::string::npos);
  CHECK(json.find("max-num-seqs") == std::string::npos);
  CHECK(json.find('\xff') == std::string::npos);
}
