#include "app/explain.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "llm/output_json.h"  // json_text

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

constexpr int32_t kBest = 5;

struct Step {
  std::string name;
  std::vector<float> probs;
};

Step step(std::string name, std::span<const float> logits, const SamplingParams& params) {
  Step result{std::move(name), {logits.begin(), logits.end()}};
  filter_to_probs(result.probs, params);
  return result;
}

// What sample() does after masks and penalties, one parameter at a time; the last step is exactly its own.
void add_filters(std::vector<Step>& steps, std::span<const float> logits, const SamplingParams& params) {
  SamplingParams p;
  p.temperature = params.temperature;
  if (p.temperature != 1.0f)
    steps.push_back(step(p.greedy() ? "argmax" : fmt::format("temperature {}", p.temperature), logits, p));
  if (p.greedy()) return;
  p.top_k = params.top_k;
  if (p.top_k > 0) steps.push_back(step(fmt::format("top_k {}", p.top_k), logits, p));
  p.min_p = params.min_p;
  if (p.min_p > 0) steps.push_back(step(fmt::format("min_p {}", p.min_p), logits, p));
  p.top_p = params.top_p;
  if (p.top_p < 1) steps.push_back(step(fmt::format("top_p {}", p.top_p), logits, p));
}

// In quotes, with control characters as \u escapes: JSON's own, and DEL to U+009F.
std::string quoted(const Json& text) {
  std::string result;
  const std::string json = json_text(text);
  for (size_t i = 0; i < json.size(); ++i) {
    const auto c = uint8_t(json[i]), next = uint8_t(i + 1 < json.size() ? json[i + 1] : 0);
    if (c == 0x7f) {
      result += "\\u007f";
    } else if (c == 0xc2 && next < 0xa0) {
      result += fmt::format("\\u{:04x}", next), ++i;
    } else {
      result += char(c);
    }
  }
  return result;
}

}  // namespace

Json explain(std::span<const float> logits, const SamplingParams& params, const SamplerContext& context,
             bool sampler, const std::function<std::string(int32_t)>& text) {
  std::vector<float> row(logits.begin(), logits.end());
  const SampledToken token = sampler ? sample(row, params, context) : sample_argmax(row, params);
  if (token.id < 0) return {{"error", token.error}};

  row.assign(logits.begin(), logits.end());
  const SamplingParams as_the_model_says;
  std::vector<Step> steps = {step("model", row, as_the_model_says)};
  std::vector<int32_t> shown = {token.id};
  auto show_best = [&] {
    for (const TokenLogprob& best : top_logprobs(row, argmax(row), kBest)) shown.push_back(best.id);
  };
  show_best();
  SamplingParams filters = params;
  if (!sampler) filters.temperature = 0;
  const bool masked = sampler && apply_masks_and_bias(row, params, context);
  const bool penalised = sampler && apply_penalties(row, params, context);
  if (masked || penalised) {
    steps.push_back(step(!penalised ? "masks"
                         : masked   ? "masks, penalties"
                                    : "penalties",
                         row, as_the_model_says));
    show_best();
  }
  add_filters(steps, row, filters);

  Json json = {{"token_id", token.id}, {"token", text(token.id)}, {"random", nullptr}, {"range", nullptr}};
  const std::vector<float>& last = steps.back().probs;
  if (!filters.greedy()) {
    const double sum = std::accumulate(last.begin(), last.end(), 0.0);
    const double before = std::accumulate(last.begin(), last.begin() + token.id, 0.0);
    json["random"] = random_uniform(context.key, 0);
    json["range"] = {before / sum, (before + last[token.id]) / sum};
  }
  for (const Step& s : steps) {
    float least = 1;
    for (float p : s.probs) least = p > 0 ? std::min(least, p) : least;
    const auto kept = std::count_if(s.probs.begin(), s.probs.end(), [](float p) { return p > 0; });
    json["steps"].push_back({{"name", s.name}, {"kept", kept}, {"least", least}});
  }
  std::sort(shown.begin(), shown.end(),
            [&](int32_t a, int32_t b) { return std::pair(-row[a], a) < std::pair(-row[b], b); });
  shown.erase(std::unique(shown.begin(), shown.end()), shown.end());
  for (int32_t id : shown) {
    Json candidate = {{"token_id", id}, {"token", text(id)}, {"logit", logits[id]}};
    for (const Step& s : steps) candidate["probs"].push_back(s.probs[id]);
    json["candidates"].push_back(std::move(candidate));
  }
  return json;
}

std::string explain_table(const Json& explained, const std::string& title) {
  if (explained.contains("error"))
    return fmt::format("{}: {}\n", title, explained["error"].get<std::string>());
  const std::string token = quoted(explained["token"]);
  std::string table = fmt::format("{}: {}", title, token);
  if (!explained["random"].is_null())
    table +=
        fmt::format("   random number {:.4f}, in [{:.4f}, {:.4f}) of {}", explained["random"].get<double>(),
                    explained["range"][0].get<double>(), explained["range"][1].get<double>(), token);
  std::vector<size_t> widths;
  table += fmt::format("\n  {:<20} {:>8}", "token", "logit");
  for (const Json& s : explained["steps"]) {
    const auto name = s["name"].get<std::string>();
    widths.push_back(std::max<size_t>(10, name.size() + 2));
    table += fmt::format("{:>{}}", name, widths.back());
  }
  auto percent = [](double p) { return p > 0 ? fmt::format("{:.3g} %", 100 * p) : std::string("-"); };
  for (const Json& c : explained["candidates"]) {
    const char mark = c["token_id"] == explained["token_id"] ? '>' : ' ';
    table += fmt::format("\n{} {:<20} {:>8.3f}", mark, quoted(c["token"]), c["logit"].get<float>());
    for (size_t i = 0; i < widths.size(); ++i)
      table += fmt::format("{:>{}}", percent(c["probs"][i].get<float>()), widths[i]);
  }
  table += fmt::format("\n  {:<29}", "tokens left");
  for (size_t i = 0; i < widths.size(); ++i)
    table += fmt::format("{:>{}}", explained["steps"][i]["kept"].get<int64_t>(), widths[i]);
  table += fmt::format("\n  {:<29}", "the least likely of them");
  for (size_t i = 0; i < widths.size(); ++i)
    table += fmt::format("{:>{}}", percent(explained["steps"][i]["least"].get<float>()), widths[i]);
  return table + "\n\n";
}

void explain_all(LLM& llm, std::function<void(const std::string& request_id, Json)> use) {
  llm.loaded().engine->on_logits = [&llm, use = std::move(use)](const Sequence& seq, int32_t position,
                                                                std::span<const float> row) {
    if (position != seq.num_tokens() - 1) return;  // a row of prompt_logprobs
    std::vector<int32_t> stop_ids;
    const SamplerContext context = llm.loaded().engine->sampler_context(seq, stop_ids);
    Json token;
    llm.loaded().backend->parallel_for(1, [&](int32_t) {  // with denormals as the sampler has them
      token = explain(row, seq.params, context, llm.loaded().options.sampler,
                      [&](int32_t id) { return llm.tokenizer().piece(id, false, false); });
    });
    use(llm.loaded().engine->request_id(seq.id), std::move(token));
  };
}

}  // namespace nano
