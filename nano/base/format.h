// Numbers as people write and read them: 25.6k, 80GB, "1,2,3"; 3.20 MB. A mistyped name. The division that rounds up.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nano {

// Of positive numbers.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// For people: "3.20", "32.0", "320", "3200"; "140 GB (130 GiB)", "3.20 MB". For programs, print all digits.
std::string three_digits(double x);
std::string format_bytes(int64_t bytes);

// "4096", "1k" = 1000, "1K" = 1024, "25.6k", also m M g G t T; with a B for bytes: "80GB" = 80e9,
// "80GiB" = 80 · 2^30. Error naming `where` for anything else; so do the others.
int64_t parse_human_int(const std::string& text, const std::string& where);
double parse_real(const std::string& text, const std::string& where);
// Token ids and the like: "5", and "1,2,3". Digits only: 1k is a number, not an id.
int32_t parse_id(const std::string& text, const std::string& where);
std::vector<int32_t> parse_id_list(const std::string& text, const std::string& where);
// "a,b" at its commas; "" is one empty part.
std::vector<std::string> split_commas(const std::string& text);
// "smollm2", if `word` is "smolm2": the candidate that was probably meant; "" if none is near.
std::string closest(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace nano
