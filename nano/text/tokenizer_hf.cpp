// A tokenizer from a Hugging Face directory: tokenizer.json, and around it the files that say which ids begin and
// end a text and how a conversation is written. Each of those may be missing; one that is there must be right.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"           // Error
#include "base/mapped_file.h"     // read_file
#include "text/json_node.h"       // JsonNode, parse_json
#include "text/tokenizer_json.h"  // tokenizer_from_json

namespace nano {
namespace {

namespace fs = std::filesystem;

std::optional<nlohmann::json> read_json_if_there(const std::string& path) {
  if (!fs::exists(path)) return std::nullopt;
  nlohmann::json json = parse_json(read_file(path), path);
  if (!json.is_object()) throw Error("must be a JSON object", path);
  return json;
}

void add_stop_id(Tokenizer& out, int32_t id) {
  if (!std::count(out.stop_ids.begin(), out.stop_ids.end(), id)) out.stop_ids.push_back(id);
}

// "bos_token": "<s>", or the older {"content": "<s>", …}. -1: absent or null.
int32_t read_token(const JsonNode& config, const char* key, const Tokenizer& tokenizer) {
  if (!config.has(key)) return -1;
  const JsonNode node = config[key];
  const std::string text = node.value().is_object() ? node["content"].string() : node.string();
  int32_t id = tokenizer.find(text);
  if (id < 0) node.fail("\"" + text + "\" is not in the vocabulary");
  return id;
}

// "eos_token_id": 2, or [2, 32000].
std::vector<int32_t> read_ids(const JsonNode& config, const char* key, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  if (!config.has(key)) return ids;
  const JsonNode node = config[key];
  for (const JsonNode& id : node.value().is_array() ? node.items() : std::vector<JsonNode>{node}) {
    if (id.integer() < 0 || id.integer() >= tokenizer.vocab_size())
      id.fail(fmt::format("{} is outside the vocabulary of {}", id.integer(), tokenizer.vocab_size()));
    ids.push_back(int32_t(id.integer()));
  }
  return ids;
}

// A string, or a list of named ones: the one called "default", or the only one.
std::string pick_template(const JsonNode& node) {
  if (!node.value().is_array()) return node.string();
  const std::vector<JsonNode> named = node.items();
  for (const JsonNode& entry : named)
    if (entry["name"].string() == "default") return entry["template"].string();
  if (named.size() == 1) return named[0]["template"].string();
  node.fail("several templates, and none is called \"default\"",
            "put the right one into chat_template.jinja");
}

std::string read_chat_template(const std::string& directory,
                               const std::optional<nlohmann::json>& tokenizer_config) {
  if (fs::exists(directory + "/chat_template.jinja")) return read_file(directory + "/chat_template.jinja");
  if (tokenizer_config) {
    const JsonNode config(*tokenizer_config, directory + "/tokenizer_config.json");
    if (config.has("chat_template")) return pick_template(config["chat_template"]);
  }
  const std::string path = directory + "/chat_template.json";
  if (auto json = read_json_if_there(path)) return JsonNode(*json, path)["chat_template"].string();
  return "";
}

// An answer ends at any id that any of the files calls EOS: fine-tuned models often add one in one file only.
void read_special_ids(const std::string& directory, const std::optional<nlohmann::json>& tokenizer_config,
                      Tokenizer& out) {
  if (tokenizer_config) {
    const JsonNode config(*tokenizer_config, directory + "/tokenizer_config.json");
    out.bos_id = read_token(config, "bos_token", out);
    out.eos_id = read_token(config, "eos_token", out);
    if (out.eos_id >= 0) add_stop_id(out, out.eos_id);
  }
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::string path = directory + "/" + name;
    auto json = read_json_if_there(path);
    if (!json) continue;
    JsonNode config(*json, path);
    for (int32_t id : read_ids(config, "eos_token_id", out)) add_stop_id(out, id);
    if (config.has("text_config"))  // a multimodal model nests the language model's keys
      for (int32_t id : read_ids(config["text_config"], "eos_token_id", out)) add_stop_id(out, id);
    if (out.bos_id >= 0 || tokenizer_config) continue;
    std::vector<int32_t> bos = read_ids(config, "bos_token_id", out);
    if (!bos.empty()) out.bos_id = bos[0];
  }
  if (out.eos_id < 0 && !out.stop_ids.empty()) out.eos_id = out.stop_ids[0];
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_hf(const std::string& path) {
  const bool is_directory = fs::is_directory(path);
  const std::string file = is_directory ? path + "/tokenizer.json" : path;
  if (is_directory && !fs::exists(file))
    throw Error("there is no tokenizer.json", path,
                fs::exists(path + "/tokenizer.model")
                    ? "convert tokenizer.model with transformers (save_pretrained)"
                    : "is this a Hugging Face model directory?");
  auto out = tokenizer_from_json(read_file(file), file);
  if (is_directory) {
    const auto tokenizer_config = read_json_if_there(path + "/tokenizer_config.json");
    read_special_ids(path, tokenizer_config, *out);
    out->chat_template = read_chat_template(path, tokenizer_config);
  }
  if (out->bos_id < 0 && out->prefix_ids.size() == 1) out->bos_id = out->prefix_ids[0];
  out->mark_special(out->bos_id);
  for (int32_t id : out->stop_ids) out->mark_special(id);
  out->add_bos = !out->prefix_ids.empty();
  out->add_eos = !out->suffix_ids.empty();
  return out;
}

}  // namespace nano
