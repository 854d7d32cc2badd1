#include <algorithm>
#include <cctype>
#include <cstdio>
#include <map>

#include <fmt/format.h>

#include "app/cli.h"             // ArgParser
#include "app/commands.h"        // info_command
#include "app/loader.h"          // find_model, make_backend
#include "app/output_json.h"     // json_text
#include "app/resolve.h"         // choose_device, count_parameters, physical_memory
#include "base/error.h"          // Error
#include "checkpoint/weights.h"  // open_weights, read_hf_config
#include "engine/runner.h"       // Runner::batch_bytes
#include "model/kv_cache.h"      // kv_bytes_per_token
#include "model/transformer.h"   // Transformer::activation_bytes, limits

namespace nano {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kDefaultBatchedTokens = 2048, kDefaultSeqs = 128;

// What the memory holds, whatever the machine has: info answers "what if", so nothing is refused here.
struct Ledger {
  int64_t max_model_len = 0, max_num_seqs = 0, scratch = 0, kv_per_token = 0;
  const char* kv_dtype = "";
  int64_t kv_sequence() const { return kv_per_token * max_model_len; }
  int64_t kv_all() const { return kv_sequence() * max_num_seqs; }
};

Ledger make_ledger(const EngineOptions& options, const ModelConfig& config) {
  Ledger l;
  const DType kv = choose_device(options).kv_dtype;
  l.kv_dtype = dtype_name(kv);
  l.kv_per_token = kv_bytes_per_token(config, kv);
  l.max_model_len = options.max_model_len.value_or(-1);
  if (l.max_model_len == -1) l.max_model_len = config.max_position;
  l.max_num_seqs = options.max_num_seqs.value_or(kDefaultSeqs);
  const int64_t tokens = options.max_num_batched_tokens.value_or(kDefaultBatchedTokens);
  for (const auto& [value, flag] :
       {std::pair(l.max_model_len, "--max-model-len"), std::pair(l.max_num_seqs, "--max-num-seqs"),
        std::pair(tokens, "--max-num-batched-tokens"), std::pair(options.block_size, "--block-size")})
    if (value < 1 || value > (1 << 28)) throw Error(fmt::format("{} is out of range", value), flag);
  const auto T = int32_t(tokens), S = int32_t(l.max_num_seqs), len = int32_t(l.max_model_len);
  const auto blocks = int32_t((l.max_model_len + options.block_size - 1) / options.block_size);
  if (double(l.kv_per_token) * double(l.max_model_len) * double(l.max_num_seqs) > 4e18 ||
      double(tokens) * (double(config.C) + config.F + double(config.H) * config.D) > 1e17)
    throw Error("the memory of this shape is too large to count", "info");
  l.scratch = Transformer::activation_bytes(config, T) + Runner::batch_bytes(T, S, blocks) +
              make_backend(options)->scratch_bytes(Transformer::limits(config, T, S, len));
  return l;
}

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
          {"parameters", count_parameters(c)}};
}

void print_config(const ModelConfig& c) {
  fmt::print("architecture  {}: {} layers, hidden {}, ffn {}, vocabulary {}{}, context {}\n", c.architecture,
             c.L, c.C, c.F, c.V, c.tied ? " (tied)" : "", c.max_position);
  fmt::print("attention     {} heads of {}, {} KV heads ({}){}\n", c.H, c.D, c.KVH, attention_kind(c),
             c.sliding_window > 0 ? fmt::format(", window {}", c.sliding_window) : "");
  fmt::print("parameters    {:.1f} million\n", double(count_parameters(c)) / 1e6);
}

struct FormatRow {
  int64_t count = 0, bytes = 0, weights = 0;
  double bits() const { return double(bytes) * 8 / double(weights); }
};

std::map<std::string, FormatRow> by_format(const Weights& weights) {
  std::map<std::string, FormatRow> rows;
  for (const auto& [name, w] : weights.linears()) {
    FormatRow& row = rows[source_name(w)];
    ++row.count, row.bytes += w.file_bytes(), row.weights += w.N * w.K;
  }
  return rows;
}

Json ledger_json(const Ledger& l) {
  return {{"kv_cache_dtype", l.kv_dtype},
          {"kv_bytes_per_token", l.kv_per_token},
          {"max_model_len", l.max_model_len},
          {"max_num_seqs", l.max_num_seqs},
          {"kv_bytes_per_sequence", l.kv_sequence()},
          {"kv_bytes", l.kv_all()},
          {"scratch_bytes", l.scratch}};
}

void print_ledger(const Ledger& l) {
  fmt::print("KV cache      {} a token ({}), {} a sequence of {}, {} for {} of them\n",
             format_bytes(l.kv_per_token), l.kv_dtype, format_bytes(l.kv_sequence()), l.max_model_len,
             format_bytes(l.kv_all()), l.max_num_seqs);
  fmt::print("scratch       {}\n", format_bytes(l.scratch));
}

int info_of_model(const EngineOptions& options, bool json) {
  const std::unique_ptr<Weights> weights =
      open_weights(find_model(options.model), options.load_format == "dummy", uint64_t(options.seed));
  if (!options.quantized_linear) expand_to_float32(*weights);
  resolve_max_model_len(options, weights->config);  // refuses what `run` would refuse
  const Ledger ledger = make_ledger(options, weights->config);
  int64_t bytes = 0;
  Json formats = Json::array();
  const auto rows = by_format(*weights);
  for (const auto& [format, row] : rows) {
    bytes += row.bytes;
    formats.push_back(
        {{"format", format}, {"count", row.count}, {"bytes", row.bytes}, {"bits_per_weight", row.bits()}});
  }
  const int64_t total = bytes + ledger.kv_all() + ledger.scratch;
  if (json) {
    Json out = {{"model", options.model},
                {"file_format", weights->format},
                {"config", config_json(weights->config)},
                {"tensors", formats},
                {"weight_bytes", bytes}};
    out.update(ledger_json(ledger));
    out["total_bytes"] = total;
    out["unused_tensors"] = weights->unused_tensors;
    fmt::print("{}\n", json_text(out, 1));
    return 0;
  }
  fmt::print("{} ({})\n", options.model, weights->format);
  print_config(weights->config);
  for (const auto& [format, row] : rows)
    fmt::print("matrices      {:>4} × {:<9} {:>10}, {:.2f} bits a weight\n", row.count, format,
               format_bytes(row.bytes), row.bits());
  fmt::print("weights       {}\n", format_bytes(bytes));
  print_ledger(ledger);
  fmt::print("total         {}\n", format_bytes(total));
  for (const std::string& name : weights->unused_tensors) fmt::print("unused        {}\n", name);
  return 0;
}

// 16, 8 and 4 bits a weight: what a device of this size would say. The KV cache must hold one sequence at least.
int info_of_shape(const EngineOptions& options, bool json, int64_t parameters, const ModelConfig* config) {
  Json out = {{"parameters", parameters}};
  int64_t besides = 0;
  if (config) {
    const Ledger ledger = make_ledger(options, *config);
    besides = ledger.scratch + ledger.kv_sequence();
    out["config"] = config_json(*config);
    out.update(ledger_json(ledger));
    if (!json) print_config(*config), print_ledger(ledger);
  } else if (!json) {
    fmt::print("parameters    {:.1f} million\n", double(parameters) / 1e6);
  }
  const double usable =
      double(options.device_memory.value_or(physical_memory())) * options.gpu_memory_utilization;
  out["usable_bytes"] = int64_t(usable);
  out["weights"] = Json::array();
  for (int bits : {16, 8, 4}) {
    const int64_t bytes = parameters * bits / 8, total = bytes + besides;
    const bool fits = double(total) <= usable;
    out["weights"].push_back(
        {{"bits", bits}, {"bytes", bytes}, {"bytes_with_one_sequence", total}, {"fits", fits}});
    if (json) continue;
    fmt::print("at {:2} bits    {} weights", bits, format_bytes(bytes));
    if (besides > 0)
      fmt::print(" + {} scratch and one sequence = {}", format_bytes(besides), format_bytes(total));
    fmt::print(": {} {}\n", fits ? "fits in" : "does not fit in", format_bytes(int64_t(usable)));
  }
  if (json) fmt::print("{}\n", json_text(out, 1));
  return 0;
}

// Of parameters, 7B and 135M are said in thousands of millions, not in bytes and powers of two.
std::string billions(std::string text) {
  if (text.size() < 2 || !std::isdigit(static_cast<unsigned char>(text[text.size() - 2]))) return text;
  const char unit = text.back();
  if (unit == 'B' || unit == 'M') text.pop_back(), text += unit == 'B' ? "e9" : "e6";
  return text;
}

}  // namespace

int info_command(const Args& args) {
  EngineOptions options;
  std::string config_file, parameters;
  bool json = false;
  ArgParser parser(
      "info",
      "Architecture, tensors by format, and the memory ledger: weights, KV cache at\n"
      "max-model-len × max-num-seqs, scratch. Without a model: --config or --params, at 16, 8 and 4 bits\n"
      "a weight, and whether that fits in --device-memory × --gpu-memory-utilization.");
  add_engine_flags(parser, options);
  parser.heading("What to show");
  parser.add("config", config_file, "a config.json: the ledger of a model that is not here");
  parser.add("params", parameters, "only a number of parameters, e.g. 70e9");
  parser.add("json", json, "one JSON object");
  if (!parser.parse(args)) return 0;
  check_utilization(options.gpu_memory_utilization);
  if (!config_file.empty() || !parameters.empty()) {
    no_more_positionals(parser);
    if (!config_file.empty() && !parameters.empty())
      parser.refuse("--config and --params exclude each other");
    if (!parameters.empty()) {
      const double number = double(parse_human_int(billions(parameters), parser.where("params")));
      if (number < 1 || number > 1e17) parser.refuse("--params is out of range");
      return info_of_shape(options, json, int64_t(number), nullptr);
    }
    const ModelConfig config = read_hf_config(config_file);
    return info_of_shape(options, json, count_parameters(config), &config);
  }
  take_model(parser, options);
  no_more_positionals(parser);
  return info_of_model(options, json);
}

}  // namespace nano
