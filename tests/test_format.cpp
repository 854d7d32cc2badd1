// base/format: numbers as people write and read them, and names that were mistyped.
#include <string>

#include "base/error.h"   // Error
#include "base/format.h"  // parse_human_int, format_bytes, closest, ceil_div
#include "catch.h"        // Catch2, version 2 or 3

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
      {"10TB", 10'000'000'000'000},
      {"10TiB", int64_t(10) << 40},
      {"2t", 2'000'000'000'000},
      {"2T", int64_t(2) << 40},
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

TEST_CASE("people see three significant digits, whatever the size") {
  for (const auto& [x, text] : {std::pair<double, const char*>{0.0, "0.00"},
                                {1.234, "1.23"},
                                {9.994, "9.99"},
                                {9.996, "10.0"},
                                {12.34, "12.3"},
                                {99.96, "100"},
                                {137.95, "138"},
                                {2048.0, "2048"},
                                {-12.34, "-12.3"}}) {
    CAPTURE(x);
    CHECK(nano::three_digits(x) == text);
  }
  CHECK(nano::format_bytes(0) == "0.00 kB");
  CHECK(nano::format_bytes(999'000) == "999 kB");
  CHECK(nano::format_bytes(3'200'000) == "3.20 MB");
  CHECK(nano::format_bytes(140'000'000'000) == "140 GB (130 GiB)");
  CHECK(nano::format_bytes(int64_t(10) << 40) == "11.0 TB (10.0 TiB)");
  CHECK(nano::format_bytes(int64_t(32) << 30) == "34.4 GB (32.0 GiB)");
}

TEST_CASE("ceil_div rounds up, also where a sum would overflow") {
  CHECK(nano::ceil_div(0, 16) == 0);
  CHECK(nano::ceil_div(1, 16) == 1);
  CHECK(nano::ceil_div(16, 16) == 1);
  CHECK(nano::ceil_div(17, 16) == 2);
  CHECK(nano::ceil_div(INT64_MAX, INT64_MAX) == 1);
  CHECK(nano::ceil_div(INT64_MAX, 2) == INT64_MAX / 2 + 1);
}

TEST_CASE("a mistyped name is known by its neighbour, and a strange one by none") {
  const std::vector<std::string> names = {"tiny",          "tiny-draft", "smollm2",
                                          "--temperature", "--top-p",    "--top-k"};
  CHECK(nano::closest("smolm2", names) == "smollm2");
  CHECK(nano::closest("tny", names) == "tiny");
  CHECK(nano::closest("tiny-drft", names) == "tiny-draft");
  CHECK(nano::closest("--temprature", names) == "--temperature");
  CHECK(nano::closest("--temparatur", names) == "--temperature");
  CHECK(nano::closest("--topk", names) == "--top-k");
  CHECK(nano::closest("tiny", names) == "tiny");
  for (const char* strange : {"", "x", "llama", "--no-such-flag", "/models/some.gguf", "smart", "pony"}) {
    CAPTURE(strange);
    CHECK(nano::closest(strange, names) == "");
  }
  CHECK(nano::closest("tiny", {}) == "");
}
