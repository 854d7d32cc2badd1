// The start-up ledger is true: what a process takes at its peak is what it says, for every source of weights and on
// both devices. Weights of some hundred MB, so that a second copy of them would show.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "catch.h"
#include "checkpoint/tensor_names.h"  // model_tensors
#include "checkpoint_files.h"         // TempDir, GgufBuilder, safetensors, read_bytes

using namespace nano_test;
namespace fs = std::filesystem;

namespace {

constexpr double kMB = 1e6;

nano::ModelConfig shape() {
  nano::ModelConfig c;
  c.architecture = "llama";
  c.L = 2, c.C = 1024, c.F = 4096, c.H = c.KVH = 16, c.D = 64, c.V = 16384, c.max_position = 64;
  return c;
}

std::string config_json(const char* dtype) {
  const nano::ModelConfig c = shape();
  auto field = [](const char* key, int32_t value) {
    return std::string("\"") + key + "\": " + std::to_string(value) + ", ";
  };
  return "{\"model_type\": \"llama\", " + field("vocab_size", c.V) + field("hidden_size", c.C) +
         field("intermediate_size", c.F) + field("num_hidden_layers", c.L) +
         field("num_attention_heads", c.H) + field("max_position_embeddings", c.max_position) +
         "\"rms_norm_eps\": 1e-5, \"torch_dtype\": \"" + dtype + "\"}";
}

// The files hold zeros, as holes: they take no disk, and memory when they are read.
void write_gguf(const std::string& path) {
  const nano::ModelConfig c = shape();
  GgufBuilder b;
  b.kvs = {gguf_text("general.architecture", "llama"),
           gguf_u32("llama.block_count", uint32_t(c.L)),
           gguf_u32("llama.embedding_length", uint32_t(c.C)),
           gguf_u32("llama.feed_forward_length", uint32_t(c.F)),
           gguf_u32("llama.attention.head_count", uint32_t(c.H)),
           gguf_u32("llama.context_length", 64),
           gguf_f32("llama.attention.layer_norm_rms_epsilon", 1e-5f),
           gguf_text("tokenizer.ggml.model", "llama")};
  std::string tokens, types, scores;
  for (int32_t id = 0; id < c.V; ++id) {
    char text[16];
    std::snprintf(text, sizeof text, id < 256 ? "<0x%02X>" : "t%d", unsigned(id));
    tokens += gguf_string(text), types += raw(int32_t(id < 256 ? 6 : 1)), scores += raw(-float(id));
  }
  b.kvs.push_back(gguf_array("tokenizer.ggml.tokens", 8, uint64_t(c.V), tokens));
  b.kvs.push_back(gguf_array("tokenizer.ggml.token_type", 5, uint64_t(c.V), types));
  b.kvs.push_back(gguf_array("tokenizer.ggml.scores", 6, uint64_t(c.V), scores));
  uint64_t end = 0;
  for (const nano::ModelTensor& t : nano::model_tensors(c)) {
    const bool matrix = t.K > 0;
    b.infos.push_back({t.gguf + ".weight", {uint64_t(matrix ? t.K : t.N)}, matrix ? 1u : 0u, end});
    if (matrix) b.infos.back().dims.push_back(uint64_t(t.N));
    end += uint64_t(matrix ? 2 * t.N * t.K : 4 * t.N);
  }
  const std::string start = b.build();
  write_bytes(path, start);
  fs::resize_file(path, start.size() + end);
}

void write_hf(const TempDir& dir) {
  std::string header = "{";
  uint64_t end = 0;
  for (const nano::ModelTensor& t : nano::model_tensors(shape())) {
    const std::string shape = std::to_string(t.N) + (t.K > 0 ? ", " + std::to_string(t.K) : "");
    const uint64_t begin = end;
    end += 2 * uint64_t(t.N) * uint64_t(t.K > 0 ? t.K : 1);
    header += (header.size() > 1 ? ", \"" : "\"") + t.hf + ".weight\": {\"dtype\": \"BF16\", \"shape\": [" +
              shape + "], \"data_offsets\": [" + std::to_string(begin) + ", " + std::to_string(end) + "]}";
  }
  header += "}";
  write_bytes(dir.file("config.json"), config_json("bfloat16"));
  write_bytes(dir.file("tokenizer.json"),
              read_bytes(data_path("golden/checkpoints/llama-fp32/tokenizer.json")));
  write_bytes(dir.file("model.safetensors"), safetensors(header, ""));
  fs::resize_file(dir.file("model.safetensors"), 8 + header.size() + end);
}

struct Measured {
  double peak = 0;  // bytes; of this program alone: getrusage would count what it was forked from
  std::string err;
};

Measured run_measured(std::vector<std::string> args) {
  const TempDir dir;
  const std::string err = dir.file("err");
  const char* binary = std::getenv("NANO_BINARY");
  args.insert(args.begin(), binary ? binary : "build/nano");
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    dup2(open("/dev/null", O_WRONLY), 1);
    dup2(open(err.c_str(), O_WRONLY | O_CREAT, 0600), 2);
    execv(argv[0], argv.data());
    _exit(127);
  }
  Measured m;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    std::ifstream file("/proc/" + std::to_string(child) + "/status");
    for (std::string line; std::getline(file, line);)
      if (line.rfind("VmHWM:", 0) == 0) m.peak = std::stod(line.substr(6)) * 1024;
    usleep(2000);
  }
  m.err = read_bytes(err);
  INFO(m.err);
  REQUIRE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  return m;
}

// "memory 123.45 MB: weights …" or "… GB (… GiB): …"
double ledger(const std::string& report) {
  const size_t at = report.find("memory ");
  REQUIRE(at != report.npos);
  size_t end = 0;
  const double number = std::stod(report.substr(at + 7), &end);
  return number * (report.substr(at + 7 + end, 3) == " GB" ? 1e9 : kMB);
}

}  // namespace

TEST_CASE("the ledger is true for every source of weights") {
  const TempDir dir;
  write_gguf(dir.file("m.gguf"));
  write_bytes(dir.file("dummy.json"), config_json("float32"));
  write_hf(dir);
  struct Source {
    const char* name;
    std::vector<std::string> args;
    double weights;  // MB that the ledger can't be without
  };
  const Source sources[] = {
      {"dummy", {dir.file("dummy.json"), "--load-format", "dummy"}, 268},
      {"expanded", {dir.file("m.gguf"), "--no-quantized-linear"}, 201},
      {"expanded dummy", {dir.file("dummy.json"), "--load-format", "dummy", "--no-quantized-linear"}, 268},
      {"GGUF", {dir.file("m.gguf")}, 100},
      {"Hugging Face", {dir.path()}, 100},
  };
  for (const Source& source : sources)
    for (const char* device : {"cpu", "ref"}) {
      INFO(source.name << " on " << device);
      std::vector<std::string> args = {"run",   "x",
                                       "--raw", "--device",
                                       device,  "--max-tokens",
                                       "2",     "--max-num-seqs",
                                       "1",     "--max-num-batched-tokens",
                                       "16",    "--threads",
                                       "1",     "--kv-cache-memory-bytes",
                                       "16MB",  "--temperature",
                                       "0",     "--model"};
      args.insert(args.end(), source.args.begin(), source.args.end());
      const Measured m = run_measured(args);
      const double said = ledger(m.err);
      INFO("said " << said / kMB << " MB, took " << m.peak / kMB << " MB at most");
      CHECK(said >= source.weights * kMB);
#ifdef NANO_SANITIZER  // freed bytes stay in its quarantine, and all have a shadow
      CHECK(m.peak <= 2.1 * said + 80 * kMB);
#else
      CHECK(m.peak <= 1.1 * said + 80 * kMB);
#endif
      CHECK(m.peak >= 0.9 * said - 20 * kMB);  // 16 MB of KV cache are not touched
    }
}
