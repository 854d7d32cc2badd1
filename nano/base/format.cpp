#include "base/format.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"  // Error

namespace nano {

namespace {

// "" and B = 1; k m g t = 1000s and K M G T = 1024s; with B for bytes kB and KB alike = 1000s, KiB = 1024s.
// NaN: unknown.
double unit_factor(const std::string& unit) {
  if (unit.empty() || unit == "B") return 1;
  const bool bytes = unit.back() == 'B', binary = unit.size() == 3 && unit[1] == 'i' && bytes;
  const char letter = char(std::tolower(static_cast<unsigned char>(unit[0])));
  const size_t power = std::string("kmgt").find(letter);
  if (power == std::string::npos || unit.size() != (binary ? 3u : bytes ? 2u : 1u)) return NAN;
  const bool upper_count = !bytes && unit[0] != letter;
  return std::pow(binary || upper_count ? 1024.0 : 1000.0, double(power) + 1);
}

}  // namespace

std::string three_digits(double x) {
  const double a = std::abs(x);
  if (a > 0 && a < 0.9995) return fmt::format("{:.3g}", x);
  return fmt::format("{:.{}f}", x, a < 9.995 ? 2 : a < 99.95 ? 1 : 0);
}

std::string format_bytes(int64_t bytes) {
  constexpr double kTiB = 1024.0 * 1024 * 1024 * 1024;
  const double b = double(bytes);
  if (std::abs(b) < 1e6) return three_digits(b / 1e3) + " kB";
  if (std::abs(b) < 1e9) return three_digits(b / 1e6) + " MB";
  if (std::abs(b) >= 1e12)
    return fmt::format("{} TB ({} TiB)", three_digits(b / 1e12), three_digits(b / kTiB));
  return three_digits(b / 1e9) + " GB (" + three_digits(b / double(1 << 30)) + " GiB)";
}

int64_t parse_human_int(const std::string& text, const std::string& where) {
  const Error bad("'" + text + "' is not a whole number", where,
                  "examples: 4096, 1k = 1000, 1K = 1024, 80GB, 80GiB, 1TB");
  const char* begin = text.data();
  const char* end = begin + text.size();
  int64_t exact = 0;  // a double would lose the last digits of a long seed
  if (auto [rest, error] = std::from_chars(begin, end, exact); rest == end && error == std::errc())
    return exact;

  if (text.find_first_not_of("+-.0123456789eEkKmMgGtTiB") != std::string::npos)
    throw bad;  // no inf, no hex, no space
  char* unit_begin = nullptr;
  const double number = std::strtod(text.c_str(), &unit_begin);
  if (unit_begin == text.c_str()) throw bad;
  const double value = number * unit_factor(unit_begin);
  const double whole = std::nearbyint(value);  // 4.35k is 4349.999… in binary
  if (!(std::fabs(value) < 9.0e18) || std::fabs(value - whole) > 4e-16 * std::fabs(value)) throw bad;
  return int64_t(whole);
}

std::vector<std::string> split_commas(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return parts;
}

double parse_real(const std::string& text, const std::string& where) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size() || !std::isfinite(value))
    throw Error("'" + text + "' is not a number", where);
  return value;
}

int32_t parse_id(const std::string& text, const std::string& where) {
  int32_t id = -1;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, id);
  if (rest != end || error == std::errc::invalid_argument)
    throw Error("'" + text + "' is not a plain whole number", where, "digits only: 0, 1, 2, …");
  if (error != std::errc() || id < 0) throw Error(text + " is out of range", where);
  return id;
}

std::vector<int32_t> parse_id_list(const std::string& text, const std::string& where) {
  std::vector<int32_t> ids;
  for (const std::string& id : split_commas(text)) ids.push_back(parse_id(id, where));
  return ids;
}

std::string closest(const std::string& word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = 1 + std::min<size_t>(3, word.size() / 3);
  for (const std::string& candidate : candidates) {
    // Levenshtein's: row[j] letters to change between the first i of `word` and the first j of the candidate.
    std::vector<size_t> row(candidate.size() + 1);
    std::iota(row.begin(), row.end(), size_t(0));
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = std::exchange(row[0], i);
      for (size_t j = 1; j < row.size(); ++j) {
        const size_t changed = diagonal + (word[i - 1] != candidate[j - 1]);
        diagonal = std::exchange(row[j], std::min({changed, row[j] + 1, row[j - 1] + 1}));
      }
    }
    if (row.back() < best_distance) best = candidate, best_distance = row.back();
  }
  return best;
}

}  // namespace nano
