// app/explain: what it tells is what sample() did.
#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>
#include <string>

#include "app/explain.h"
#include "catch.h"
#include "subprocess.h"  // run_nano

using namespace nano;
using nano_test::contains;
using nano_test::run_nano;
using nano_test::temporary_file;
using nano_test::tiny;
using Json = nlohmann::ordered_json;

namespace {

std::string name_of(int32_t id) { return std::to_string(id); }

// A key whose random number lies in [low, high).
RngKey key_in(double low, double high) {
  RngKey key{5, 0};
  while (random_uniform(key, 0) < low || random_uniform(key, 0) >= high) ++key.position;
  return key;
}

// logits 2 1 0 -1 at temperature 0.5, top_k 3, top_p 0.9 and u of about 0.9: the example in sampler.h.
Json example(const std::function<std::string(int32_t)>& text) {
  SamplingParams p;
  p.temperature = 0.5f, p.top_k = 3, p.top_p = 0.9f;
  return explain(std::vector<float>{2, 1, 0, -1}, p, {{}, {}, {}, key_in(0.9, 0.901)}, true, text);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) result.push_back(line);
  return result;
}

double last_prob(const Json& candidate) { return candidate["probs"].back().get<double>(); }

}  // namespace

TEST_CASE("explain: the chosen token, its probability and the random number are sample()'s") {
  int drawn = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    std::vector<float> row(1 + rng() % 300);
    for (float& x : row) x = rng() % 9 ? normal(rng) : 2.0f;
    const auto V = uint32_t(row.size());
    SamplingParams p;
    p.temperature = float(rng() % 4) * 0.5f;
    if (rng() % 2) p.top_k = int32_t(1 + rng() % 20);
    if (rng() % 2) p.top_p = float(1 + rng() % 9) / 10;
    if (rng() % 3 == 0) p.min_p = 0.1f;
    if (rng() % 3 == 0) p.repetition_penalty = 1.5f, p.presence_penalty = 0.5f;
    if (rng() % 4 == 0) p.logit_bias[int32_t(rng() % V)] = 3;
    if (rng() % 5 == 0) p.min_tokens = 9;
    const std::vector<int32_t> past = {int32_t(rng() % V), int32_t(rng() % V)}, stop = {int32_t(rng() % V)};
    const SamplerContext context{past, past, stop, {seed, 4}};
    const bool sampler = rng() % 8 != 0;

    std::vector<float> copy = row, probs = row;
    const SampledToken token = sampler ? sample(copy, p, context) : sample_argmax(copy, p);
    const Json json = explain(row, p, context, sampler, name_of);
    if (token.id < 0) {
      CHECK(json == Json{{"error", token.error}});
      continue;
    }
    if (sampler) {
      apply_masks_and_bias(probs, p, context);
      apply_penalties(probs, p, context);
      filter_to_probs(probs, p);
    }
    INFO("seed " << seed << " " << json.dump());
    REQUIRE(json["token_id"] == token.id);
    CHECK(json["random"].is_null() == (!sampler || p.greedy()));
    bool found = false;
    for (const Json& c : json["candidates"]) {
      CHECK(c["probs"].size() == json["steps"].size());
      CHECK(c["logit"] == row[c["token_id"].get<size_t>()]);
      if (sampler) CHECK(last_prob(c) == probs[c["token_id"].get<size_t>()]);
      found = found || c["token_id"] == token.id;
    }
    CHECK(found);
    if (json["random"].is_null()) continue;
    ++drawn;
    const double u = json["random"];
    CHECK(u == random_uniform(context.key, 0));
    CHECK(json["range"][0].get<double>() <= u + 1e-9);
    CHECK(u < json["range"][1].get<double>() + 1e-9);
    CHECK(json["steps"].back()["kept"] ==
          std::count_if(probs.begin(), probs.end(), [](float x) { return x > 0; }));
  }
  CHECK(drawn > 1000);
}

TEST_CASE("explain: the example in sampler.h, each number") {
  const Json json = example(name_of);
  CHECK(json["token_id"] == 1);
  const std::vector<std::string> names = {"model", "temperature 0.5", "top_k 3", "top_p 0.9"};
  const std::vector<int> kept = {4, 4, 3, 2};
  REQUIRE(json["steps"].size() == 4);
  REQUIRE(json["candidates"].size() == 4);
  // e^(x - 2) and e^(2 (x - 2)) over what is left of them.
  const double e = std::exp(-1.0), e2 = e * e, sum = 1 + e + e2 + e * e2, cold = 1 + e2 + e2 * e2;
  const std::vector<std::vector<double>> probs = {
      {1 / sum, e / sum, e2 / sum, e * e2 / sum},
      {1 / (cold + e2 * e2 * e2), e2 / (cold + e2 * e2 * e2), e2 * e2 / (cold + e2 * e2 * e2),
       e2 * e2 * e2 / (cold + e2 * e2 * e2)},
      {1 / cold, e2 / cold, e2 * e2 / cold, 0},
      {1 / (1 + e2), e2 / (1 + e2), 0, 0}};
  for (size_t s = 0; s < 4; ++s) {
    CHECK(json["steps"][s]["name"] == names[s]);
    CHECK(json["steps"][s]["kept"] == kept[s]);
    CHECK(std::abs(json["steps"][s]["least"].get<double>() - probs[s][size_t(kept[s]) - 1]) <= 1e-6);
    for (size_t id = 0; id < 4; ++id) {
      CHECK(json["candidates"][id]["token_id"] == id);
      CHECK(std::abs(json["candidates"][id]["probs"][s].get<double>() - probs[s][id]) <= 1e-6);
    }
  }
  CHECK(std::abs(json["range"][0].get<double>() - 1 / (1 + e2)) <= 1e-6);
  CHECK(std::abs(json["range"][1].get<double>() - 1) <= 1e-6);
}

TEST_CASE("explain: the table, with wide characters in line and control characters escaped") {
  const std::vector<std::string> texts = {" the", "世界", "\n\x7f\xc2\x85", "\xe4\xb8"};
  const Json json = example([&](int32_t id) { return texts[size_t(id)]; });
  const std::vector<std::string> table = lines_of(explain_table(json, "token 3"));
  REQUIRE(table.size() >= 8);
  CHECK(table[0].rfind("token 3: \"世界\"   random number 0.9", 0) == 0);
  CHECK(contains(table[0], "in [0.8808, 1.0000) of \"世界\""));
  CHECK(table[1] == "  token                   logit     model  temperature 0.5   top_k 3  top_p 0.9");
  CHECK(table[2] == "  \" the\"                  2.000    64.4 %           86.5 %    86.7 %     88.1 %");
  CHECK(table[3] == "> \"世界\"                  1.000    23.7 %           11.7 %    11.7 %     11.9 %");
  CHECK(table[4] == "  \"\\n\\u007f\\u0085\"        0.000    8.71 %           1.58 %    1.59 %          -");
  CHECK(contains(table[5], "\"\uFFFD\""));
  CHECK(table[6] == "  tokens left                           4                4         3          2");
  CHECK(table[7] == "  the least likely of them         3.21 %          0.214 %    1.59 %     11.9 %");
}

TEST_CASE("run --explain: its tokens are the answer's, for each prompt; n = 2 is refused") {
  const std::string prompts = temporary_file("\"In the\"\n{\"prompt\": \"The sea\", \"temperature\": 0}\n");
  const auto json =
      run_nano({"run", tiny(), "--prompts", prompts, "--raw", "--json", "--explain", "--max-tokens", "6",
                "--temperature", "0.9", "--top-p", "0.9", "--repetition-penalty", "1.3"});
  REQUIRE(json.exit_code == 0);
  int answers = 0;
  for (const std::string& line : lines_of(json.out)) {
    const Json out = Json::parse(line);
    const Json& ids = out["outputs"][0]["token_ids"];
    REQUIRE(out["explain"].size() == ids.size());
    for (size_t i = 0; i < ids.size(); ++i) CHECK(out["explain"][i]["token_id"] == ids[i]);
    CHECK(out["explain"][0]["random"].is_null() == (answers == 1));
    ++answers;
  }
  CHECK(answers == 2);
  const auto table =
      run_nano({"run", tiny(), "--prompts", prompts, "--raw", "--explain", "--max-tokens", "2"});
  CHECK(table.exit_code == 0);
  for (const char* title :
       {"prompt 0, token 1: ", "prompt 0, token 2: ", "prompt 1, token 2: ", "[prompt 1] "})
    CHECK(contains(table.out, title));
  const auto off =
      run_nano({"run", tiny(), "In the", "--raw", "--explain", "--no-sampler", "--max-tokens", "1"});
  CHECK(off.exit_code == 0);
  CHECK(contains(off.out, "argmax"));
  CHECK(!contains(off.out, "random number"));
  const auto two = run_nano({"run", tiny(), "x", "--explain", "--n", "2"});
  CHECK(two.exit_code == 2);
  CHECK(contains(two.err, "one answer to each prompt can be explained, and n is 2"));
  CHECK(two.out.empty());
}
