// Weights from a Hugging Face directory: config.json and one or several safetensors files.
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "base/error.h"               // Error
#include "base/json.h"                // parse_json
#include "base/mapped_file.h"         // read_file
#include "checkpoint/foreign.h"       // check_shape, check_vocabulary, shown_name
#include "checkpoint/safetensors.h"   // SafetensorsFile
#include "checkpoint/tensor_names.h"  // model_tensors
#include "checkpoint/weights.h"       // Weights

namespace nano {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kEmbedding = "model.embed_tokens.weight";

// tensor name → shard file name, as model.safetensors.index.json says.
std::map<std::string, std::string> read_index(const std::string& path) {
  const json index = parse_json(read_file(path), path);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    throw Error("there is no 'weight_map'", path);
  std::map<std::string, std::string> out;
  for (const auto& item : index["weight_map"].items()) {
    if (!item.value().is_string()) throw Error("tensor " + shown_name(item.key()) + " is in no file", path);
    const std::string file = item.value().get<std::string>();
    if (file.empty() || file.find('/') != file.npos || file == "..")
      throw Error("tensor " + shown_name(item.key()) + " lies in " + shown_name(file) +
                      ", which is not a plain file name",
                  path);
    out[item.key()] = file;
  }
  return out;
}

class HfWeights : public Weights {
 public:
  explicit HfWeights(const std::string& directory) : directory_(directory) {
    format = "safetensors";
    config = read_hf_config((fs::path(directory) / "config.json").string());
    open_shards();
    prefix_ = find_prefix();
    for (const ModelTensor& t : model_tensors(config)) load(t);
    note_unused();
  }

  void drop_pages(const QuantLinear& w) const override {
    if (w.owned) return;
    for (const auto& shard : shards_) {
      const MappedFile& file = *shard->mapping();
      if (w.data >= file.data() && w.data < file.data() + file.size())
        file.drop_pages(w.data, size_t(w.file_bytes()));
    }
  }

 private:
  void open_shards() {
    const fs::path single = fs::path(directory_) / "model.safetensors";
    const std::string index = single.string() + ".index.json";
    if (fs::exists(single) || !fs::exists(index)) {
      if (!fs::exists(single) && fs::exists(fs::path(directory_) / "pytorch_model.bin"))
        throw Error("the weights are a pickle, which is not supported", directory_,
                    "convert them to safetensors");
      add_shard(single.string());
      return;
    }
    const std::map<std::string, std::string> map = read_index(index);
    std::set<std::string> files;
    for (const auto& [name, file] : map) files.insert(file);
    for (const std::string& file : files) add_shard((fs::path(directory_) / file).string());
    for (const auto& [name, file] : map) {
      auto it = where_.find(name);
      if (it == where_.end() || fs::path(it->second->path()).filename() != file)
        throw Error(
            "tensor " + shown_name(name) + " is not in " + shown_name(file) + ", where the index puts it",
            index);
    }
  }

  void add_shard(const std::string& path) {
    shards_.push_back(std::make_unique<SafetensorsFile>(path));
    for (const std::string& name : shards_.back()->names())
      if (!where_.emplace(name, shards_.back().get()).second)
        throw Error("tensor " + shown_name(name) + " is in two files", path);
  }

  // Text models inside multimodal checkpoints carry a prefix, which has moved over the years.
  std::pair<std::string, std::string> find_prefix() const {
    for (const auto& [from, to] : {std::pair<std::string, std::string>{"", ""},
                                   {"", "language_model."},
                                   {"model.", "model.language_model."}})
      if (where_.count(to + std::string(kEmbedding).substr(from.size()))) return {from, to};
    return {"", ""};  // the missing embedding will be named
  }

  std::string file_name(const std::string& name) const {
    const auto& [from, to] = prefix_;
    return name.compare(0, from.size(), from) == 0 ? to + name.substr(from.size()) : name;
  }

  const Tensor& take(const std::string& plain_name, const std::vector<int64_t>& shape) {
    const std::string name = file_name(plain_name);
    auto it = where_.find(name);
    if (it == where_.end())
      throw Error("tensor " + shown_name(name) + " is missing", directory_,
                  plain_name == "lm_head.weight" ? "config.json says that tie_word_embeddings is false" : "");
    const Tensor& t = *it->second->find(name);
    if (plain_name == kEmbedding && t.shape.size() == 2)
      check_vocabulary(config.V, "vocab_size", name, t.shape[0],
                       (fs::path(directory_) / "config.json").string());
    check_shape(name, t.shape, shape, "config.json asks", it->second->path());
    used_.insert(name);
    return t;
  }

  std::vector<float> take_vector(const std::string& name, int64_t N) {
    const Tensor& t = take(name, {N});
    std::vector<float> out(static_cast<size_t>(N));
    decode_rows(describe_dense(t.name, t.data, t.dtype, 1, N), 0, 1, out.data());
    return out;
  }

  void load(const ModelTensor& t) {
    if (t.K == 0) {
      std::vector<float> v = take_vector(t.hf + ".weight", t.N);
      if (config.architecture == "gemma3")  // Gemma multiplies by 1 + w
        for (float& x : v) x += 1.0f;
      vectors_[t.name] = std::move(v);
      return;
    }
    const Tensor& m = take(t.hf + ".weight", {t.N, t.K});
    QuantLinear w = describe_dense(m.name, m.data, m.dtype, t.N, t.K);
    if (t.bias) w.bias = take_vector(t.hf + ".bias", t.N);
    linears_.emplace(t.name, std::move(w));
  }

  // A tied model may carry a copy of its embedding as head: config.json decides, and an equal copy is no news.
  bool is_copy_of_embedding(const std::string& name) const {
    if (!config.tied || name != file_name("lm_head.weight")) return false;
    const Tensor& head = *where_.at(name)->find(name);
    const QuantLinear& embed = linear("embed");
    return head.dtype == embed.dtype && head.shape == std::vector<int64_t>{embed.N, embed.K} &&
           std::memcmp(head.data, embed.data, size_t(embed.file_bytes())) == 0;
  }

  // What a layer of this architecture does not have, a bias, a norm, experts: the result would be another model's.
  // (Layers behind the last one predict further tokens, and other parts of a checkpoint see and hear.)
  bool is_foreign(const std::string& name) const {
    const std::string layers = file_name("model.layers.");
    return name.compare(0, layers.size(), layers) == 0 && std::atoi(name.c_str() + layers.size()) < config.L;
  }

  void note_unused() {
    for (const auto& [name, shard] : where_) {
      const bool old_rope =
          name.ends_with(".rotary_emb.inv_freq");  // old exports store what the config implies
      if (used_.count(name) || old_rope || is_copy_of_embedding(name)) continue;
      if (is_foreign(name))
        throw Error("tensor " + shown_name(name) + " is not supported: this is another variant of " +
                        config.architecture,
                    shard->path());
      unused_tensors.push_back(name);
    }
  }

  std::string directory_;
  std::pair<std::string, std::string> prefix_;
  std::vector<std::unique_ptr<SafetensorsFile>> shards_;
  std::map<std::string, const SafetensorsFile*> where_;  // tensor → its file
  std::set<std::string> used_;
};

}  // namespace

std::unique_ptr<Weights> open_hf(const std::string& directory) {
  return std::make_unique<HfWeights>(directory);
}

}  // namespace nano
