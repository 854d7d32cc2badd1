#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "app/cli.h"          // ArgParser
#include "app/terminal.h"     // print_stderr, read_input
#include "base/error.h"       // Error
#include "base/format.h"      // three_digits
#include "base/json.h"        // parse_json
#include "llm/output_json.h"  // filled, json_text

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

// A row is 79 characters: it fits a terminal of 80, and a projector.
constexpr int64_t kColumns = 64;  // of the chart
constexpr size_t kMaxRows = 40;
constexpr const char* kMarks = "Pd.";  // what a sequence did in a step: at equal times the first is shown

struct Step {
  double begin = 0, end = 0;
  int64_t used_blocks = 0;
};

struct Summary {
  int64_t steps = 0, tokens = 0, sampled = 0, seqs = 0, requests = 0, preemptions = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, most_running = 0, num_blocks = 0, peak_blocks = 0;
  std::map<std::string, int64_t> block_events = {{"allocated", 0}, {"hit", 0},   {"shared", 0},
                                                 {"cached", 0},    {"freed", 0}, {"evicted", 0}};
  double schedule = 0, forward = 0, sample = 0, begin = 0, end = 0;
  std::vector<Step> timeline;
  // Of each sequence: step → what it did there, a letter of the chart.
  std::map<int64_t, std::vector<std::pair<int64_t, char>>> chart;
  std::map<int64_t, std::pair<std::string, int64_t>> names;  // of a sequence: the request's id, which answer
  std::set<std::string> forked;                              // requests with several answers
};

// A number of a line, if it is one that an engine can have written: the chart is as wide as these say.
double seconds_of(const nlohmann::json& line, const char* key, double least) {
  const double value = line.at(key).get<double>();
  if (!(value >= least && value <= 1e9)) throw Error(fmt::format("{} {} cannot be", key, value), "");
  return value;
}
int64_t count_of(const nlohmann::json& line, const char* key, int64_t most = INT32_MAX) {
  const int64_t value = line.at(key).get<int64_t>();
  if (value < 0 || value > most) throw Error(fmt::format("{} {} cannot be", key, value), "");
  return value;
}

void add_step(const nlohmann::json& line, Summary& s) {
  constexpr double kRounding = 1e-5;  // times are written in microseconds
  const int64_t step = s.steps++;
  s.tokens += count_of(line, "tokens");
  s.most_running = std::max(s.most_running, count_of(line, "running"));
  const double schedule = seconds_of(line, "schedule", 0), forward = seconds_of(line, "forward", 0),
               sample = seconds_of(line, "sample", 0);
  s.schedule += schedule, s.forward += forward, s.sample += sample;
  // Steps follow each other.
  const double time =
      seconds_of(line, "time", step == 0 ? 0 : std::max(s.timeline.back().begin, s.end - kRounding));
  if (step == 0) s.begin = time;
  s.end = time + schedule + forward + sample;
  const int64_t used = s.num_blocks > 0 ? s.num_blocks - count_of(line, "free_blocks", s.num_blocks) : 0;
  s.timeline.push_back({time, s.end, used});
  s.peak_blocks = std::max(s.peak_blocks, used);
  for (const auto& event : line.at("events")) ++s.block_events[event.at(0).get<std::string>()];
  for (const auto& admitted : line.value("admitted", nlohmann::json::array()))
    if (admitted.is_array()) s.cached_tokens += admitted.at(1).get<int64_t>();
  for (const auto& id : line.at("preempted")) {
    ++s.preemptions;
    s.chart[id.get<int64_t>()].emplace_back(step, 'x');
  }
  for (const auto& seq : line.at("seqs")) {
    ++s.seqs;
    s.sampled += int64_t(seq.at("sampled").size());
    s.cached_tokens += seq.value("cached", int64_t(0));  // version 1
    const int64_t n = seq.at("n").get<int64_t>();
    const bool discard = seq.at("discard").get<bool>();
    const bool prompt = n > 1 || !seq.at("samples").get<bool>();
    s.chart[seq.at("id").get<int64_t>()].emplace_back(step, discard ? '.' : prompt ? 'P' : 'd');
  }
}

void add_request(const nlohmann::json& line, Summary& s) {
  const std::string event = line.at("request");
  if (event == "arrived") {
    ++s.requests;
    s.prompt_tokens += line.at("prompt_tokens").get<int64_t>();
  }
  if (!line.contains("request_id")) return;  // version 1
  const std::string request = line["request_id"];
  s.names[line.at("id").get<int64_t>()] = {request, line.at("index").get<int64_t>()};
  if (line.at("index") != 0) s.forked.insert(request);
}

Summary read_trace(const std::string& path) {
  std::istringstream file(read_input(path));
  Summary s;
  int64_t number = 0;
  for (std::string text; std::getline(file, text);) {
    const std::string where = fmt::format("{} line {}", path, ++number);
    if (number > 1 && file.eof() && !nlohmann::json::accept(text)) {
      print_stderr("warning: {} is incomplete and left out: the program that wrote it was ended\n", where);
      break;
    }
    try {
      const nlohmann::json line = parse_json(text, where);
      if (number == 1) {
        if (line.at("trace") != "nano") throw Error("not a trace of nano", where);
        if (line.at("version") != 1 && line.at("version") != 2)
          throw Error("a trace of another version", where, "versions 1 and 2 are known");
        if (line.contains("num_blocks")) s.num_blocks = count_of(line, "num_blocks");
      } else {
        line.contains("step") ? add_step(line, s) : add_request(line, s);
      }
    } catch (const Error& wrong) {
      throw Error(wrong.problem, where, wrong.hint);
    } catch (const nlohmann::json::exception&) {  // a field is missing or of another type
      throw Error("not a line of a trace", where, "write one with --trace FILE");
    }
  }
  if (number == 0) throw Error("the file is empty", path, "write one with --trace FILE");
  return s;
}

// Where a step lies on the chart's axis, in columns.
struct Axis {
  const Summary& s;
  bool by_time;
  double unit() const {  // seconds or steps a column
    if (by_time) return std::max(s.end - s.begin, 1e-6) / double(kColumns);
    return std::ceil(double(s.steps) / double(kColumns));
  }
  std::pair<double, double> span(int64_t step) const {
    const Step& at = s.timeline[size_t(step)];
    const double begin = by_time ? at.begin - s.begin : double(step);
    return {begin / unit(), (by_time ? at.end - s.begin : begin + 1) / unit()};
  }
  // Calls see(column, share of it) for all that a step touches.
  template <class See>
  void columns(int64_t step, const See& see) const {
    const auto [begin, end] = span(step);
    for (auto c = int64_t(begin); c < kColumns && double(c) < std::max(end, begin + 1e-9); ++c)
      see(size_t(c), std::min(end, double(c) + 1) - std::max(begin, double(c)));
  }
};

std::string row_of(const std::vector<std::pair<int64_t, char>>& marks, const Axis& axis) {
  std::string row(kColumns, ' ');
  std::vector<std::map<char, double>> time(kColumns);
  for (const auto& [step, letter] : marks)
    if (letter == 'x')
      row[std::min(size_t(axis.span(step).first), row.size() - 1)] = letter;
    else
      axis.columns(step, [&, letter = letter](size_t c, double share) { time[c][letter] += share; });
  for (size_t c = 0; c < row.size(); ++c)
    for (const char* letter = kMarks; *letter && row[c] != 'x'; ++letter)
      if (time[c].count(*letter) && (row[c] == ' ' || time[c][*letter] > time[c][row[c]])) row[c] = *letter;
  return row.erase(row.find_last_not_of(' ') + 1);
}

// The most blocks in use at any time of a column; nothing changes between steps.
std::string kv_row(const Axis& axis) {
  std::vector<int64_t> most(kColumns, -1);
  for (int64_t step = 0; step < axis.s.steps; ++step)
    axis.columns(step, [&](size_t c, double) {
      most[c] = std::max(most[c], axis.s.timeline[size_t(step)].used_blocks);
    });
  const char* const heights[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const auto columns = size_t(std::ceil(axis.span(axis.s.steps - 1).second - 1e-9));
  std::string row;
  for (size_t c = 0; c < std::min(columns, most.size()); ++c) {
    if (most[c] < 0) most[c] = most[c - 1];
    row += heights[(8 * most[c] + axis.s.peak_blocks - 1) / std::max<int64_t>(axis.s.peak_blocks, 1)];
  }
  return row;
}

std::string chart(const Summary& s, bool by_time) {
  const Axis axis{s, by_time};
  std::string out =
      by_time ? fmt::format("a column is {} ms of {} ms: a longer step is wider\n",
                            three_digits(1000 * axis.unit()), three_digits(1000 * (s.end - s.begin)))
              : fmt::format("a column is {:.0f} of {} steps, however long they took\n", axis.unit(), s.steps);
  out +=
      "P prompt, d decode, . slot held by a finished row, x preempted (always shown);\n"
      "of several steps in one column the chart shows what took most of it\n";
  if (s.num_blocks > 0) {
    out += fmt::format("KV: blocks in use, full height = the peak, {} of {}\n", s.peak_blocks, s.num_blocks);
    out += fmt::format("{:>12} |{}\n", "KV", kv_row(axis));
  }
  size_t rows = 0;
  for (const auto& [id, marks] : s.chart) {
    if (++rows > kMaxRows) {
      out += fmt::format("… and {} more sequences\n", s.chart.size() - kMaxRows);
      break;
    }
    const auto name = s.names.find(id);
    std::string label = name == s.names.end() ? std::to_string(id) : name->second.first;
    if (s.forked.count(label)) label = fmt::format("{:.8}/{}", label, name->second.second);
    out += fmt::format("{:>12.12} |{}\n", label, row_of(marks, axis));
  }
  return out;
}

Json summary_json(const Summary& s) {
  const double wall = s.end - s.begin, steps = double(std::max<int64_t>(s.steps, 1));
  auto percent = [&](double seconds) { return wall > 0 ? 100 * seconds / wall : 0.0; };
  const double between = std::max(0.0, wall - s.schedule - s.forward - s.sample);
  return {
      {"steps", s.steps},
      {"requests", s.requests},
      {"tokens", s.tokens},
      {"sampled_tokens", s.sampled},
      {"mean_batch_tokens", double(s.tokens) / steps},
      {"mean_batch_sequences", double(s.seqs) / steps},
      {"max_running", s.most_running},
      {"preemptions", s.preemptions},
      {"num_blocks", s.num_blocks ? Json(s.num_blocks) : Json()},
      {"peak_blocks", s.num_blocks ? Json(s.peak_blocks) : Json()},
      {"prompt_tokens", s.prompt_tokens},
      {"cached_tokens", s.cached_tokens},
      {"block_events", s.block_events},
      {"seconds", {{"wall", wall}, {"schedule", s.schedule}, {"forward", s.forward}, {"sample", s.sample}}},
      {"percent",
       {{"schedule", percent(s.schedule)},
        {"forward", percent(s.forward)},
        {"sample", percent(s.sample)},
        {"between_steps", percent(between)}}}};
}

const char* const kText =
    "requests      {requests}, {prompt_tokens} prompt tokens, {sampled_tokens} tokens sampled\n"
    "steps         {steps}, {tokens} tokens computed\n"
    "a step has    {mean_batch_tokens} tokens of {mean_batch_sequences} sequences on average; {max_running} "
    "ran at most\n"
    "preemptions   {preemptions}\n"
    "prefix cache  {cached_tokens} tokens not computed again; blocks: {block_events_hit} hit, "
    "{block_events_shared} shared with a sibling, {block_events_evicted} evicted\n"
    "time          {seconds_wall} s: schedule {percent_schedule:.1f} %, forward {percent_forward:.1f} %, "
    "sample {percent_sample:.1f} %, between {percent_between_steps:.1f} %\n";

}  // namespace

int trace_summary_command(const Args& args) {
  std::string file, by = "time";
  bool json = false;
  ArgParser parser(
      "trace summary",
      "What the scheduler did, from a file that --trace wrote. In the chart a row is a sequence.\n"
      "Example: build/nano run tiny --raw --prompts FILE.jsonl --trace t.jsonl\n"
      "         build/nano trace summary t.jsonl");
  parser.positional("FILE", file, "the trace");
  parser.add("by", by, "what a column is: a span of time, so a longer step is wider; or steps", "time|step");
  parser.add("json", json, "the figures as one JSON object, without the chart");
  if (!parser.parse(args)) return 0;
  const Summary summary = read_trace(file);
  const Json figures = summary_json(summary);
  fmt::print("{}", json ? json_text(figures) + "\n" : filled(kText, figures));
  if (!json && summary.steps > 0) fmt::print("\n{}", chart(summary, by == "time"));
  return 0;
}

}  // namespace nano
