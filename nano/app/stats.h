// The arithmetic of the benchmarks: percentiles and the latencies of one request, as vLLM defines them. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace nano {

// numpy.percentile with linear interpolation; p in [0, 100]. NaN for no values.
double percentile(std::vector<double> values, double p);
double mean(const std::vector<double>& values);  // NaN for no values

// What a client saw of one request: when it was sent, and each chunk's arrival with the tokens in it.
struct Chunk {
  double time = 0;
  int64_t tokens = 1;
};
struct RequestLatency {
  std::optional<double> ttft;  // time to first token: first chunk − send; none if nothing came
  std::optional<double>
      tpot;  // time per output token: (last − first chunk) / (tokens − 1); none for one token
  std::vector<double> itl;  // inter-token latencies: the gaps between chunks; the TTFT is not one of them
  double e2el = 0;          // end to end: last chunk − send
  int64_t tokens = 0;
};
RequestLatency request_latency(double send, const std::vector<Chunk>& chunks);

}  // namespace nano
