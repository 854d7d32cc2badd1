#include "catch.h"

#include <iterator>
#include <random>

#include "base/error.h"         // Error
#include "data.h"               // contains
#include "text/pretokenizer.h"  // Normalizer, Pretokenizer, Regex

using namespace nano;

namespace {

using Pieces = std::vector<std::string>;

Pieces by_name(const std::string& name, const std::string& text) {
  return rule_by_name(name).pretokenizer.split(text);
}

Pieces split(const std::string& text, SplitBehavior behavior) {
  Pretokenizer p;
  p.add_split(Regex("-"), behavior);
  return p.split(text);
}

}  // namespace

TEST_CASE("T3 each rule cuts digits its own way, and an unknown rule is refused") {
  CHECK(by_name("llama-bpe", "12345") == Pieces{"123", "45"});
  CHECK(by_name("qwen2", "12345") == Pieces{"1", "2", "3", "4", "5"});
  CHECK(by_name("smollm", " 123") == Pieces{" ", "1", "2", "3"});
  CHECK(by_name("gpt-2", "x 12345") == Pieces{"x", " 12345"});
  CHECK(by_name("llama-bpe", "٠١٢٣½") == Pieces{"٠١٢", "٣½"});  // \p{N} beyond ASCII
  CHECK(by_name("smollm", "²x") == Pieces{"²", "x"});
  CHECK_THROWS_AS(rule_by_name("gpt2"), Error);
  CHECK_THROWS_AS(rule_by_name(""), Error);
}

TEST_CASE("contractions, line ends and trailing spaces") {
  CHECK(by_name("llama-bpe", "DON'T") == Pieces{"DON", "'T"});
  CHECK(by_name("gpt-2", "DON'T don't") == Pieces{"DON", "'", "T", " don", "'t"});
  CHECK(by_name("llama-bpe", "a.\r\n\r\nb") == Pieces{"a", ".\r\n\r\n", "b"});
  CHECK(by_name("gpt-2", "a   b  ") == Pieces{"a", "  ", " b", "  "});
  CHECK(by_name("qwen2", "  \n x") == Pieces{"  \n", " x"});
}

TEST_CASE("white space is Unicode's: U+0085 is, U+180E is not") {
  CHECK(by_name("gpt-2", "\u180e!") == Pieces{"\u180e!"});
  CHECK(by_name("gpt-2", "\u0085!") == Pieces{"\u0085", "!"});
}

TEST_CASE("the five behaviours of Split") {
  using B = SplitBehavior;
  CHECK(split("a--b-", B::isolated) == Pieces{"a", "-", "-", "b", "-"});
  CHECK(split("a--b-", B::removed) == Pieces{"a", "b"});
  CHECK(split("a--b-", B::merged_with_previous) == Pieces{"a-", "-", "b-"});
  CHECK(split("a--b-", B::merged_with_next) == Pieces{"a", "-", "-b", "-"});
  CHECK(split("a--b-", B::contiguous) == Pieces{"a", "--", "b", "-"});
  CHECK(split("", B::isolated) == Pieces{});
}

TEST_CASE("the leading space of ByteLevel") {
  Pretokenizer byte_level;
  byte_level.add_space_mark(" ", Pretokenizer::Prefix::always);
  CHECK(byte_level.split("a") == Pieces{" a"});
  CHECK(byte_level.split(" a") == Pieces{" a"});
  CHECK(byte_level.split("") == Pieces{});
}

TEST_CASE("a pattern that matches nothing, or nothing but empty text, ends") {
  Pretokenizer p;
  p.add_split(Regex("x*"));
  CHECK(p.split("éxxa") == Pieces{"é", "xx", "a"});
  Pretokenizer look;
  look.add_split(Regex("(?=a)"));
  CHECK(look.split("bab") == Pieces{"b", "ab"});
}

TEST_CASE("a pattern that would take for ever is an error, and so is one that does not compile") {
  Pretokenizer p;
  p.add_split(Regex("(a|aa|aaa)+$"));
  CHECK_THROWS_AS(p.split(std::string(200, 'a') + "b"), Error);
  const auto fails = [](const char* pattern, const std::string& text) {
    Pretokenizer one;
    one.add_split(Regex(pattern));
    return error_of([&] { one.split(text); });
  };
  // PCRE2's own limit is for one place where a match may begin: these try each of many, and fail soon at none.
  for (const auto& [pattern, unit] :
       {std::pair("\\s+$", " "), {"\\s++$", " "}, {"\\d+[a-y]", "1"}, {"(?:ab)*[cd]", "ab"}}) {
    std::string text;
    while (text.size() < 20'000) text += unit;
    INFO(pattern);
    CHECK(nano_test::contains(fails(pattern, text + "z"),
                              "failed at byte 0: match limit exceeded (send the text in smaller"));
    CHECK(fails(pattern, text.substr(0, 50) + "z") == "");
  }
  Pretokenizer two;  // short pieces have no budget of their own
  two.add_split(Regex("-", true), SplitBehavior::removed);
  two.add_split(Regex("(a|aa|aaa)+$"));
  std::string pieces;
  for (int i = 0; i < 1000; ++i) pieces += "aaaaaaaab-";
  CHECK(two.split(pieces.substr(0, 9)) == Pieces{"aaaaaaaab"});
  CHECK_THROWS_AS(two.split(pieces), Error);
  CHECK_THROWS_AS(Regex("(unclosed"), Error);
  CHECK_THROWS_AS(Regex(std::string(100'000, 'a')), Error);
  CHECK_THROWS_AS(Regex("a\\Cb"), Error);  // would cut characters
}

TEST_CASE("every rule takes linear time, whatever runs a text has") {
  for (const char* name : {"llama-bpe", "qwen2", "seed-coder", "tekken", "gpt-2", "smollm", "falcon",
                           "default", "deepseek-llm", "deepseek-coder", "deepseek-v3", "bloom", "viking"})
    for (const std::string unit :
         {" ", "\n", "\t", "\u3000", "a", "A", "1", ".", "'", "é", "漢", "\u0301", " \n", "1 "})
      for (const char* end : {"x", "1", "!", "漢"}) {
        std::string text;
        while (text.size() < 5000) text += unit;
        CAPTURE(name, unit, end);
        CHECK(error_of([&] { by_name(name, text + end); }) == "");
      }
}

TEST_CASE("what deepseek-llm's rule has for \\s+$ finds the same") {
  const char* const units[] = {" ",      "  ",     "\t",     "\n", "\r\n",   "\u3000",
                               "\u00a0", "\u0085", "\u180e", "a",  "\u0301", "漢"};
  std::mt19937 random(5);
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (size_t n = random() % 9; n > 0; --n) text += units[random() % std::size(units)];
    Pretokenizer plain, linear;
    plain.add_split(Regex("\\s+$"));
    linear.add_split(Regex("(?<!\\s)\\s++$"));
    CAPTURE(text);
    CHECK(linear.split(text) == plain.split(text));
  }
}

TEST_CASE("NFC composes, and refuses absurd runs of marks") {
  Normalizer n;
  n.add_nfc();
  CHECK(n.normalize("e\u0301") == "\u00e9");
  CHECK(n.normalize("a\u0323\u0302") == "\u1ead");
  CHECK(n.normalize("a\u0302\u0323") == "\u1ead");  // marks in the other order
  CHECK(n.normalize("\u1112\u1161\u11ab") == "한");
  CHECK(n.normalize(std::string("a\0b", 3)) == std::string("a\0b", 3));
  CHECK(n.normalize("") == "");
  std::string marks;
  for (int i = 0; i < 2000; ++i) marks += i % 2 ? "\u0301" : "\u0323";
  CHECK_THROWS_AS(n.normalize("a" + marks), Error);
}

TEST_CASE("replacing and prepending") {
  Normalizer n;
  n.add_prepend("▁");
  n.add_replace(" ", "▁");
  CHECK(n.normalize("a b") == "▁a▁b");
  CHECK(n.normalize("") == "");
  Normalizer dots;
  dots.add_replace(".", "\\1");
  CHECK(dots.normalize("a.b") == "a\\1b");  // neither side is a pattern
  Pretokenizer literal;
  literal.add_split(Regex(".\\s", true));
  CHECK(literal.split("a .\\sb") == Pieces{"a ", ".\\s", "b"});
}
