// llm/llm: what on_update may do to the requests while it is told of them. Whoever it aborts keeps what there was, an
// id may be given to another at once, and whatever it throws, nobody else's answer loses or repeats a token.
#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"      // Error
#include "catch.h"           // Catch2, version 2 or 3
#include "engine_fixture.h"  // micro_options, make_prompt, greedy, sampled
#include "llm/llm.h"         // LLM

using nano::FinishReason;
using nano::RequestOutput;
using namespace nano_test;

namespace {

nano::Prompt prompt(uint32_t salt) { return {"", make_prompt(int32_t(5 + salt), salt)}; }

nano::EngineOptions with_scheduling(const char* scheduling) {
  nano::EngineOptions options = micro_options();
  options.scheduling = scheduling;
  return options;
}

std::vector<int32_t> alone(uint32_t salt, const nano::SamplingParams& params) {
  nano::LLM llm(micro_options());
  return llm.generate({prompt(salt)}, {params}).at(0).outputs.at(0).token_ids;
}

bool begins_with(const std::vector<int32_t>& whole, const std::vector<int32_t>& part) {
  return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
}

// All that on_update was told, by request.
struct Told {
  std::map<std::string, std::string> text;
  std::map<std::string, int> ends;
  void add(const RequestOutput& out) {
    for (const nano::CompletionOutput& answer : out.outputs) text[out.request_id] += answer.delta;
    ends[out.request_id] += out.finished;
  }
};

void step_to_the_end(nano::LLM& llm, const nano::LLM::OnUpdate& on_update) {
  while (llm.has_work()) llm.step(on_update);
}

}  // namespace

TEST_CASE("generate: an answer that on_update aborts, its own or another's, is there as far as it came") {
  const std::string ids[] = {"0", "1", "2"};  // a new LLM's
  for (const char* scheduling : {"continuous", "static"})
    for (const std::string& victim : ids)
      for (const std::string& teller : ids) {
        CAPTURE(scheduling, victim, teller);
        nano::LLM llm(with_scheduling(scheduling));
        Told told;
        int updates = 0;
        std::optional<RequestOutput> aborted;
        const auto results =
            llm.generate({prompt(0), prompt(1), prompt(2)}, {greedy(5)}, [&](const RequestOutput& out) {
              told.add(out);
              if (out.request_id != teller || ++updates != 2) return;
              aborted = llm.abort(victim);
              CHECK(out.request_id == teller);  // still what it was, also if it was aborted
              CHECK_FALSE(llm.abort(victim));
              CHECK_FALSE(llm.abort("nobody"));
            });
        REQUIRE(aborted);
        CHECK_FALSE(llm.has_work());
        for (uint32_t i = 0; i < 3; ++i) {
          CAPTURE(i);
          const nano::CompletionOutput& answer = results.at(i).outputs.at(0);
          CHECK(results[i].request_id == ids[i]);
          CHECK(results[i].finished);
          CHECK(results[i].error == "");
          const std::vector<int32_t> whole = alone(i, greedy(5));
          if (ids[i] != victim) {
            CHECK(answer.token_ids == whole);
            CHECK(answer.finish_reason == FinishReason::length);
            CHECK(told.text[ids[i]] == answer.text);
            CHECK(told.ends[ids[i]] == 1);
            continue;
          }
          // Whose turn comes after the teller's in a step has not been told of its second token.
          CHECK(answer.token_ids.size() == (victim > teller ? 1 : 2));
          CHECK(begins_with(whole, answer.token_ids));
          CHECK(answer.finish_reason == FinishReason::abort);
          CHECK(answer.text == aborted->outputs.at(0).text);
          CHECK(told.text[ids[i]] == answer.text);
          CHECK(told.ends[ids[i]] == 0);
        }
      }
}

TEST_CASE("generate: on_update may abort everything, and what is interrupted is there too") {
  nano::LLM llm(micro_options());
  auto abort_all = [&](const RequestOutput&) {
    for (const char* id : {"0", "1", "2"}) llm.abort(id);
  };
  const std::vector<nano::Prompt> prompts = {prompt(0), prompt(1), prompt(2)};
  const auto aborted = llm.generate(prompts, {greedy(5)}, abort_all);
  CHECK_FALSE(llm.has_work());
  int asked = 0;
  const auto interrupted = llm.generate(prompts, {greedy(5)}, {}, [&] { return ++asked == 4; });
  CHECK_FALSE(llm.has_work());
  for (uint32_t i = 0; i < 3; ++i) {
    const size_t tokens = i == 0 ? 1 : 0;
    CHECK(aborted.at(i).outputs.at(0).finish_reason == FinishReason::abort);
    CHECK(aborted[i].outputs[0].token_ids.size() == tokens);
    CHECK(aborted[i].prompt_token_ids == prompts[i].token_ids);
    CHECK(interrupted.at(i).outputs.at(0).finish_reason == FinishReason::abort);
    CHECK(interrupted[i].outputs[0].token_ids.size() == 3);
    CHECK(interrupted[i].request_id == std::to_string(3 + i));
  }
  CHECK_THROWS_AS(llm.generate(prompts, {greedy(5)}, {}, []() -> bool { throw std::runtime_error("no"); }),
                  std::runtime_error);
  CHECK_FALSE(llm.has_work());
}

TEST_CASE("an id is free once its end is told or it is aborted, and not before") {
  for (const char* scheduling : {"continuous", "static"}) {
    CAPTURE(scheduling);
    nano::LLM llm(with_scheduling(scheduling));
    const std::vector<int32_t> first = alone(1, greedy(3)), second = alone(2, greedy(4));
    llm.add_request("other", prompt(3), greedy(9));
    llm.add_request("x", prompt(1), greedy(3));
    std::vector<std::vector<int32_t>> answers;
    step_to_the_end(llm, [&](const RequestOutput& out) {
      if (out.request_id != "x") return;
      if (!out.finished) {
        CHECK(error_of([&] { llm.add_request("x", prompt(2), greedy(4)); }) ==
              "x: this request id is in use");
        return;
      }
      answers.push_back(out.outputs.at(0).token_ids);
      if (answers.size() == 1) llm.add_request("x", prompt(2), greedy(4));
    });
    CHECK(answers == std::vector<std::vector<int32_t>>{first, second});

    answers.clear();
    llm.add_request("other", prompt(3), greedy(9));
    llm.add_request("x", prompt(1), greedy(3));
    step_to_the_end(llm, [&](const RequestOutput& out) {
      if (out.request_id == "other" && out.outputs.at(0).token_ids.size() == 2) {
        CHECK(llm.abort("x")->outputs.at(0).token_ids.size() == 1);  // the second is there, and not told
        llm.add_request("x", prompt(2), greedy(4));
      }
      if (out.request_id == "x" && out.finished) answers.push_back(out.outputs.at(0).token_ids);
    });
    CHECK(answers == std::vector<std::vector<int32_t>>{second});
  }
}

TEST_CASE("an id whose end is not told yet is in use, though the engine has finished it") {
  nano::LLM llm(micro_options());
  llm.add_request("a", prompt(1), greedy(2));
  llm.add_request("b", prompt(2), greedy(2));
  bool refused = false;
  Told told;
  step_to_the_end(llm, [&](const RequestOutput& out) {
    told.add(out);
    if (out.request_id != "a" || !out.finished) return;
    refused = error_of([&] { llm.add_request("b", prompt(3), greedy(2)); }) == "b: this request id is in use";
  });
  CHECK(refused);
  CHECK(told.ends["b"] == 1);
}

TEST_CASE("answers that end in one step: what was for an aborted request is not its successor's") {
  nano::SamplingParams three = sampled(4, 5);
  three.n = 3;  // the second and the third begin one step after the first, so they end together
  nano::LLM fresh(micro_options());
  const RequestOutput want = fresh.generate({prompt(2)}, {three}).at(0);
  nano::LLM llm(micro_options());
  llm.add_request("x", prompt(1), three);
  bool again = false;
  RequestOutput last;
  std::map<int32_t, std::string> told;
  step_to_the_end(llm, [&](const RequestOutput& out) {
    if (again)
      for (const nano::CompletionOutput& answer : out.outputs) told[answer.index] += answer.delta;
    last = out;
    if (again || out.outputs.at(1).finish_reason == FinishReason::none) return;
    again = true;
    const auto aborted = llm.abort("x");
    REQUIRE(aborted);
    CHECK(aborted->outputs.at(1).finish_reason == FinishReason::length);
    CHECK(aborted->outputs.at(2).finish_reason == FinishReason::abort);
    CHECK(aborted->outputs.at(2).token_ids.size() == 3);
    llm.add_request("x", prompt(2), three);
  });
  REQUIRE(again);
  CHECK(last.finished);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(last.outputs.at(i).token_ids == want.outputs.at(i).token_ids);
    CHECK(last.outputs[i].finish_reason == FinishReason::length);
    CHECK(told[int32_t(i)] == last.outputs[i].text);
  }
}

TEST_CASE("on_update that throws, also at an end, loses nobody's token and leaves no id behind") {
  for (const char* scheduling : {"continuous", "static"})
    for (int which = 1; which <= 9; ++which) {  // of the updates of three answers of three tokens
      CAPTURE(scheduling, which);
      nano::LLM llm(with_scheduling(scheduling));
      Told told;
      std::map<std::string, std::vector<int32_t>> ids;
      int updates = 0, thrown = 0;
      auto on_update = [&](const RequestOutput& out) {
        told.add(out);
        ids[out.request_id] = out.outputs.at(0).token_ids;
        if (++updates == which) throw std::runtime_error("enough");
      };
      const char* const names[] = {"a", "b", "c"};
      for (uint32_t i = 0; i < 3; ++i) llm.add_request(names[i], prompt(i), greedy(3));
      while (llm.has_work()) try {
          llm.step(on_update);
        } catch (const std::runtime_error&) {
          ++thrown;
        }
      CHECK(thrown == 1);
      CHECK(updates == 9);
      for (uint32_t i = 0; i < 3; ++i) {
        CHECK(ids[names[i]] == alone(i, greedy(3)));
        CHECK(told.ends[names[i]] == 1);
        CHECK_FALSE(llm.abort(names[i]));
        llm.add_request(names[i], prompt(i), greedy(3));
      }
    }
}

TEST_CASE("generate that throws takes its own requests away, and a caller's goes on where it was") {
  for (int which = 4; which <= 7; ++which) {  // of the second step's updates
    CAPTURE(which);
    nano::LLM llm(micro_options());
    std::map<std::string, std::string> text;
    std::map<std::string, nano::CompletionOutput> last;
    int updates = 0;
    auto on_update = [&](const RequestOutput& out) {
      last[out.request_id] = out.outputs.at(0);
      text[out.request_id] += out.outputs[0].delta;
      if (++updates == 1) llm.add_request("late", prompt(4), greedy(6));
      if (updates == which) throw std::runtime_error("enough");
    };
    llm.add_request("early", prompt(1), greedy(6));
    CHECK_THROWS_AS(llm.generate({prompt(2), prompt(3)}, {greedy(6)}, on_update), std::runtime_error);
    const size_t before = last.at("0").token_ids.size();
    step_to_the_end(llm, on_update);
    CHECK(last.at("0").token_ids.size() == before);
    for (const auto& [id, salt] : {std::pair{"early", 1}, {"late", 4}}) {
      CHECK(last.at(id).token_ids == alone(uint32_t(salt), greedy(6)));
      CHECK(text[id] == last[id].text);
    }
  }
}

TEST_CASE("generate chooses ids that no caller's request has, and hands out only its own answers") {
  nano::LLM llm(micro_options());
  llm.add_request("0", prompt(3), greedy(2));
  llm.add_request("2", prompt(4), greedy(8));
  Told told;
  const auto results = llm.generate({prompt(1), {"", {}, "no prompt"}, prompt(2)}, {greedy(4)},
                                    [&](const RequestOutput& out) { told.add(out); });
  CHECK(results[0].request_id == "1");
  CHECK(results[1].error == "no prompt");
  CHECK(results[2].request_id == "4");
  CHECK(results[0].outputs.at(0).token_ids == alone(1, greedy(4)));
  CHECK(results[2].outputs.at(0).token_ids == alone(2, greedy(4)));
  for (const char* id : {"0", "1", "2", "4"}) CHECK(told.ends[id] == 1);

  // An aborted request's id may be taken by generate at once, and is no answer to it then.
  llm.add_request("5", prompt(3), greedy(2));
  llm.abort("5");
  const auto after = llm.generate({prompt(1)}, {greedy(4)}, {}, [] { return true; });
  CHECK(after.at(0).request_id == "5");
  CHECK(after[0].prompt_token_ids == prompt(1).token_ids);
}

TEST_CASE("generate passes over what a static batch still holds of an aborted request") {
  nano::LLM llm(with_scheduling("static"));
  llm.add_request("a", prompt(1), greedy(9));
  llm.add_request("0", prompt(2), greedy(9));
  llm.step({});
  llm.abort("0");
  const auto results = llm.generate({prompt(3)}, {greedy(4)});
  CHECK(results.at(0).error == "");
  CHECK(results[0].outputs.at(0).token_ids == alone(3, greedy(4)));
}
