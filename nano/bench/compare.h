// The method behind `bench compare` and `bench ladder`: in which order settings run, what counts as noise, and what
// may then be said. Pure: app/bench_compare.cpp runs the processes.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace nano {

// "--max_num_seqs=4" is max-num-seqs, "--no-paged-kv" is paged-kv; "" for what is no flag.
std::string flag_name(const std::string& arg);
// "--max-num-seqs=4"; with on or off as the value the flag itself, or its --no- twin.
std::string flag_argument(const std::string& flag, const std::string& value);
// May it change how fast tokens come, but never which?
bool is_lossless(const std::string& flag);

enum class Better { unknown, more, less };
Better better_of(const std::string& metric);  // from its name: "…_per_second" is more, "…_ms" is less
std::string to_string(Better better);         // "more is better"

// The setting of each run: a warm-up that does not count; then A A …, which shows how far apart runs of one and the
// same setting lie; then `runs` times there and back, A B B A A B …, so that a machine that gets slower meanwhile
// slows all settings alike.
std::vector<size_t> run_order(size_t settings, size_t runs);
size_t same_runs(size_t runs);  // how many runs A A … are; at least two

// Two runs whose output ids should be equal and are not. By run: the group of its setting (settings of one group must
// give the same tokens), and the digest of its ids.
std::optional<std::pair<size_t, size_t>> different_ids(const std::vector<size_t>& groups,
                                                       const std::vector<std::string>& digests);

double median(const std::vector<double>& values);

// One metric in all runs that count.
struct Measured {
  std::string metric;
  std::vector<double> same;                   // A A …
  std::vector<std::vector<double>> settings;  // of each setting, in the order of its runs

  Better better() const { return better_of(metric); }
  std::vector<double> medians() const;
};

// How far apart runs of one and the same setting lie: the range of A A …, as a share of their median.
double noise_floor(const Measured& measured);
// How many times better `to` is than `from`; where it is not known what is better, how many times more.
double gain(Better better, double from, double to);
// Is there a difference between these two settings? Their medians must lie further apart than the noise floor, and of
// all pairs of a run of the one and a run of the other at least kAgree must say which is more (a rank test: an
// outlier does not decide). Settings that are equal pass for different by chance: with 3 runs each in 4 % of
// comparisons, with 4 in 1.4 %, with 5 in 0.5 % (simulated, normal noise). A verdict on more than two settings
// compares the best with the worst of them, so there chance is larger: 5 runs of 5 equal settings 3 %, of 10
// settings 7 %. Fewer than 3 runs would do so in 20 % and more, so they show no difference at all.
constexpr double kAgree = 0.9;
constexpr size_t kFewestRuns = 3;
bool differ(const Measured& measured, size_t one, size_t other);

// One sentence: "A is 1.80x B", with the better one in front; that no difference was seen, and how far apart the
// medians are; that it is undecided, or that there are too few runs; for three or more settings where the knee is.
std::string verdict(const Measured& measured, const std::vector<std::string>& names);

// The knee of a curve: the last value, walking in the given order, that loses less against the best one than the
// noise floor or 5 %, whichever is more. So walk from the generous end to the tight one. None where it is not known
// what is better, or where no difference is seen.
constexpr double kKneeLoss = 0.05;
std::optional<size_t> knee(const Measured& measured);

// What each rung of a ladder adds. Factors multiply, so the shares are of the logarithm of the whole gain: they add
// up to 1, and a lever near the top does not look bigger only because there is more to multiply.
struct Rung {
  double factor, share;  // share is NaN where there is no difference between the first and the last
  bool seen;             // is there one between this rung and the one before?
};
std::vector<Rung> rungs_of(const Measured& measured);  // of the settings from the second on

// All of this as a table (a rung that is not beyond the noise has no factor there) with the verdict below it, and the
// same as JSON.
std::string report(const Measured& measured, const std::vector<std::string>& names, bool ladder,
                   nlohmann::ordered_json& json);

}  // namespace nano
