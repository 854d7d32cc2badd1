#include "model/model_config.h"

#include <cmath>

#include "base/error.h"  // NANO_CHECK

namespace nano {

namespace {

// Llama 3.1: long wavelengths are slowed down by `factor`, short ones kept, those between are blended.
float llama3_scaled(float frequency, const RopeConfig& rope) {
  const double wavelength = 2 * M_PI / frequency;
  const double low = rope.original_max_position / rope.low_freq_factor;
  const double high = rope.original_max_position / rope.high_freq_factor;
  if (wavelength < high) return frequency;
  if (wavelength > low) return float(frequency / rope.factor);
  const double smooth = (rope.original_max_position / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return float((1 - smooth) * frequency / rope.factor + smooth * frequency);
}

}  // namespace

std::vector<float> rope_inv_freq(const RopeConfig& rope, int32_t head_dim) {
  const int32_t pairs = head_dim / 2;
  NANO_CHECK(rope.freq_divisors.empty() || int32_t(rope.freq_divisors.size()) == pairs, "rope divisors");
  std::vector<float> inv_freq(size_t(pairs), 0.0f);
  for (int32_t i = 0; i < pairs; ++i) {
    float frequency = 1.0f / std::pow(float(rope.theta), float(2 * i) / float(head_dim));
    if (!rope.freq_divisors.empty()) {
      frequency /= rope.freq_divisors[size_t(i)];
      frequency = float(frequency / rope.factor);
    } else if (rope.llama3) {
      frequency = llama3_scaled(frequency, rope);
    } else {
      frequency = float(frequency / rope.factor);
    }
    inv_freq[size_t(i)] = frequency;
  }
  return inv_freq;
}

}  // namespace nano
