// JSON from files and requests that nobody vouches for: nlohmann's parser behind a depth limit, because it
// recurses (a megabyte of "[" would end the process), and with errors that say where. What a field means, and whether
// it is there, is the caller's business.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace nano {

constexpr int kMaxJsonDepth = 100;
constexpr int kMaxJsonKeys =
    4000;  // of one object that keeps their order: it looks through all for each new one

// Error "WHERE: invalid JSON at line L, column C: …": bad syntax, text or a NUL byte after the value, invalid
// UTF-8, or more than kMaxJsonDepth nested arrays and objects. `where` names the file or request.
nlohmann::json parse_json(std::string_view text, const std::string& where);
// The same, keeping the order of keys. Error: also more than kMaxJsonKeys in one object.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where);

}  // namespace nano
