// The arithmetic of the benchmarks. Pure.
#pragma once

#include <vector>

namespace nano {

// numpy.percentile with linear interpolation; p in [0, 100]. NaN for no values.
double percentile(std::vector<double> values, double p);
double mean(const std::vector<double>& values);  // NaN for no values

}  // namespace nano
