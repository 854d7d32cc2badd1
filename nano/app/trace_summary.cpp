#include <algorithm>
#include <cstdio>
#include <map>
#include <sstream>

#include <fmt/format.h>

#include "app/cli.h"          // ArgParser
#include "llm/output_json.h"  // filled, json_text
#include "app/terminal.h"     // print_stderr, read_input
#include "base/error.h"       // Error
#include "base/json.h"        // parse_json

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kColumns = 80;  // of the chart
constexpr size_t kMaxRows = 40;

struct Summary {
  int64_t steps = 0, tokens = 0, sampled = 0, seqs = 0, requests = 0, preemptions = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, most_running = 0;
  std::map<std::string, int64_t> block_events = {{"allocated", 0}, {"hit", 0},   {"shared", 0},
                                                 {"cached", 0},    {"freed", 0}, {"evicted", 0}};
  double schedule = 0, forward = 0, sample = 0, begin = 0, end = 0;
  // Of each sequence: step → what it did there, a letter of the chart.
  std::map<int64_t, std::map<int64_t, char>> chart;
};

void add_step(const nlohmann::json& line, Summary& s) {
  const int64_t step = s.steps++;
  s.tokens += line.at("tokens").get<int64_t>();
  s.most_running = std::max(s.most_running, line.at("running").get<int64_t>());
  s.schedule += line.at("schedule").get<double>();
  s.forward += line.at("forward").get<double>();
  s.sample += line.at("sample").get<double>();
  const double time = line.at("time").get<double>();
  if (step == 0) s.begin = time;
  s.end = time + line.at("schedule").get<double>() + line.at("forward").get<double>() +
          line.at("sample").get<double>();
  for (const auto& event : line.at("events")) ++s.block_events[event.at(0).get<std::string>()];
  for (const auto& id : line.at("preempted")) {
    ++s.preemptions;
    s.chart[id.get<int64_t>()][step] = 'x';
  }
  for (const auto& seq : line.at("seqs")) {
    ++s.seqs;
    s.sampled += int64_t(seq.at("sampled").size());
    s.cached_tokens += seq.value("cached", int64_t(0));
    const int64_t n = seq.at("n").get<int64_t>();
    const bool discard = seq.at("discard").get<bool>();
    s.chart[seq.at("id").get<int64_t>()][step] = discard                                   ? '.'
                                                 : n > 1 || !seq.at("samples").get<bool>() ? 'P'
                                                                                           : 'd';
  }
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
        if (line.at("version") != 1) throw Error("a trace of another version", where);
      } else if (line.contains("step")) {
        add_step(line, s);
      } else if (line.at("request") == "arrived") {
        ++s.requests;
        s.prompt_tokens += line.at("prompt_tokens").get<int64_t>();
      }
    } catch (const nlohmann::json::exception&) {  // a field is missing or of another type
      throw Error("not a line of a trace", where, "write one with --trace FILE");
    }
  }
  if (number == 0) throw Error("the file is empty", path, "write one with --trace FILE");
  return s;
}

// Rows are sequences, columns are steps (several to a column when there are many; the busiest letter is shown).
std::string gantt(const Summary& s) {
  const int64_t per_column = std::max<int64_t>(1, (s.steps + kColumns - 1) / kColumns);
  const int64_t columns = (s.steps + per_column - 1) / per_column;
  std::string out =
      fmt::format("steps 0 to {}, {} a column; P = prompt, d = decode, . = slot held, x = preempted\n",
                  s.steps - 1, per_column);
  size_t rows = 0;
  for (const auto& [id, steps] : s.chart) {
    if (++rows > kMaxRows) {
      out += fmt::format("… and {} more sequences\n", s.chart.size() - kMaxRows);
      break;
    }
    std::string row(size_t(columns), ' ');
    for (const auto& [step, letter] : steps) {
      char& cell = row[size_t(step / per_column)];
      const std::string order = " .dPx";  // the rarer one wins
      if (order.find(letter) > order.find(cell)) cell = letter;
    }
    row.erase(row.find_last_not_of(' ') + 1);
    out += fmt::format("{:>6} |{}\n", id, row);
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
    "steps         {steps}, {tokens} tokens computed; a step has {mean_batch_tokens:.1f} tokens of "
    "{mean_batch_sequences:.1f} sequences on average, {max_running} ran at most\n"
    "preemptions   {preemptions}\n"
    "prefix cache  {cached_tokens} tokens not computed again; {block_events_hit} blocks hit, "
    "{block_events_shared} shared with a sibling, {block_events_evicted} evicted\n"
    "time          {seconds_wall:.3f} s: schedule {percent_schedule:.1f} %, forward {percent_forward:.1f} %, "
    "sample {percent_sample:.1f} %, between steps {percent_between_steps:.1f} %\n";

}  // namespace

int trace_summary_command(const Args& args) {
  std::string file;
  bool json = false;
  ArgParser parser("trace summary", "What the scheduler did, from a file that --trace wrote.");
  parser.positional("FILE", file, "the trace");
  parser.add("json", json, "the figures as one JSON object, without the chart");
  if (!parser.parse(args)) return 0;
  const Summary summary = read_trace(file);
  const Json figures = summary_json(summary);
  fmt::print("{}", json ? json_text(figures) + "\n" : filled(kText, figures));
  if (!json && summary.steps > 0) fmt::print("\n{}", gantt(summary));
  return 0;
}

}  // namespace nano
