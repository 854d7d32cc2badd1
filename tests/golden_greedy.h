// Greedy answers against golden ones, every step of them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <nlohmann/json.hpp>

#include "catch.h"

namespace nano_test {

// Where the golden answer's two best tokens are nearer to each other than 0.01 another device may choose the other
// one: such a step is not compared, and the rest is generated again behind the golden token. Returns how many steps
// were compared. generate(prompt, n): n greedy tokens, whatever they are.
inline int check_greedy(
    std::vector<int32_t> prompt, const nlohmann::json& want, const nlohmann::json& margin,
    const std::function<std::vector<int32_t>(const std::vector<int32_t>& prompt, int32_t n)>& generate) {
  REQUIRE(margin.size() == want.size());
  int compared = 0;
  for (size_t step = 0; step < want.size();) {
    const size_t begin = step;
    const std::vector<int32_t> got = generate(prompt, int32_t(want.size() - begin));
    REQUIRE(got.size() == want.size() - begin);
    for (bool tie = false; step < want.size() && !tie; ++step) {
      INFO("step " << step);
      prompt.push_back(want[step].get<int32_t>());
      tie = !(margin[step].get<double>() >= 0.01);
      if (tie) continue;
      REQUIRE(got[step - begin] == prompt.back());
      ++compared;
    }
  }
  return compared;
}

}  // namespace nano_test
