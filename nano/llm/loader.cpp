#include "llm/loader.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"       // Error
#include "base/format.h"      // format_bytes, closest
#include "base/team.h"        // team_size
#include "llm/output_file.h"  // check_output_file

namespace nano {

namespace {

namespace fs = std::filesystem;

// Names are looked up beside the binary's repository (build/nano → ..) and in the current directory.
std::vector<fs::path> roots() {
  std::vector<fs::path> list{fs::current_path()};
  std::error_code ignored;
  const fs::path binary = fs::read_symlink("/proc/self/exe", ignored);
  for (fs::path dir = binary.parent_path(); dir.has_relative_path(); dir = dir.parent_path())
    if (fs::exists(dir / "lessons" / "models", ignored)) {
      list.push_back(dir);
      break;
    }
  return list;
}

std::string trace_header(const LoadedEngine& loaded) {
  const ModelConfig& c = loaded.model->config;
  nlohmann::ordered_json header;
  header["model"] = {{"path", loaded.options.model},
                     {"architecture", c.architecture},
                     {"L", c.L},
                     {"C", c.C},
                     {"H", c.H},
                     {"KVH", c.KVH},
                     {"D", c.D},
                     {"F", c.F},
                     {"V", c.V}};
  header["flags"] = nlohmann::ordered_json::parse(options_json(loaded.options));
  header["machine"] = {{"backend", loaded.backend->describe()}, {"cores", sysconf(_SC_NPROCESSORS_ONLN)}};
  header["block_size"] = loaded.resolved.block_size;
  header["num_blocks"] = loaded.kv.num_blocks;
  header["max_num_batched_tokens"] = loaded.resolved.scheduler.max_num_batched_tokens;
  header["max_num_seqs"] = loaded.resolved.scheduler.max_num_seqs;
  return header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// Before the weights are packed, by their size in the file: packing adds the norms, and fills up panels of rows.
void refuse_early(const EngineOptions& options, const Weights& weights, const Backend& backend) {
  const int64_t bytes = packed_bytes(weights), memory = physical_memory();
  MemoryPlan plan = resolve_unplanned(options, weights.config, bytes, backend).memory;
  plan.slack = bytes / 10 + (int64_t(1) << 20);
  plan_memory(plan);
  if (bytes > memory)
    throw Error(fmt::format("the weights take {}, and this machine has {}", format_bytes(bytes),
                            format_bytes(memory)),
                options.model, "take a smaller model");
}

// The system hands out addresses freely and memory only when it is touched, so the bookkeeping of the blocks, which
// is touched at once, is what must fit.
void allocate_cache(LoadedEngine& e) {
  constexpr int64_t kBookkeeping = 128;  // bytes a block, about
  const MemoryPlan& m = e.resolved.memory;
  const char* flag = m.num_gpu_blocks_override ? "--num-gpu-blocks-override"
                     : m.kv_cache_memory_bytes ? "--kv-cache-memory-bytes"
                                               : "--device-memory";
  const Error too_large(fmt::format("this machine cannot hold a KV cache of {} in {} blocks",
                                    format_bytes(m.kv_bytes), m.num_blocks),
                        flag, "give less");
  if (m.num_blocks * kBookkeeping > physical_memory() / 2) throw too_large;
  try {
    e.kv = allocate_kv_cache(*e.backend, e.model->config, e.resolved.device.kv_dtype, m.num_blocks,
                             e.resolved.block_size);
  } catch (const Error&) {
    throw too_large;
  }
}

}  // namespace

std::unique_ptr<Weights> open_model(const EngineOptions& options) {
  std::unique_ptr<Weights> weights =
      open_weights(model_path(options), options.load_format == "dummy", uint64_t(options.seed));
  if (!options.quantization.empty() && options.quantization != weights->quantization)
    throw Error("Quantization method of the checkpoint (" +
                    (weights->quantization.empty() ? std::string("none") : weights->quantization) +
                    ") does not match the `quantization` argument (" + options.quantization + ")",
                "--quantization", "leave the flag out: the checkpoint says what it is");
  if (!options.quantized_linear) weights->expand_to_float32();
  return weights;
}

int64_t packed_bytes(const Weights& weights) {
  int64_t bytes = weights.embedding_bytes();
  for (const auto& [name, w] : weights.linears())
    if (!weights.only_looked_up(name)) bytes += w.file_bytes();
  return bytes;
}

std::unique_ptr<Backend> make_backend(const EngineOptions& options) {
  const DeviceChoice choice = choose_device(options);
  if (options.threads < 0 || options.threads > 4096) throw Error("must be from 0 to 4096", "--threads");
  if (choice.device == "ref") return make_ref_backend(choice.activations);
  return make_cpu_backend(choice.activations, int32_t(options.threads), /*exact_threads=*/false,
                          options.cpu_isa);
}

std::string find_model(const std::string& name) {
  std::error_code ignored;
  if (fs::exists(name, ignored)) return name;
  const std::map<std::string, std::string> known = {
      {"tiny", "lessons/models/tiny-Q8_0.gguf"},
      {"tiny-draft", "lessons/models/tiny-draft-Q8_0.gguf"},
      {"smollm2", "models/SmolLM2-135M-Instruct.Q4_1.gguf"},
  };
  if (auto it = known.find(name); it != known.end())
    for (const fs::path& root : roots())
      if (fs::exists(root / it->second, ignored)) return (root / it->second).string();
  const std::string near = closest(name, {"tiny", "tiny-draft", "smollm2"});
  throw Error("no such file or directory, nor a model that is here by name", name,
              name == "smollm2" ? "`make models` fetches it"
              : near.empty()    ? "names: tiny, tiny-draft, smollm2"
                                : "did you mean " + near + "?");
}

std::string model_path(const EngineOptions& options) {
  std::string path = find_model(options.model);
  const bool dummy = options.load_format == "dummy";
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return dummy ? path + "/config.json" : path;
  char begin[4] = {};
  std::ifstream(path, std::ios::binary).read(begin, sizeof begin);
  if (!dummy && begin[0] == '{')
    throw Error(
        "a JSON file is no model", path,
        "MODEL is a .gguf file or the directory of a config.json and its weights; of a config.json alone, "
        "`info --config` tells the sizes, and --load-format dummy makes weights up");
  if (dummy && std::string(begin, sizeof begin) == "GGUF")
    throw Error("--load-format dummy needs a config.json, and this is a GGUF file", path,
                "give a config.json, or the directory that holds one");
  return path;
}

std::unique_ptr<LoadedEngine> load_engine(const EngineOptions& options, int32_t tokenizer_size,
                                          const std::vector<int32_t>& stop_ids, const Progress& progress,
                                          const Observe& observe) {
  auto loaded = std::make_unique<LoadedEngine>();
  LoadedEngine& e = *loaded;
  e.options = options;
  model_path(options);  // a model that is not there goes first
  check_output_file("--trace", options.trace, options);

  e.backend = make_backend(options);
  if (observe) e.backend = observe(std::move(e.backend));
  e.weights = open_model(options);
  refuse_early(options, *e.weights, *e.backend);

  e.model = std::make_unique<Transformer>(*e.weights, *e.backend, progress);
  e.resolved = resolve(options, e.model->config, e.backend->allocated(Memory::weights), *e.backend);
  const SchedulerConfig& s = e.resolved.scheduler;
  allocate_cache(e);
  e.runner = std::make_unique<Runner>(*e.model, e.kv, *e.backend, s.max_num_batched_tokens, s.max_num_seqs,
                                      s.max_model_len);
  if (options.warmup && e.resolved.device.device != "ref") e.runner->warm_up();

  EngineConfig config;
  config.scheduler = s;
  config.enable_prefix_caching = e.resolved.enable_prefix_caching;
  config.sampler = options.sampler;
  config.max_logprobs = int32_t(options.max_logprobs);
  config.seed = uint64_t(options.seed);
  config.vocab_size = tokenizer_size > 0 ? std::min(tokenizer_size, e.model->config.V) : e.model->config.V;
  config.scheduler.eos_ids = stop_ids;
  e.engine = std::make_unique<Engine>(config, *e.runner, e.kv, *e.backend);
  if (!options.trace.empty()) {
    e.trace = std::make_unique<TraceWriter>(options.trace, trace_header(e));
    e.engine->trace_to(e.trace.get());
  }
  return loaded;
}

std::string memory_report(const MemoryPlan& m) {
  return fmt::format(
      "memory {}: weights {}, KV cache {}, scratch {}\n"
      "KV cache size: {} tokens, maximum concurrency for {} tokens per request: {}x\n",
      format_bytes(m.total()), format_bytes(m.weights), format_bytes(m.kv_bytes), format_bytes(m.scratch),
      int64_t(m.num_blocks) * m.block_size, m.max_model_len, three_digits(m.max_concurrency()));
}

std::string start_report(const LoadedEngine& e) {
  std::string notes = e.resolved.notes;
  const int64_t asked = e.options.threads, gets = e.options.device == "ref" ? 1 : team_size(int32_t(asked));
  if (asked > gets) notes += fmt::format("--threads {}: {} is what this device can use here\n", asked, gets);
  return fmt::format("device {}\n{}{}", e.backend->describe(), memory_report(e.resolved.memory), notes);
}

}  // namespace nano
