#include "app/sampling_json.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include <fmt/format.h>

#include "app/loader.h"        // find_model
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

int32_t integer32(const Json& value, const std::string& where, const std::string& key) {
  return int32_t(integer(value, INT32_MIN, INT32_MAX, where, key));
}

std::vector<int32_t> id_list(const Json& value, const std::string& where, const std::string& key) {
  if (!value.is_array()) wrong_type(where, key, "a list of token ids");
  std::vector<int32_t> ids;
  for (const Json& id : value) ids.push_back(integer32(id, where, key));
  return ids;
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

void set_max_tokens(SamplingParams& p, int32_t value) {
  p.max_tokens.reset();  // -1: to the end of the context
  if (value != -1) p.max_tokens = value;
}

void set_logit_bias(SamplingParams& p, const Json& value, const std::string& where) {
  if (!value.is_object()) wrong_type(where, "logit_bias", "an object {\"token id\": bias}");
  p.logit_bias.clear();
  for (const auto& [key, bias] : value.items()) {
    if (!bias.is_number()) wrong_type(where, "logit_bias", "an object {\"token id\": bias}");
    const std::vector<int32_t> ids = parse_id_list(key, where + ": logit_bias");
    p.logit_bias[ids.at(0)] = bias.get<float>();
  }
}

struct RealField {
  const char* name;
  float SamplingParams::*field;
  const char* help;
};
const RealField kReals[] = {
    {"temperature", &SamplingParams::temperature, "0 = always the most likely token; 1 = as the model says"},
    {"top_p", &SamplingParams::top_p,
     "keep the most likely tokens that together have this probability; 1 = all"},
    {"min_p", &SamplingParams::min_p, "drop tokens below this share of the most likely one's probability"},
    {"repetition_penalty", &SamplingParams::repetition_penalty,
     "above 1: tokens of prompt and output get rarer"},
    {"frequency_penalty", &SamplingParams::frequency_penalty, "subtracted once for each time in the output"},
    {"presence_penalty", &SamplingParams::presence_penalty, "subtracted if in the output at all"},
};

struct BoolField {
  const char* name;
  bool SamplingParams::*field;
  const char* help;
};
const BoolField kBools[] = {
    {"ignore_eos", &SamplingParams::ignore_eos, "go on after the end-of-sequence token"},
    {"include_stop_str_in_output", &SamplingParams::include_stop_str_in_output,
     "leave the stop string in the text"},
    {"skip_special_tokens", &SamplingParams::skip_special_tokens, "leave control tokens out of the text"},
};

std::string flag_name(std::string name) {
  for (char& c : name)
    if (c == '_') c = '-';
  return name;
}

}  // namespace

bool set_sampling_field(SamplingParams& p, const std::string& key, const Json& value,
                        const std::string& where) {
  for (const RealField& real : kReals)
    if (key == real.name) {
      if (value.is_null()) return true;
      if (!value.is_number()) wrong_type(where, key, "a number");
      p.*real.field = value.get<float>();
      return true;
    }
  for (const BoolField& boolean : kBools)
    if (key == boolean.name) {
      if (value.is_null()) return true;
      if (!value.is_boolean()) wrong_type(where, key, "true or false");
      p.*boolean.field = value.get<bool>();
      return true;
    }
  using Set = std::function<void()>;
  const std::pair<const char*, Set> others[] = {
      {"n", [&] { p.n = integer32(value, where, key); }},
      {"top_k", [&] { p.top_k = integer32(value, where, key); }},
      {"seed", [&] { p.seed = integer(value, INT64_MIN, INT64_MAX, where, key); }},
      {"max_tokens", [&] { set_max_tokens(p, integer32(value, where, key)); }},
      {"min_tokens", [&] { p.min_tokens = integer32(value, where, key); }},
      {"stop", [&] { set_stop(p, value, where); }},
      {"stop_token_ids", [&] { p.stop_token_ids = id_list(value, where, key); }},
      {"logprobs", [&] { p.logprobs = integer32(value, where, key); }},
      {"prompt_logprobs", [&] { p.prompt_logprobs = integer32(value, where, key); }},
      {"logit_bias", [&] { set_logit_bias(p, value, where); }},
      {"allowed_token_ids", [&] { p.allowed_token_ids = id_list(value, where, key); }},
  };
  for (const auto& [name, set] : others)
    if (key == name) {
      if (!value.is_null()) set();
      return true;
    }
  return false;
}

void add_sampling_flags(ArgParser& parser, Json& given) {
  given = Json::object();
  parser.heading("Sampling (vLLM's SamplingParams) {sampler}");
  const SamplingParams defaults;
  for (const RealField& f : kReals) {
    const std::string flag = flag_name(f.name), key = f.name;
    parser.option(flag, "X", fmt::format("{} [{}]", f.help, defaults.*f.field),
                  [&parser, &given, flag, key](const std::string& v) {
                    given[key] = parse_real(v, parser.where(flag));
                  });
  }
  auto integer_flag = [&](const std::string& key, const std::string& help) {
    const std::string flag = flag_name(key);
    parser.option(flag, "N", help, [&parser, &given, flag, key](const std::string& v) {
      given[key] = parse_human_int(v, parser.where(flag));
    });
  };
  integer_flag("top_k", "keep the k most likely tokens; 0 = all [0]");
  integer_flag("n", "this many answers to each prompt; they share its blocks [1]");
  integer_flag("max_tokens", "longest answer; -1 = to the end of the context [256; in vLLM's API 16]");
  integer_flag("min_tokens", "no end before this many tokens [0]");
  integer_flag("logprobs", "log-probabilities of the k best tokens, with --json");
  integer_flag("prompt_logprobs", "the same for the prompt's tokens");
  parser.option("stop", "TEXT", "end before this text; may be given several times",
                [&given](const std::string& v) { given["stop"].push_back(v); });
  for (const char* key : {"stop_token_ids", "allowed_token_ids"}) {
    const std::string flag = flag_name(key), name = key;
    parser.option(flag, "1,2,3", name[0] == 's' ? "end at any of these tokens" : "nothing but these tokens",
                  [&parser, &given, flag, name](const std::string& v) {
                    given[name] = parse_id_list(v, parser.where(flag));
                  });
  }
  parser.option(
      "logit-bias", "JSON", "{\"token id\": what is added to its logit}",
      [&](const std::string& v) { given["logit_bias"] = parse_json(v, parser.where("logit-bias")); });
  for (const BoolField& f : kBools) {
    const std::string key = f.name;
    parser.flag(flag_name(key), std::string(f.help) + (defaults.*f.field ? " [on]" : " [off]"),
                [&given, key](bool on) { given[key] = on; });
  }
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
  for (const auto& [key, value] : given.items())
    set_sampling_field(params, key, value, "nano --" + flag_name(key));
  // What no model could do is refused before one is loaded. The lines of a file may bring a max_tokens of their own.
  SamplingParams checked = params;
  if (!given.contains("max_tokens")) checked.max_tokens.reset();
  validate(checked, INT32_MAX, int32_t(std::clamp<int64_t>(options.max_logprobs, -1, INT32_MAX)));
  return params;
}

}  // namespace nano
