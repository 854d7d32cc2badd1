// The clock of every duration in nano: it never goes back, and where it begins means nothing.
#pragma once

#include <chrono>

namespace nano {

inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace nano
