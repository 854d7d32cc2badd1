#include <algorithm>
#include <cctype>
#include <cstdio>
#include <map>

#include <fmt/format.h>

#include "app/cli.h"             // ArgParser
#include "base/error.h"          // Error
#include "checkpoint/weights.h"  // read_hf_config
#include "llm/loader.h"          // open_model, make_backend, memory_report, packed_bytes
#include "llm/output_json.h"     // filled, json_text
#include "llm/resolve.h"         // count_parameters, most_device_memory, resolve_unplanned

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

struct InfoOptions {
  EngineOptions engine;
  int64_t kv_heads = 0;    // what if there were so many; 0 = as it is
  double weight_bits = 0;  // the same
};

std::string attention_kind(const ModelConfig& c) {
  if (c.KVH == c.H) return "MHA: each head has its own K and V";
  if (c.KVH == 1) return fmt::format("MQA: {} heads share one K and V", c.H);
  return fmt::format("GQA: {} heads share a K and V, the cache is {} times smaller than with MHA",
                     c.H / c.KVH, c.H / c.KVH);
}

Json config_json(const ModelConfig& c) {
  return {{"architecture", c.architecture},
          {"layers", c.L},
          {"hidden_size", c.C},
          {"intermediate_size", c.F},
          {"heads", c.H},
          {"kv_heads", c.KVH},
          {"head_dim", c.D},
          {"vocab_size", c.V},
          {"max_position", c.max_position},
          {"tied", c.tied},
          {"sliding_window", c.sliding_window},
          {"heads_per_kv_head", c.H / c.KVH},
          {"attention", attention_kind(c)},
          {"parameters", count_parameters(c)}};
}

// What a full house takes, whatever the machine has: that is what `info` is asked.
Json ledger_json(const Resolved& r) {
  const int64_t sequence = r.memory.kv_bytes_per_token * r.scheduler.max_model_len;
  return {{"kv_cache_dtype", dtype_name(r.device.kv_dtype)},
          {"kv_bytes_per_token", r.memory.kv_bytes_per_token},
          {"max_model_len", r.scheduler.max_model_len},
          {"max_num_seqs", r.scheduler.max_num_seqs},
          {"kv_bytes_per_sequence", sequence},
          {"kv_bytes", sequence * r.scheduler.max_num_seqs},
          {"scratch_bytes", r.memory.scratch}};
}

ModelConfig what_if(ModelConfig config, const InfoOptions& o) {
  if (o.kv_heads == 0) return config;
  if (o.kv_heads < 0 || config.H % o.kv_heads != 0)
    throw Error(fmt::format("must divide the {} heads", config.H), "--kv-heads");
  config.KVH = int32_t(o.kv_heads);
  return config;
}

// What the KV cache has room for at once: full-length sequences, and shorter ones. Empty where `run` refuses.
Json sequences_json(MemoryPlan plan) {
  Json rows = Json::array();
  try {
    plan_memory(plan);
  } catch (const Error&) {
    return rows;
  }
  for (int64_t tokens = plan.max_model_len; tokens > 0 && rows.size() < 3; tokens /= 4)
    rows.push_back({{"tokens", tokens}, {"sequences", plan.num_blocks / ceil_div(tokens, plan.block_size)}});
  return rows;
}

// About what `run` would say: it will know the packed weights' size, which is nearly that in the file. With
// --device-memory the KV cache differs by as much.
std::string run_says(MemoryPlan plan) {
  try {
    plan_memory(plan);
    return memory_report(plan);
  } catch (const Error& refusal) {
    return std::string(refusal.what()) + "\n";
  }
}

Json formats_json(const Weights& weights) {
  struct Row {
    int64_t count = 0, bytes = 0, weights = 0;
  };
  std::map<std::string, Row> rows;
  for (const auto& [name, w] : weights.linears()) {
    Row& row = rows[source_name(w)];
    ++row.count, row.bytes += w.file_bytes(), row.weights += w.N * w.K;
  }
  Json list = Json::array();
  for (const auto& [format, row] : rows)
    list.push_back({{"format", format},
                    {"count", row.count},
                    {"bytes", row.bytes},
                    {"bits_per_weight", double(row.bytes) * 8 / double(row.weights)}});
  return list;
}

Json info_of_model(const InfoOptions& o) {
  const EngineOptions& options = o.engine;
  const std::unique_ptr<Weights> weights = open_model(options);
  const ModelConfig config = what_if(weights->config, o);
  int64_t bytes = 0, count = 0, packed = packed_bytes(*weights);
  for (const auto& [name, w] : weights->linears()) {
    bytes += w.file_bytes(), count += w.N * w.K;
    if (!name.ends_with(".k") && !name.ends_with(".v")) continue;
    const int64_t heads = weights->config.KVH, more = config.KVH - heads;  // with --kv-heads
    bytes += more * (w.file_bytes() / heads), packed += more * (w.file_bytes() / heads);
    count += more * (w.N / heads) * w.K;
  }
  if (o.weight_bits > 0) packed = bytes = int64_t(o.weight_bits / 8 * double(count));
  const Resolved r = resolve_unplanned(options, config, packed, *make_backend(options));
  Json info = {{"model", options.model},
               {"file_format", weights->format},
               {"config", config_json(config)},
               {"tensors", formats_json(*weights)},
               {"weight_bytes", bytes},
               {"bits_per_weight", double(bytes) * 8 / double(count)},
               {"sequences_that_fit", sequences_json(r.memory)}};
  info.update(ledger_json(r));
  info["total_bytes"] = bytes + info["kv_bytes"].get<int64_t>() + r.memory.scratch;
  info["run_says"] = run_says(r.memory);
  info["unused_tensors"] = weights->unused_tensors;
  return info;
}

// 16, 8 and 4 bits a weight: what a device of this size would say. The KV cache must hold one sequence at least.
Json info_of_shape(const InfoOptions& o, int64_t parameters, ModelConfig* config) {
  const EngineOptions& options = o.engine;
  Json info = {{"parameters", parameters}};
  int64_t besides = 0;
  if (config) {
    // Of a model that is not here one may ask what a longer context would take.
    config->max_position =
        int32_t(std::clamp<int64_t>(options.max_model_len.value_or(0), config->max_position, INT32_MAX));
    const Resolved r = resolve_unplanned(options, *config, 0, *make_backend(options));
    info["config"] = config_json(*config);
    info.update(ledger_json(r));
    besides = r.memory.scratch + r.memory.kv_bytes_per_token * r.scheduler.max_model_len;
  }
  const double usable = double(most_device_memory(options)) * options.gpu_memory_utilization;
  info["usable_bytes"] = int64_t(usable);
  info["weights"] = Json::array();
  for (double bits : o.weight_bits > 0 ? std::vector{o.weight_bits} : std::vector{16.0, 8.0, 4.0}) {
    const int64_t bytes = int64_t(double(parameters) * bits / 8), total = bytes + besides;
    info["weights"].push_back({{"bits", bits},
                               {"bytes", bytes},
                               {"bytes_with_one_sequence", total},
                               {"fits", double(total) <= usable}});
  }
  return info;
}

std::string info_text(const Json& info) {
  std::string text;
  auto add = [&](const char* line, const Json& values) { text += filled(line, values); };
  if (info.contains("model")) add("{model} ({file_format})\n", info);
  if (info.contains("config"))
    add("architecture  {architecture}: {layers} layers, hidden {hidden_size}, ffn {intermediate_size}, "
        "vocabulary {vocab_size} (tied to the head: {tied}), context {max_position}\n"
        "attention     {heads} heads of {head_dim}, {kv_heads} KV heads ({attention}), window "
        "{sliding_window} (0 = all)\n",
        info["config"]);
  const Json& parameters = info.contains("config") ? info["config"]["parameters"] : info["parameters"];
  const auto count = parameters.get<double>();
  text += fmt::format("parameters    {} {}\n", three_digits(count / (count < 1e9 ? 1e6 : 1e9)),
                      count < 1e9 ? "million" : "billion");
  for (const Json& row : info.value("tensors", Json::array()))
    add("matrices      {count:>4} × {format:<9} {bytes:>10}, {bits_per_weight:.2f} bits a weight\n", row);
  if (info.contains("kv_bytes"))
    add("KV cache      {kv_bytes_per_token} a token ({kv_cache_dtype}), {kv_bytes_per_sequence} a sequence "
        "of {max_model_len}, {kv_bytes} for {max_num_seqs} of them\n"
        "scratch       {scratch_bytes}\n",
        info);
  if (info.contains("model"))
    add("\nHow large are the weights?\n  {weight_bytes}, {bits_per_weight:.2f} bits each\n"
        "What would take max-num-seqs sequences at full length, without waiting?\n"
        "  {total_bytes}: weights {weight_bytes}, KV cache {kv_bytes}, scratch {scratch_bytes}\n"
        "What does `build/nano run` take with these flags, about?\n{run_says}",
        info);
  std::string fit;
  for (const Json& row : info.value("sequences_that_fit", Json::array()))
    fit += filled(fit.empty() ? "  {sequences} of {tokens} tokens" : ", or {sequences} of {tokens}", row);
  if (!fit.empty()) text += "How many sequences fit in that KV cache at once?\n" + fit + "\n";
  for (const Json& row : info.value("weights", Json::array())) {
    add("at {bits:4g} bits  {bytes} weights", row);
    if (info.contains("config")) add(" + scratch and one sequence = {bytes_with_one_sequence}", row);
    add(row["fits"] ? ": fits in {usable_bytes}\n" : ": does not fit in {usable_bytes}\n", info);
  }
  for (const Json& name : info.value("unused_tensors", Json::array()))
    text += "unused        " + name.get<std::string>() + "\n";
  return text;
}

// Of parameters, 2T, 7B and 135M are said in thousands of millions, not in bytes and powers of two.
std::string billions(std::string text) {
  if (text.size() < 2 || !std::isdigit(static_cast<unsigned char>(text[text.size() - 2]))) return text;
  const char unit = text.back();
  if (unit == 'T' || unit == 'B' || unit == 'M')
    text.pop_back(), text += unit == 'T' ? "e12" : unit == 'B' ? "e9" : "e6";
  return text;
}

}  // namespace

int info_command(const Args& args) {
  InfoOptions o;
  EngineOptions& options = o.engine;
  std::string config_file, parameters;
  bool json = false;
  ArgParser parser(
      "info",
      "Architecture, tensors by format, and the memory ledger: weights, KV cache at\n"
      "max-model-len × max-num-seqs, scratch. Without a model: --config or --params, at 16, 8 and 4 bits\n"
      "a weight, and whether that fits in --device-memory × --gpu-memory-utilization.");
  add_engine_flags(parser, options);
  parser.heading("What to show");
  // These stand in MODEL's place.
  parser.option("config", "FILE", "a config.json: the ledger of a model that is not here",
                [&](const std::string& v) { config_file = options.model = v; });
  parser.option("params", "N", "only a number of parameters, e.g. 70e9",
                [&](const std::string& v) { parameters = options.model = v; });
  parser.add("kv-heads", o.kv_heads, "what if it had this many KV heads", 0, INT32_MAX);
  parser.add("weight-bits", o.weight_bits, "what if a weight took this many bits, e.g. 4.5");
  parser.add("json", json, "one JSON object");
  if (!parser.parse(args)) return 0;
  check_utilization(options.gpu_memory_utilization);
  if (!(o.weight_bits >= 0 && o.weight_bits <= 64)) parser.refuse("--weight-bits must be from 0 to 64");
  Json info;
  if (!config_file.empty() && !parameters.empty()) {
    parser.refuse("--config and --params exclude each other");
  } else if (!parameters.empty() && o.kv_heads > 0) {
    parser.refuse("--kv-heads needs a model or --config");
  } else if (!parameters.empty()) {
    const double number = double(parse_human_int(billions(parameters), parser.where("params")));
    if (number < 1 || number > 1e17) parser.refuse("--params is out of range");
    info = info_of_shape(o, int64_t(number), nullptr);
  } else if (!config_file.empty()) {
    ModelConfig config = what_if(read_hf_config(config_file), o);
    info = info_of_shape(o, count_parameters(config), &config);
  } else {
    info = info_of_model(o);
  }
  fmt::print("{}", json ? json_text(info, 1) + "\n" : info_text(info));
  return 0;
}

}  // namespace nano
