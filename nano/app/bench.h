// `nano bench latency|throughput`: vLLM's two offline benchmarks, with its options and result keys.
#pragma once

#include "app/cli.h"  // Args

namespace nano {

int bench_command(const Args& args);

}  // namespace nano
