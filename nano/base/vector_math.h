// What the sampler asks of a row of floats: fast, and the same bits on every machine, whatever vectors a compiler makes
// of a loop. A sum is made of doubles in a fixed order.
#pragma once

#include <cstddef>
#include <span>

namespace nano {

float max_of(std::span<const float> x);                  // NaN if any is NaN; -infinity if there is none
size_t index_of(std::span<const float> x, float value);  // the first that equals it; x.size(): none
double sum_of(std::span<const float> x);
float kth_largest(std::span<const float> x, size_t k);         // REQUIRES 1 <= k <= x.size(), no NaN
void exp_relative(std::span<float> x, float to, float scale);  // x = e^((x - to) * scale)
// The first i with x[0] + ... + x[i] > share * (the sum of all): the distribution function, inverted. x.size() where
// rounding leaves none. REQUIRES x >= 0, 0 <= share < 1.
size_t index_at_share(std::span<const float> x, double share);

}  // namespace nano
