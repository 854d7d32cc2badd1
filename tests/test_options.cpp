// llm/options: human integers, and the table that all command lines are made from.
#include <set>
#include <string>

#include "base/error.h"    // Error
#include "base/format.h"   // parse_human_int
#include "llm/options.h"   // EngineOptions, engine_flags
#include "catch.h"         // Catch2, version 2 or 3

using nano::parse_human_int;

TEST_CASE("human integers mean what vLLM means by them") {
  const std::pair<const char*, int64_t> cases[] = {
      {"0", 0},
      {"-1", -1},
      {"4096", 4096},
      {"1k", 1000},
      {"1K", 1024},
      {"25.6k", 25600},
      {"4.35k", 4350},
      {"2m", 2'000'000},
      {"2M", 2 << 20},
      {"1g", 1'000'000'000},
      {"1G", 1 << 30},
      {"70e9", 70'000'000'000},
      {"80GB", 80'000'000'000},
      {"80GiB", int64_t(80) << 30},
      {"5B", 5},
      {"64kB", 64'000},
      {"64KB", 64'000},
      {"64KiB", 65'536},
      {"+3", 3},
      {"9007199254740993", 9007199254740993},  // not a double
      {"9223372036854775807", INT64_MAX},
  };
  for (const auto& [text, value] : cases) {
    CAPTURE(text);
    CHECK(parse_human_int(text, "x") == value);
  }
}

TEST_CASE("what is no whole number is refused, with the flag's name") {
  for (const char* text : {"",    " ",  "5 ",   " 5",  "abc",     "1.5",  "1kk",  "1x",
                           "1iB", "k",  "B",    "nan", "inf",     "0x10", "1e30", "9223372036854775808",
                           "1,2", "--", "1kBB", "1KI", "1.0001k", "5\n",  "五"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_human_int(text, "--block-size"), nano::Error);
  }
  try {
    parse_human_int("many", "--block-size");
    CHECK(false);
  } catch (const nano::Error& e) {
    CHECK(e.where == "--block-size");
    CHECK(std::string(e.what()).find("many") != std::string::npos);
  }
}

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
