// `bench serve`: requests come over time, as to a server, and each is watched. Here the engine is driven in this
// process, so that what is measured is the engine; the load (serve_load) and the arithmetic (serve_metrics) do not
// care who answers.
#pragma once

#include "bench/measure.h"        // Watch
#include "bench/serve_load.h"     // LoadOptions
#include "bench/serve_metrics.h"  // ServedRequest, ReportOptions

namespace nano {

struct ServeOptions {
  LoadOptions load;
  ReportOptions report;
  int64_t num_warmups = 4;      // requests before the load that do not count
  int64_t max_concurrency = 0;  // 0 = no limit
  double temperature = 0;
  bool ignore_eos = true;
};

struct Served {
  nlohmann::ordered_json result;
  std::vector<ServedRequest> requests;
  std::string advice;  // "" = none
};
Served measure_serve(LLM& llm, const ServeOptions& options, const Watch& watch);

}  // namespace nano
