// What the command lines of the benchmarks share. They parse, call bench/ and print.
#pragma once

#include <utility>

#include "app/cli.h"        // Args, ArgParser
#include "app/start.h"      // start_llm, close_trace, write_results
#include "bench/measure.h"  // Watch

namespace nano {

constexpr int64_t kMost = 1'000'000;  // of anything

// Before the first run of `bench compare`: an Error for what the command would refuse without loading weights.
EngineOptions check_bench_latency(const Args& args);
EngineOptions check_bench_throughput(const Args& args);
EngineOptions check_bench_serve(const Args& args);
Resolved resolve_only(const EngineOptions& options);  // what the engine would run with

// A bar, and Ctrl-C. They outlive what is returned.
Watch watch(ProgressBar& bar, Interrupt& interrupt);

// "512:16,64:256". Error naming `where`.
std::vector<std::pair<int64_t, int64_t>> parse_mix(const std::string& text, const std::string& where);

}  // namespace nano
