#include "llm/sampling_json.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "llm/loader.h"        // find_model
#include "app/terminal.h"      // print_stderr
#include "base/error.h"        // Error
#include "base/json.h"         // parse_json
#include "base/mapped_file.h"  // read_file

namespace nano {

namespace {

using Json = nlohmann::json;

constexpr int32_t kDefaultMaxTokens = 256;  // vLLM's 16 is for programs, this is for people

[[noreturn]] void wrong_type(const std::string& where, const std::string& key, const char* wanted) {
  throw Error("'" + key + "' must be " + wanted, where);
}

int64_t integer(const Json& value, int64_t low, int64_t high, const std::string& where,
                const std::string& key) {
  const bool whole = value.is_number_float() && value.get<double>() == std::floor(value.get<double>()) &&
                     std::fabs(value.get<double>()) < 9e18;
  const bool too_large = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(INT64_MAX);
  if (!value.is_number_integer() && !whole) wrong_type(where, key, "an integer");
  const int64_t number = whole ? int64_t(value.get<double>()) : value.get<int64_t>();
  if (too_large || number < low || number > high)
    throw Error(fmt::format("'{}' is out of range: from {} to {}", key, low, high), where);
  return number;
}

void set_seed(SamplingParams& p, const Json& value, const std::string& where) {
  p.seed = integer(value, INT64_MIN, INT64_MAX, where, "seed");
}

void set_max_tokens(SamplingParams& p, const Json& value, const std::string& where) {
  p.max_tokens = integer32(value, where, "max_tokens");
  if (p.max_tokens == -1) p.max_tokens.reset();  // to the end of the context
}

void set_stop(SamplingParams& p, const Json& value, const std::string& where) {
  p.stop.clear();
  const Json list = value.is_string() ? Json::array({value}) : value;
  if (!list.is_array()) wrong_type(where, "stop", "a string or a list of strings");
  for (const Json& item : list) {
    if (!item.is_string()) wrong_type(where, "stop", "a string or a list of strings");
    p.stop.push_back(item.get<std::string>());
  }
}

void set_logit_bias(SamplingParams& p, const Json& value, const std::string& where) {
  if (!value.is_object()) wrong_type(where, "logit_bias", "an object {\"token id\": bias}");
  p.logit_bias.clear();
  for (const auto& [key, bias] : value.items()) {
    if (!bias.is_number()) wrong_type(where, "logit_bias", "an object {\"token id\": bias}");
    p.logit_bias[parse_id(key, where + ": logit_bias")] = bias.get<float>();
  }
}

using P = SamplingParams;
using Set = void (*)(P& p, const Json& value, const std::string& where);  // for what no member alone says
using IdList = std::vector<int32_t>;

struct Field {
  const char* name;  // vLLM's; the flag has dashes
  std::variant<float P::*, bool P::*, int32_t P::*, std::optional<int32_t> P::*, IdList P::*, Set> field;
  const char* value;  // of the flag: X, N, 1,2,3, JSON or TEXT; "" = on or off; null = there is no flag
  const char* help;
};

const Field kFields[] = {
    {"temperature", &P::temperature, "X", "0 = always the most likely token; 1 = as the model says"},
    {"top_p", &P::top_p, "X", "keep the most likely tokens that together have this probability; 1 = all"},
    {"min_p", &P::min_p, "X", "drop tokens below this share of the most likely one's probability"},
    {"repetition_penalty", &P::repetition_penalty, "X", "above 1: tokens of prompt and output get rarer"},
    {"frequency_penalty", &P::frequency_penalty, "X", "subtracted once for each time in the output"},
    {"presence_penalty", &P::presence_penalty, "X", "subtracted if in the output at all"},
    {"top_k", &P::top_k, "N", "keep the k most likely tokens; 0 = all"},
    {"n", &P::n, "N", "this many answers to each prompt; they share its blocks"},
    {"max_tokens", set_max_tokens, "N",
     "longest answer; -1 = to the end of the context [256; in vLLM's API 16]"},
    {"min_tokens", &P::min_tokens, "N", "no end before this many tokens"},
    {"logprobs", &P::logprobs, "N", "log-probabilities of the k best tokens, with --json"},
    {"prompt_logprobs", &P::prompt_logprobs, "N", "the same for the prompt's tokens"},
    {"seed", set_seed, nullptr, ""},  // --seed is the engine's
    {"stop", set_stop, "TEXT", "end before this text; may be given several times"},
    {"stop_token_ids", &P::stop_token_ids, "1,2,3", "end at any of these tokens"},
    {"allowed_token_ids", &P::allowed_token_ids, "1,2,3", "nothing but these tokens"},
    {"logit_bias", set_logit_bias, "JSON", "{\"token id\": what is added to its logit}"},
    {"ignore_eos", &P::ignore_eos, "", "go on after the end-of-sequence token"},
    {"include_stop_str_in_output", &P::include_stop_str_in_output, "", "leave the stop string in the text"},
    {"skip_special_tokens", &P::skip_special_tokens, "", "leave control tokens out of the text"},
};

void set_field(P& p, const std::string& key, float P::*field, const Json& value, const std::string& where) {
  if (!value.is_number()) wrong_type(where, key, "a number");
  p.*field = value.get<float>();
}
void set_field(P& p, const std::string& key, bool P::*field, const Json& value, const std::string& where) {
  if (!value.is_boolean()) wrong_type(where, key, "true or false");
  p.*field = value.get<bool>();
}
template <class Integer>  // int32_t, or one that may be missing
void set_field(P& p, const std::string& key, Integer P::*field, const Json& value, const std::string& where) {
  p.*field = integer32(value, where, key);
}
void set_field(P& p, const std::string& key, IdList P::*field, const Json& value, const std::string& where) {
  p.*field = id_list(value, where, key);
}
void set_field(P& p, const std::string&, Set set, const Json& value, const std::string& where) {
  set(p, value, where);
}

Json flag_value(const std::string& kind, const std::string& text, const std::string& where) {
  if (kind == "X") return parse_real(text, where);
  if (kind == "N") return parse_human_int(text, where);
  if (kind == "1,2,3") return parse_id_list(text, where);
  if (kind == "JSON") return parse_json(text, where);
  return text;
}

// " [1]": the value of a member that always has one.
std::string default_of(const Field& f) {
  const SamplingParams p;
  if (auto real = std::get_if<float P::*>(&f.field)) return fmt::format(" [{}]", p.**real);
  if (auto whole = std::get_if<int32_t P::*>(&f.field)) return fmt::format(" [{}]", p.**whole);
  if (auto flag = std::get_if<bool P::*>(&f.field)) return p.**flag ? " [on]" : " [off]";
  return "";
}

std::string flag_name(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

}  // namespace

int32_t integer32(const Json& value, const std::string& where, const std::string& key) {
  return int32_t(integer(value, INT32_MIN, INT32_MAX, where, key));
}

std::vector<int32_t> id_list(const Json& value, const std::string& where, const std::string& key) {
  if (!value.is_array()) wrong_type(where, key, "a list of token ids");
  std::vector<int32_t> ids;
  for (const Json& id : value) ids.push_back(integer32(id, where, key));
  return ids;
}

bool set_sampling_field(SamplingParams& p, const std::string& key, const Json& value,
                        const std::string& where) {
  const auto known =
      std::find_if(std::begin(kFields), std::end(kFields), [&](const Field& f) { return key == f.name; });
  if (known == std::end(kFields)) return false;
  if (!value.is_null()) std::visit([&](auto field) { set_field(p, key, field, value, where); }, known->field);
  return true;
}

void add_sampling_flags(ArgParser& parser, Json& given) {
  given = Json::object();
  parser.heading("Sampling (vLLM's SamplingParams) {sampler}");
  for (const Field& f : kFields) {
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

void warn_of_low_temperature(const SamplingParams& p, const std::string& where) {
  if (p.temperature_too_low())
    print_stderr(
        "warning: {}: temperature {} is raised to {}: less would overflow (0 = the most likely token)\n",
        where, p.temperature, kLeastTemperature);
}

SamplingParams make_sampling_params(const EngineOptions& options, const Json& given) {
  SamplingParams params;
  params.max_tokens = kDefaultMaxTokens;
  const std::string file = find_model(options.model) + "/generation_config.json";
  if (options.generation_config == "auto" && std::filesystem::exists(file)) {
    const Json config = parse_json(read_file(file), file);
    for (const char* key : {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"})
      if (config.is_object() && config.contains(key)) set_sampling_field(params, key, config[key], file);
  }
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
  warn_of_low_temperature(params, where("temperature"));
  return params;
}

}  // namespace nano
