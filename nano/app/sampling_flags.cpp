#include "app/sampling_flags.h"

#include <algorithm>

#include <fmt/format.h>

#include "app/terminal.h"       // print_stderr
#include "base/json.h"          // parse_json
#include "llm/sampling_json.h"  // sampling_fields, set_sampling_field, default_sampling_params

namespace nano {

namespace {

using Json = nlohmann::json;

Json flag_value(const std::string& kind, const std::string& text, const std::string& where) {
  if (kind == "X") return parse_real(text, where);
  if (kind == "N") return parse_human_int(text, where);
  if (kind == "1,2,3") return parse_id_list(text, where);
  if (kind == "JSON") return parse_json(text, where);
  return text;
}

// " [1]": the value of a member that always has one.
std::string default_of(const SamplingField& f) {
  const SamplingParams p;
  if (auto real = std::get_if<float SamplingParams::*>(&f.field)) return fmt::format(" [{}]", p.**real);
  if (auto whole = std::get_if<int32_t SamplingParams::*>(&f.field)) return fmt::format(" [{}]", p.**whole);
  if (auto flag = std::get_if<bool SamplingParams::*>(&f.field)) return p.**flag ? " [on]" : " [off]";
  return "";
}

std::string flag_name(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

}  // namespace

void add_sampling_flags(ArgParser& parser, Json& given) {
  given = Json::object();
  parser.heading("Sampling (vLLM's SamplingParams) {sampler}");
  for (const SamplingField& f : sampling_fields()) {
    const std::string flag = flag_name(f.name), help = f.help + default_of(f);
    if (f.value == nullptr) continue;
    if (*f.value == '\0')
      parser.flag(flag, help, [&given, &f](bool on) { given[f.name] = on; });
    else
      parser.option(flag, f.value, help, [&parser, &given, &f, flag](const std::string& text) {
        Json value = flag_value(f.value, text, parser.where(flag));
        if (value.is_string())
          given[f.name].push_back(value);  // several --stop add up
        else
          given[f.name] = std::move(value);
      });
  }
}

void raise_low_temperature(SamplingParams& p, const std::string& where) {
  if (!p.temperature_too_low()) return;
  print_stderr(
      "warning: {}: temperature {} is raised to {}: less would overflow (0 = the most likely token)\n", where,
      p.temperature, kLeastTemperature);
  p.temperature = kLeastTemperature;
}

SamplingParams make_sampling_params(const EngineOptions& options, const Json& given) {
  SamplingParams params = default_sampling_params(options);
  const std::string file = generation_config_file(options);
  auto where = [&](const std::string& key) { return given.contains(key) ? "--" + flag_name(key) : file; };
  for (const auto& [key, value] : given.items()) set_sampling_field(params, key, value, where(key));
  // What no model could do is refused before one is loaded. The lines of a file may bring a max_tokens of their own.
  SamplingParams checked = params;
  if (!given.contains("max_tokens")) checked.max_tokens.reset();
  try {
    validate(checked, INT32_MAX, int32_t(std::clamp<int64_t>(options.max_logprobs, -1, INT32_MAX)));
  } catch (const Error& error) {  // what it calls "SamplingParams.top_p" was given by another name
    throw Error(error.problem, where(error.where.substr(error.where.find('.') + 1)), error.hint);
  }
  raise_low_temperature(params, where("temperature"));
  if (!options.sampler && !params.greedy() && given.contains("temperature"))
    print_stderr("note: --no-sampler takes the most likely token: --temperature has no effect\n");
  return params;
}

std::string seed_note(const EngineOptions& options, const SamplingParams& params) {
  const bool repeats = options.sampler && !params.greedy() && !params.seed && options.seed == 0;
  return repeats ? "seed 0: the same again next time (--seed N for another)" : "";
}

}  // namespace nano
