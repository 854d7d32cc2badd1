// From options to a running engine: open the checkpoint, make the backend, pack the weights, plan the memory,
// allocate the KV cache, join the parts.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "checkpoint/weights.h"  // Weights
#include "engine/engine.h"       // Engine
#include "llm/options.h"         // EngineOptions
#include "llm/resolve.h"         // Resolved

namespace nano {

// Everything that lives as long as an engine, in the order in which it is built (and the reverse of destruction).
struct LoadedEngine {
  EngineOptions options;
  std::unique_ptr<Weights> weights;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Transformer> model;
  Resolved resolved;
  KvCache kv;
  std::unique_ptr<Runner> runner;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<TraceWriter> trace;
};

// progress(done, total): bytes of weights packed.
using Progress = std::function<void(int64_t, int64_t)>;
// Puts an observer (backend/observers.h) around the backend before anything uses it.
using Observe = std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>)>;

// `tokenizer_size`: ids with a text (0 = all rows of the model); `stop_ids`: the tokenizer's, which end an answer.
// Error: anything wrong with the file, the flags or the memory.
std::unique_ptr<LoadedEngine> load_engine(const EngineOptions& options, int32_t tokenizer_size = 0,
                                          const std::vector<int32_t>& stop_ids = {},
                                          const Progress& progress = {}, const Observe& observe = {});

// "tiny" or "smollm2" → the file that `make` fetched or the repository ships; a path stays as it is. Error: neither.
std::string find_model(const std::string& name);
// The file or directory that options.model names; with --load-format dummy its config.json. Error: as above, or a
// GGUF file that is to be a dummy.
std::string model_path(const EngineOptions& options);
// The backend of --device. Error: flags it can't have.
std::unique_ptr<Backend> make_backend(const EngineOptions& options);
// The checkpoint, as --quantization and --no-quantized-linear want it. Error: another method than --quantization
// says.
std::unique_ptr<Weights> open_model(const EngineOptions& options);
// Bytes that the weights take, known before anything is packed: all that is multiplied with, and the embedding where
// it is in no file.
int64_t packed_bytes(const Weights& weights);
// The ledger, "KV cache size" and "maximum concurrency" (vLLM's words, less the GPU), in two lines; the start-up
// report has them between the device and the notes.
std::string memory_report(const MemoryPlan& memory);
std::string start_report(const LoadedEngine& loaded);

}  // namespace nano
