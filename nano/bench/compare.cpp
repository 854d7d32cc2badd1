#include "bench/compare.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/format.h"  // three_digits
#include "bench/stats.h"  // percentile

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kLossless =
    " block-size device-memory enable-chunked-prefill enable-prefix-caching gpu-memory-utilization kv-cache"
    " kv-cache-memory-bytes long-prefill-token-threshold max-logprobs max-num-batched-tokens max-num-seqs"
    " num-gpu-blocks-override paged-kv scheduling scheduling-policy stats threads trace warmup ";

// The first that is a part of the metric's name decides.
const struct {
  const char* part;
  Better better;
} kDirections[] = {
    {"per_second", Better::more},  {"throughput", Better::more}, {"goodput", Better::more},
    {"hit_rate", Better::more},    {"_ms", Better::less},        {"latency", Better::less},
    {"percentiles", Better::less}, {"time", Better::less},       {"duration", Better::less},
    {"bytes", Better::less},       {"preempt", Better::less},
};

// The place of the best, and of the worst.
std::pair<size_t, size_t> best_and_worst(Better better, const std::vector<double>& medians) {
  const auto [low, high] = std::minmax_element(medians.begin(), medians.end());
  const auto least = size_t(low - medians.begin()), most = size_t(high - medians.begin());
  return better == Better::less ? std::pair(least, most) : std::pair(most, least);
}

// A share in percent. Of 0 there is none: infinite or NaN.
std::string percent(double share) {
  return std::isfinite(share) ? fmt::format("{:.1f} %", 100 * share) : "more than any % of 0";
}

std::string bar_of(double share) {
  std::string bar = "  ";
  for (int i = 0; i < 30 && i + 0.5 < 30 * share; ++i) bar += "█";
  return bar;
}

}  // namespace

std::string flag_name(const std::string& arg) {
  if (arg.rfind("--", 0) != 0) return "";
  std::string name = arg.substr(2, arg.find('=') - 2);
  std::replace(name.begin(), name.end(), '_', '-');
  return name.rfind("no-", 0) == 0 ? name.substr(3) : name;
}

std::string flag_argument(const std::string& flag, const std::string& value) {
  if (value == "on") return "--" + flag;
  if (value == "off") return "--no-" + flag;
  return "--" + flag + "=" + value;
}

bool is_lossless(const std::string& flag) {
  return std::string(kLossless).find(" " + flag + " ") != std::string::npos;
}

Better better_of(const std::string& metric) {
  for (const auto& [part, better] : kDirections)
    if (metric.find(part) != std::string::npos) return better;
  return Better::unknown;
}

std::string to_string(Better better) {
  return better == Better::more   ? "more is better"
         : better == Better::less ? "less is better"
                                  : "neither more nor less is known to be better";
}

size_t same_runs(size_t runs) { return std::max<size_t>(2, runs); }

std::vector<size_t> run_order(size_t settings, size_t runs) {
  std::vector<size_t> order(1 + same_runs(runs), 0);
  for (size_t round = 0; round < runs; ++round)
    for (size_t i = 0; i < settings; ++i) order.push_back(round % 2 == 0 ? i : settings - 1 - i);
  return order;
}

std::optional<std::pair<size_t, size_t>> different_ids(const std::vector<size_t>& groups,
                                                       const std::vector<std::string>& digests) {
  for (size_t later = 0; later < digests.size(); ++later)
    for (size_t earlier = 0; earlier < later; ++earlier)
      if (groups[earlier] == groups[later] && digests[earlier] != digests[later])
        return std::pair(earlier, later);
  return std::nullopt;
}

double median(const std::vector<double>& values) { return percentile(values, 50); }

std::vector<double> Measured::medians() const {
  std::vector<double> list;
  for (const auto& values : settings) list.push_back(median(values));
  return list;
}

double noise_floor(const Measured& m) {
  const double range = percentile(m.same, 100) - percentile(m.same, 0);
  return range == 0 ? 0 : range / std::fabs(median(m.same));
}

double gain(Better better, double from, double to) {
  if (from == to) return 1;  // also of 0
  return better == Better::less ? from / to : to / from;
}

bool differ(const Measured& m, size_t one, size_t other) {
  if (std::min(m.settings[one].size(), m.settings[other].size()) < kFewestRuns) return false;
  const auto [low, high] = std::minmax({median(m.settings[one]), median(m.settings[other])});
  const double noise = noise_floor(m);
  if (std::isinf(noise) || high <= low * (1 + noise)) return false;  // infinite: A A scatter around 0
  double more = 0, less = 0;
  for (const double a : m.settings[one])
    for (const double b : m.settings[other]) (a > b ? more : less) += a != b;
  return std::max(more, less) >= kAgree * double(m.settings[one].size() * m.settings[other].size());
}

std::string verdict(const Measured& m, const std::vector<std::string>& names) {
  const std::vector<double> medians = m.medians();
  const auto [best, worst] = best_and_worst(m.better(), medians);
  const double factor = gain(m.better(), medians[worst], medians[best]);
  if (const size_t runs = m.settings[best].size(); runs < kFewestRuns)
    return fmt::format("{} cannot tell a difference from noise; give --runs 5",
                       runs == 1 ? "one run of each setting" : fmt::format("{} runs of each setting", runs));
  if (!differ(m, best, worst)) {
    const auto [low, high] = std::minmax(medians[best], medians[worst]);
    const double apart = high > low ? high / low - 1 : 0, noise = noise_floor(m);
    return apart > noise ? fmt::format(
                               "undecided: the medians are {} apart, but single runs do not "
                               "agree on which is more; more --runs may tell",
                               percent(apart))
                         : fmt::format(
                               "no difference seen: the medians are {} apart, and runs of one "
                               "setting {}",
                               percent(apart), percent(noise));
  }
  if (names.size() == 2) {
    const bool less = m.better() == Better::less;
    if (medians[best] == 0 || medians[worst] == 0)
      return fmt::format("{} has {}, {} has {} ({})", names[best], three_digits(medians[best]), names[worst],
                         three_digits(medians[worst]), to_string(m.better()));
    const std::string times = less ? fmt::format("1/{:.2f} of", factor) : fmt::format("{:.2f}x", factor);
    return fmt::format("{} is {} {} ({})", names[best], times, names[worst], to_string(m.better()));
  }
  const std::optional<size_t> at = knee(m);
  if (!at) return "no knee: " + to_string(m.better());
  const std::string within =
      fmt::format("within {} of the best, {}", percent(std::max(noise_floor(m), kKneeLoss)), names[best]);
  if (*at + 1 < names.size()) return fmt::format("knee at {}: the last one {}", names[*at], within);
  return fmt::format("no knee: the last one is still {}; walk on, or the other way", within);
}

std::optional<size_t> knee(const Measured& m) {
  const std::vector<double> medians = m.medians();
  const auto [at, worst] = best_and_worst(m.better(), medians);
  if (m.better() == Better::unknown || !differ(m, at, worst)) return std::nullopt;
  const double best = medians[at];
  size_t last = 0;
  for (size_t i = 0; i < medians.size(); ++i)
    if (1 - gain(m.better(), best, medians[i]) < std::max(noise_floor(m), kKneeLoss)) last = i;
  return last;
}

std::vector<Rung> rungs_of(const Measured& m) {
  const std::vector<double> medians = m.medians();
  const bool changed = differ(m, 0, medians.size() - 1);
  const double whole = std::log(gain(m.better(), medians.front(), medians.back()));
  std::vector<Rung> rungs;
  for (size_t i = 1; i < medians.size(); ++i) {
    const double factor = gain(m.better(), medians[i - 1], medians[i]);
    const double share = changed ? std::log(factor) / whole : std::nan("");
    rungs.push_back(
        {factor, std::isfinite(whole) && std::isfinite(share) ? share : std::nan(""), differ(m, i - 1, i)});
  }
  return rungs;
}

std::string report(const Measured& m, const std::vector<std::string>& names, bool ladder, Json& json) {
  constexpr const char* kRow = "  {:<34} {:>9} {:>9} {:>9}{}\n";
  const std::vector<double> medians = m.medians();
  const std::vector<Rung> rungs = rungs_of(m);
  json = {{"metric", m.metric},
          {"better", to_string(m.better())},
          {"noise_floor", noise_floor(m)},
          {"same_setting_values", m.same}};
  std::string text =
      fmt::format("\n{} ({}), noise floor {}\n", m.metric, to_string(m.better()), percent(noise_floor(m)));
  text += fmt::format(kRow, "", "median", "least", "most", ladder ? "  factor   share" : "");
  for (size_t i = 0; i < medians.size(); ++i) {
    Json setting = {{"name", names[i]}, {"median", medians[i]}, {"values", m.settings[i]}};
    std::string rest = ladder ? "" : bar_of(medians[i] / *std::max_element(medians.begin(), medians.end()));
    if (ladder && i > 0) {
      const Rung& rung = rungs[i - 1];
      setting["factor"] = rung.factor;
      setting["share"] = rung.share;
      const bool enough = m.settings[i].size() >= kFewestRuns;
      const bool from_0 = !std::isfinite(rung.factor) || rung.factor == 0;
      rest = rung.seen ? from_0 ? "  from or to 0" : fmt::format("{:7.2f}x", rung.factor)
             : enough ? "  not beyond the noise"
                       : "";
      if (rung.seen && !std::isnan(rung.share)) rest += fmt::format(" {:5.0f} %", 100 * rung.share);
    }
    const auto [least, most] = std::minmax_element(m.settings[i].begin(), m.settings[i].end());
    text += fmt::format(kRow, names[i], three_digits(medians[i]), three_digits(*least), three_digits(*most),
                        rest);
    json["settings"].push_back(setting);
  }
  const std::optional<size_t> at = knee(m);
  if (!ladder && names.size() > 2) json["knee"] = at ? Json(names[*at]) : Json();
  json["verdict"] =
      ladder ? verdict({m.metric, m.same, {m.settings.front(), m.settings.back()}}, {"all off", "all on"})
             : verdict(m, names);
  return text + json["verdict"].get<std::string>() + "\n";
}

}  // namespace nano
