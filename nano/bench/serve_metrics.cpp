#include "bench/serve_metrics.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/format.h"      // three_digits
#include "bench/stats.h"      // mean, percentile, IdsDigest
#include "llm/output_json.h"  // json_text

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kManyPieces = 0.75, kCostlyStep = 0.2;  // see StepStats::advice

Json ratio(double a, double b) { return b > 0 ? Json(a / b) : Json(); }

double deviation(const std::vector<double>& values) {
  const double middle = mean(values);
  double squares = 0;
  for (double value : values) squares += (value - middle) * (value - middle);
  return std::sqrt(squares / double(values.size()));
}

// mean_ttft_ms, median_ttft_ms, std_ttft_ms, p99_ttft_ms …
void report_metric(Json& json, const std::string& metric, const std::vector<double>& seconds,
                   const std::vector<double>& percentiles) {
  std::vector<double> ms;
  for (double s : seconds) ms.push_back(s * 1000);
  const std::string name = "_" + metric + "_ms";
  const bool any = !ms.empty();
  json["mean" + name] = any ? Json(mean(ms)) : Json();
  json["median" + name] = any ? Json(percentile(ms, 50)) : Json();
  json["std" + name] = any ? Json(deviation(ms)) : Json();
  for (double p : percentiles) json[fmt::format("p{}{}", p, name)] = or_null(percentile_if_enough(ms, p));
}

// What a request does not have can't be too long.
bool is_good(const RequestTimes& times, const std::map<std::string, double>& most_ms) {
  const std::map<std::string, std::optional<double>> measured = {
      {"ttft", times.ttft}, {"tpot", times.tpot}, {"e2el", times.e2el}};
  return times.ttft && std::all_of(most_ms.begin(), most_ms.end(), [&](const auto& slo) {
           return measured.at(slo.first).value_or(0) * 1000 <= slo.second;
         });
}

std::string table_row(const std::string& label, const Json& value, const char* none = "n/a") {
  const std::string number = value.is_number_float() ? three_digits(value) : json_text(value);
  return fmt::format("{:<40} {}\n", label, value.is_null() ? none : number);
}

}  // namespace

RequestTimes times_of(const ServedRequest& request) {
  RequestTimes times;
  const std::vector<Chunk>& chunks = request.chunks;
  if (chunks.empty()) return times;
  times.ttft = chunks.front().time - request.sent;
  times.e2el = chunks.back().time - request.sent;
  for (size_t i = 1; i < chunks.size(); ++i) times.itl.push_back(chunks[i].time - chunks[i - 1].time);
  for (const Chunk& chunk : chunks) times.tokens += chunk.tokens;
  if (times.tokens > 1) times.tpot = (*times.e2el - *times.ttft) / double(times.tokens - 1);
  return times;
}

int64_t max_concurrent(const std::vector<ServedRequest>& requests) {
  std::vector<std::pair<double, int>> changes;  // sorted, an end comes before a start at the same time
  for (const ServedRequest& r : requests)
    if (r.error.empty() && !r.chunks.empty()) {
      changes.emplace_back(r.sent, 1);
      changes.emplace_back(r.chunks.back().time, -1);
    }
  std::sort(changes.begin(), changes.end());
  int64_t now = 0, most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, now += change);
  return most;
}

Json report_requests(const std::vector<ServedRequest>& requests, const ReportOptions& options) {
  std::map<std::string, std::vector<double>> seconds;
  int64_t completed = 0, failed = 0, empty = 0, good = 0, input = 0, output = 0;
  double duration = 0;
  IdsDigest digest;
  for (const ServedRequest& r : requests) {
    digest.add(r.token_ids);
    failed += !r.error.empty();
    empty += r.error.empty() && r.chunks.empty();
    if (!r.error.empty() || r.chunks.empty()) continue;
    const RequestTimes times = times_of(r);
    ++completed;
    good += is_good(times, options.goodput);
    input += r.input_tokens;
    output += times.tokens;
    duration = std::max(duration, r.sent + *times.e2el);
    seconds["ttft"].push_back(*times.ttft);
    if (times.tpot) seconds["tpot"].push_back(*times.tpot);
    seconds["e2el"].push_back(*times.e2el);
    seconds["itl"].insert(seconds["itl"].end(), times.itl.begin(), times.itl.end());
  }
  Json json = {{"duration", duration},
               {"completed", completed},
               {"failed", failed},
               {"empty", empty},
               {"total_input_tokens", input},
               {"total_output_tokens", output},
               {"request_throughput", ratio(double(completed), duration)},
               {"request_goodput", options.goodput.empty() ? Json() : ratio(double(good), duration)},
               {"output_throughput", ratio(double(output), duration)},
               {"total_token_throughput", ratio(double(input + output), duration)},
               {"max_concurrent_requests", max_concurrent(requests)}};
  for (const std::string& metric : options.metrics)
    report_metric(json, metric, seconds[metric], options.percentiles);
  const std::vector<double>& gaps = seconds["itl"];
  json["max_gap_ms"] = gaps.empty() ? Json() : Json(*std::max_element(gaps.begin(), gaps.end()) * 1000);
  json["output_ids_digest"] = digest.text();
  return json;
}

std::string serve_text(const Json& r, const ReportOptions& options) {
  std::string text = fmt::format("{:=^50}\n", " Serving Benchmark Result ");
  auto row = [&](const char* label, const char* key) { text += table_row(label, r.at(key)); };
  row("Successful requests:", "completed");
  row("Failed requests:", "failed");
  if (r.at("empty") != 0) row("Replies without a token (left out):", "empty");
  row("Benchmark duration (s):", "duration");
  row("Total input tokens:", "total_input_tokens");
  row("Total generated tokens:", "total_output_tokens");
  row("Request throughput (req/s):", "request_throughput");
  if (!options.goodput.empty()) row("Request goodput (req/s):", "request_goodput");
  row("Output token throughput (tok/s):", "output_throughput");
  row("Total token throughput (tok/s):", "total_token_throughput");
  row("Peak concurrent requests:", "max_concurrent_requests");
  row("Most running at once:", "max_num_running");
  row("Preemptions:", "num_preemptions");
  row("Mean tokens per step:", "mean_tokens_per_step");
  row("Longest gap between tokens (ms):", "max_gap_ms");
  auto share = [&](const char* label, const char* key) {
    text += table_row(label, r.at(key).is_null() ? Json() : Json(100 * r.at(key).get<double>()));
  };
  share("KV cache blocks in use, peak (%):", "peak_kv_usage");
  share("Slots in use of blocks held, mean (%):", "mean_kv_utilization");
  const std::map<std::string, const char*> titles = {{"ttft", "Time to First Token"},
                                                     {"tpot", "Time per Output Token (excl. 1st token)"},
                                                     {"itl", "Inter-token Latency"},
                                                     {"e2el", "End-to-end Latency"}};
  for (const std::string& metric : options.metrics) {
    std::string name = metric, key = "_" + metric + "_ms";
    std::transform(name.begin(), name.end(), name.begin(), [](char c) { return char(std::toupper(c)); });
    text += fmt::format("{:-^50}\n", titles.at(metric));
    text += table_row("Mean " + name + " (ms):", r.at("mean" + key));
    text += table_row("Median " + name + " (ms):", r.at("median" + key));
    for (double p : options.percentiles)
      if (p != 50)  // the median
        text += table_row(fmt::format("P{} {} (ms):", p, name), r.at(fmt::format("p{}{}", p, key)),
                          "n too small");
  }
  return text + std::string(50, '=') + "\n";
}

void StepStats::add(const StepPlan& plan, const StepResult& result) {
  ++steps_;
  tokens_ += plan.num_tokens;
  preemptions_ += int64_t(plan.preempted.size());
  max_running_ = std::max<int64_t>(max_running_, plan.num_running);
  min_free_blocks_ = std::min<int64_t>(min_free_blocks_, plan.num_free_blocks);
  count_slots(plan);

  const double seconds = result.schedule_seconds + result.forward_seconds + result.sample_seconds;
  shortest_seconds_ = std::min(shortest_seconds_, seconds);
  int64_t cut = 0;
  for (const ScheduledSeq& seq : plan.seqs) {
    if (seq.discard || (seq.samples && seq.num_tokens() == 1)) continue;  // decoding
    ++pieces_;
    piece_tokens_ += seq.num_tokens();
    cut += !seq.samples && plan.num_tokens == budget_;
  }
  if (cut == 0) return;
  cut_pieces_ += cut;
  ++cut_steps_;
  cut_seconds_ += seconds;
}

// Blocks with two owners count once; they are full.
void StepStats::count_slots(const StepPlan& plan) {
  for (const ScheduledSeq& seq : plan.seqs) {
    const int64_t tokens = seq.discard ? 0 : seq.first_pos + seq.num_tokens();
    for (size_t b = 0; b < seq.block_table.size(); ++b) {
      int64_t& counted = counted_in_step_[size_t(seq.block_table[b])];
      if (counted == steps_) continue;
      counted = steps_;
      reserved_slots_ += block_size_;
      held_slots_ += std::clamp<int64_t>(tokens - int64_t(b) * block_size_, 0, block_size_);
    }
  }
}

Json StepStats::report() const {
  const double used = double(num_blocks_ - std::min<int64_t>(min_free_blocks_, num_blocks_));
  return {{"peak_kv_usage", used / double(num_blocks_)},
          {"mean_kv_utilization", ratio(double(held_slots_), double(reserved_slots_))},
          {"max_num_running", max_running_},
          {"num_preemptions", preemptions_},
          {"num_steps", steps_},
          {"mean_tokens_per_step", ratio(double(tokens_), double(steps_))},
          {"mean_prefill_chunk", ratio(double(piece_tokens_), double(pieces_))}};
}

std::string StepStats::advice() const {
  if (cut_pieces_ == 0 || double(cut_pieces_) < kManyPieces * double(pieces_)) return "";
  const double share = shortest_seconds_ / (cut_seconds_ / double(cut_steps_));
  if (share < kCostlyStep) return "";
  return fmt::format(
      "advice: --max-num-batched-tokens {} cut the prompts into pieces of {:.0f} tokens, and {:.0f} % of the "
      "time of such a step is what the shortest step takes: a larger budget raises the throughput (and the "
      "gaps between tokens)",
      budget_, double(piece_tokens_) / double(pieces_), 100 * std::min(share, 1.0));
}

}  // namespace nano
