#include "llm/output_json.h"

#include <fmt/args.h>
#include <fmt/format.h>

#include "base/format.h"  // format_bytes, three_digits

namespace nano {
struct Real {
  double value;
};
}  // namespace nano

template <>
struct fmt::formatter<nano::Real> : fmt::formatter<double> {
  bool plain = false;  // no format
  constexpr auto parse(fmt::format_parse_context& context) {
    plain = context.begin() == context.end() || *context.begin() == '}';
    return fmt::formatter<double>::parse(context);
  }
  template <class Context>
  auto format(const nano::Real& real, Context& context) const {
    if (plain) return fmt::format_to(context.out(), "{}", nano::three_digits(real.value));
    return fmt::formatter<double>::format(real.value, context);
  }
};

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

Json logprobs_json(const std::vector<TokenLogprob>& candidates, const Tokenizer& tokenizer) {
  Json json = Json::object();
  for (const TokenLogprob& c : candidates)
    json[std::to_string(c.id)] = {
        {"logprob", c.logprob},
        {"rank", c.rank},
        {"decoded_token", tokenizer.decode({&c.id, 1}, /*skip_special_tokens=*/false)}};
  return json;
}

Json stop_reason(const CompletionOutput& out) {
  if (!out.stop_string.empty()) return out.stop_string;
  if (out.stop_token >= 0) return out.stop_token;
  return nullptr;
}

Json completion_json(const CompletionOutput& out, const Tokenizer& tokenizer) {
  Json json = {{"index", out.index}, {"text", out.text}, {"token_ids", out.token_ids}};
  json["cumulative_logprob"] = out.logprobs.empty() ? Json() : Json(out.cumulative_logprob);
  json["logprobs"] = nullptr;
  for (const auto& candidates : out.logprobs)
    json["logprobs"].push_back(logprobs_json(candidates, tokenizer));
  const std::string reason = to_string(out.finish_reason);
  json["finish_reason"] = reason.empty() ? Json() : Json(reason);
  json["stop_reason"] = stop_reason(out);
  return json;
}

Json seconds_or_null(double seconds) { return seconds > 0 ? Json(seconds) : Json(); }

using FmtArgs = fmt::dynamic_format_arg_store<fmt::format_context>;

void add_members(const Json& object, const std::string& prefix, FmtArgs& args) {
  for (const auto& [key, value] : object.items()) {
    const std::string name = prefix + key;
    auto add = [&](auto fmt_value) { args.push_back(fmt::arg(name.c_str(), fmt_value)); };
    if (value.is_object()) add_members(value, name + "_", args);
    if (value.is_string()) add(value.get<std::string>());
    if (value.is_boolean()) add(value.get<bool>());
    if (value.is_number_float()) add(Real{value.get<double>()});
    if (!value.is_number_integer()) continue;
    const auto number = value.get<int64_t>();
    key.find("bytes") == key.npos ? add(number) : add(format_bytes(number));
  }
}

}  // namespace

Json request_output_json(const RequestOutput& out, const Tokenizer& tokenizer) {
  Json json = {
      {"request_id", out.request_id}, {"prompt", out.prompt}, {"prompt_token_ids", out.prompt_token_ids}};
  json["outputs"] = Json::array();
  for (const CompletionOutput& completion : out.outputs)
    json["outputs"].push_back(completion_json(completion, tokenizer));
  json["prompt_logprobs"] = nullptr;
  if (!out.prompt_logprobs.empty())
    json["prompt_logprobs"].push_back(nullptr);  // nothing predicts the first token
  for (const auto& candidates : out.prompt_logprobs)
    json["prompt_logprobs"].push_back(logprobs_json(candidates, tokenizer));
  json["num_cached_tokens"] = out.num_cached_tokens;
  json["finished"] = out.finished;
  const RequestMetrics& m = out.metrics;
  json["metrics"] = {{"arrival_time", m.arrival},
                     {"first_token_time", seconds_or_null(m.first_token)},
                     {"finished_time", seconds_or_null(m.finished)}};
  if (!out.error.empty()) json["error"] = out.error;
  return json;
}

std::string json_text(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string filled(const std::string& text, const Json& values) {
  FmtArgs args;
  add_members(values, "", args);
  return fmt::vformat(text, args);
}

}  // namespace nano
