// `trace summary` from outside: what it reads, old and new, and what it draws.
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"  // read_file
#include "catch.h"             // Catch2, version 2 or 3
#include "data.h"              // data_path
#include "subprocess.h"        // run_nano, run_args

using nano_test::contains;
using nano_test::lines;
using nano_test::run_args;
using nano_test::run_nano;
using nano_test::temporary_file;
using nano_test::tiny;
using Json = nlohmann::json;

namespace {

// One step of the trace: begin and length in milliseconds, blocks free, and (id, tokens) of its sequences.
std::string step(double begin, double length, int free, const std::vector<std::pair<int, int>>& seqs,
                 const std::vector<int>& preempted = {}) {
  Json line = {{"step", 0},
               {"time", begin / 1e3},
               {"schedule", 0.0},
               {"forward", length / 1e3},
               {"sample", 0.0},
               {"tokens", 1},
               {"running", 1},
               {"waiting", 0},
               {"events", Json::array()},
               {"preempted", preempted},
               {"free_blocks", free},
               {"seqs", Json::array()}};
  for (const auto& [id, n] : seqs)
    line["seqs"].push_back({{"id", id}, {"n", n}, {"samples", true}, {"discard", n == 0}, {"sampled", {1}}});
  return line.dump() + "\n";
}

std::string request(const char* event, int id, const char* request_id, int index) {
  return Json({{"request", event},
               {"id", id},
               {"request_id", request_id},
               {"index", index},
               {"prompt_tokens", 1}})
             .dump() +
         "\n";
}

const std::string kHeader = "{\"trace\": \"nano\", \"version\": 2, \"num_blocks\": 10}\n";

std::string summary(const std::string& trace, std::vector<std::string> more = {}) {
  const std::string file = temporary_file(trace);
  more.insert(more.begin(), {"trace", "summary", file});
  const auto ran = run_nano(more);
  std::remove(file.c_str());
  INFO(ran.err);
  CHECK(ran.exit_code == 0);
  return ran.out;
}

std::string times(int n, const std::string& text) {
  std::string all;
  for (int i = 0; i < n; ++i) all += text;
  return all;
}

}  // namespace

TEST_CASE("trace summary reads what --trace wrote") {
  const std::string trace = temporary_file("");
  REQUIRE(run_nano(run_args({"In the beginning", "--ignore-eos", "--trace", trace})).exit_code == 0);
  const auto json = run_nano({"trace", "summary", trace, "--json"});
  REQUIRE(json.exit_code == 0);
  const Json out = Json::parse(json.out);
  CHECK(out["steps"] == 5);
  CHECK(out["requests"] == 1);
  CHECK(out["sampled_tokens"] == 5);
  const auto text = run_nano({"trace", "summary", trace, "--by", "step"});
  CHECK(contains(text.out, " 0 |Pdddd\n"));
  CHECK(text.err == "");

  // Every token has its text: together they are the prompt and the answer.
  std::string texts;
  std::istringstream written(nano::read_file(trace));
  for (std::string line; std::getline(written, line);)
    for (const Json& seq : Json::parse(line).value("seqs", Json::array()))
      for (const Json& piece : seq["texts"]) texts += piece.get<std::string>();
  CHECK(texts.rfind("<|bos|>In the beginning of ", 0) == 0);

  const std::string whole = nano_test::take_file(trace);  // cut short, as by kill -9
  const std::string cut = temporary_file(whole.substr(0, whole.size() - 10));
  const auto short_one = run_nano({"trace", "summary", cut, "--json"});
  CHECK(short_one.exit_code == 0);
  CHECK(lines(short_one.err) == 1);
  CHECK(contains(short_one.err, "line " + std::to_string(lines(whole)) + " is incomplete"));
  CHECK(Json::parse(short_one.out)["requests"] == 1);
  std::remove(cut.c_str());
  const std::string header = temporary_file(whole.substr(0, 20)), middle = temporary_file(
                                                                      "{\"trace\": \"nano\", "
                                                                      "\"version\": 1}\n{\"st\n{}\n");
  CHECK(run_nano({"trace", "summary", header}).exit_code == 2);
  const std::string later = temporary_file("{\"trace\": \"nano\", \"version\": 3}\n");
  CHECK(contains(run_nano({"trace", "summary", later}).err, "a trace of another version"));
  std::remove(later.c_str());
  CHECK(run_nano({"trace", "summary", middle}).exit_code == 2);
  std::remove(header.c_str());
  std::remove(middle.c_str());
}

TEST_CASE("trace summary --by time: a longer step is wider, waiting is blank, and names are the client's") {
  // 64 ms: a prompt of 32 ms, 16 decodes of 1 ms, nothing for 8 ms, 8 decodes of both answers.
  std::string trace = kHeader + request("arrived", 3, "chat-abcdefghijkl", 0) + step(0, 32, 6, {{3, 9}});
  for (int i = 0; i < 16; ++i) trace += step(32 + i, 1, 6, {{3, 1}});
  trace += request("forked", 4, "chat-abcdefghijkl", 1) + request("arrived", 5, "b", 0);
  for (int i = 0; i < 8; ++i) trace += step(56 + i, 1, 2, {{3, 1}, {4, 1}, {5, i < 2 ? 5 : 0}});
  const std::string out = summary(trace);
  CHECK(contains(out, "a column is 1.00 ms of 64.0 ms: a longer step is wider\n"));
  CHECK(contains(
      out, "\n  chat-abc/0 |" + times(32, "P") + times(16, "d") + times(8, " ") + times(8, "d") + "\n"));
  CHECK(contains(out, "\n  chat-abc/1 |" + times(56, " ") + times(8, "d") + "\n"));
  CHECK(contains(out, "\n           b |" + times(56, " ") + "PP......\n"));
  CHECK(contains(out, "\nKV: blocks in use, full height = the peak, 8 of 10\n"));
  CHECK(contains(out, "\n          KV |" + times(56, "▄") + times(8, "█") + "\n"));
  const std::string by_step = summary(trace, {"--by", "step"});
  CHECK(contains(by_step, "a column is 1 of 25 steps, however long they took\n"));
  CHECK(contains(by_step, "\n  chat-abc/0 |P" + times(24, "d") + "\n"));
  CHECK(contains(by_step, "\n          KV |" + times(17, "▄") + times(8, "█") + "\n"));
  std::istringstream rows(out);
  for (std::string row; std::getline(rows, row);)
    if (contains(row, "|")) CHECK(row.size() - 2 * times(64, "▄").size() / 3 * contains(row, "█") <= 80);
}

TEST_CASE(
    "trace summary: of several steps in a column the one that took longest shows, a preemption always") {
  std::string trace = kHeader;
  for (int i = 0; i < 64;
       ++i) {  // a short prompt chunk and a long decode, but in the last 8 columns the reverse
    const double prompt = i < 56 ? 0.4 : 0.7;
    trace += step(i, prompt, 5, {{1, 4}}, i == 10 ? std::vector<int>{2} : std::vector<int>{});
    trace += step(i + prompt, 1 - prompt, 5, {{1, 1}, {2, 1}});
  }
  const std::string out = summary(trace);
  CHECK(contains(out, "\n           1 |" + times(56, "d") + times(8, "P") + "\n"));
  CHECK(contains(out, "\n           2 |" + times(10, "d") + "x" + times(53, "d") + "\n"));
  const std::string by_step = summary(trace, {"--by", "step"});  // equal: the prompt shows
  CHECK(contains(by_step, "a column is 2 of 128 steps"));
  CHECK(contains(by_step, "\n           1 |" + times(64, "P") + "\n"));
}

TEST_CASE("trace summary refuses what no engine can have written, with the line") {
  auto refused = [](const std::string& trace, const std::string& said) {
    const std::string file = temporary_file(trace);
    const auto ran = run_nano({"trace", "summary", file});
    std::remove(file.c_str());
    CAPTURE(trace, ran.err);
    CHECK(ran.exit_code == 2);
    CHECK(ran.out == "");
    CHECK(contains(ran.err, file + said));
  };
  const std::string good = step(10, 5, 4, {{0, 1}});
  refused(kHeader + good + step(9, 5, 4, {{0, 1}}), " line 3: time 0.009 cannot be");
  refused(kHeader + good + step(14, 5, 4, {{0, 1}}), " line 3: time 0.014 cannot be");
  refused(kHeader + step(-1, 5, 4, {}), " line 2: time -0.001 cannot be");
  refused(kHeader + step(1e300, 5, 4, {}), " line 2: time 1e+297 cannot be");
  refused(kHeader + step(1, -5, 4, {}), " line 2: forward -0.005 cannot be");
  refused(kHeader + step(1, 1e300, 4, {}), " line 2: forward 1e+297 cannot be");
  refused(kHeader + step(1, 5, 11, {}), " line 2: free_blocks 11 cannot be");
  refused(kHeader + step(1, 5, -1, {}), " line 2: free_blocks -1 cannot be");
  refused("{\"trace\": \"nano\", \"version\": 2, \"num_blocks\": -3}\n", " line 1: num_blocks -3 cannot be");
  CHECK(contains(summary(kHeader + good + step(15, 5, 4, {{0, 1}})), "steps         2"));
}

TEST_CASE("trace summary reads traces of version 1") {
  const std::string file = nano_test::data_path("golden/trace_v1.jsonl");
  const auto ran = run_nano({"trace", "summary", file, "--by", "step"});
  INFO(ran.err);
  REQUIRE(ran.exit_code == 0);
  CHECK(contains(ran.out, "requests      3, 40 prompt tokens, 76 tokens sampled\n"));
  // What the program that wrote it drew.
  CHECK(contains(ran.out,
                 "           0 |PPddddddddddddddddddd\n"
                 "           1 | PPddddddddddddddd\n"
                 "           2 |   Pdddx          PPddddddddddd\n"
                 "           3 |  Pdddddddx       Pddddddddddddddd\n"));
  CHECK(contains(ran.out, "the peak, 5 of 5\n"));
  CHECK(Json::parse(run_nano({"trace", "summary", file, "--json"}).out)["peak_blocks"] == 5);
}
