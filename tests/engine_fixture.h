// What the engine's tests share: load a small model, run requests, and a hash of every row of logits that was
// sampled from, so that "the same" means the same bits.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "catch.h"
#include "data.h"        // data_path
#include "llm/loader.h"  // LoadedEngine, load_engine

namespace nano_test {

// Two layers, C 64, random weights: generated, so it needs no file but its config.
inline nano::EngineOptions micro_options(const std::string& device = "ref") {
  nano::EngineOptions options;
  options.model = data_path("golden/micro/config.json");
  options.load_format = "dummy";
  options.device = device;
  options.threads = 1;
  options.max_model_len = 128;
  options.kv_cache_memory_bytes = 4 << 20;
  return options;
}

struct Request {
  std::string id;
  std::vector<int32_t> prompt;
  nano::SamplingParams params;
};

struct Answer {
  std::vector<int32_t> ids;
  uint64_t logits_hash = 14695981039346656037ull;  // FNV-1a over the sampled rows, in order of position
  nano::FinishReason finish_reason = nano::FinishReason::none;
  int32_t num_cached_tokens = 0;
  std::string error;
  std::vector<nano::SampledToken> prompt_logprobs;
  bool operator==(const Answer& other) const { return ids == other.ids && logits_hash == other.logits_hash; }
};

// Answers by "id" for n = 1, "id/i" for child i of n.
using Answers = std::map<std::string, Answer>;

inline std::string answer_key(const std::string& id, int32_t index) {
  return index == 0 ? id : id + "/" + std::to_string(index);
}

class EngineUnderTest {
 public:
  explicit EngineUnderTest(const nano::EngineOptions& options, const nano::Observe& observe = {})
      : loaded_(nano::load_engine(options, 0, {}, {}, observe)) {
    engine().on_logits = [this](const nano::Sequence& seq, int32_t position, std::span<const float> row) {
      if (position != seq.num_tokens() - 1) return;  // a row of prompt_logprobs
      uint64_t& hash = hashes_.try_emplace(seq.id, Answer().logits_hash).first->second;
      for (float x : row) hash = (hash ^ nano::f32_bits(x)) * 1099511628211ull;
    };
  }

  nano::Engine& engine() { return *loaded_->engine; }
  nano::LoadedEngine& loaded() { return *loaded_; }

  void add(const Request& request) {
    engine().add_request(request.id, request.prompt, request.params);
    for (int32_t i = 0; i < request.params.n; ++i) seq_of_[answer_key(request.id, i)] = next_seq_++;
  }
  void step() {
    for (nano::SequenceOutput& out : engine().step()) {
      Answer& answer = answers[answer_key(out.request_id, out.index)];
      for (const nano::SampledToken& token : out.tokens) answer.ids.push_back(token.id);
      for (nano::SampledToken& token : out.prompt_logprobs)
        answer.prompt_logprobs.push_back(std::move(token));
      answer.finish_reason = out.finish_reason;
      answer.num_cached_tokens = out.num_cached_tokens;
      answer.error = out.error;
      answer.logits_hash = hashes_[seq_of_.at(answer_key(out.request_id, out.index))];
    }
    engine().scheduler().check_integrity();
    ++steps;
  }
  // Adds all, runs to the end.
  Answers run(const std::vector<Request>& requests) {
    answers.clear();
    for (const Request& request : requests) add(request);
    while (engine().has_work()) step();
    return answers;
  }

  Answers answers;
  int64_t steps = 0;

 private:
  std::unique_ptr<nano::LoadedEngine> loaded_;
  std::map<nano::SeqId, uint64_t> hashes_;  // of a sequence's sampled rows so far
  std::map<std::string, nano::SeqId>
      seq_of_;  // engines number sequences in the order in which they are added
  nano::SeqId next_seq_ = 0;
};

// A prompt of n ids below `vocab`, the same for the same salt.
inline std::vector<int32_t> make_prompt(int32_t n, uint32_t salt, int32_t vocab = 300) {
  std::vector<int32_t> ids;
  uint32_t state = salt * 2654435761u + 12345u;
  for (int32_t i = 0; i < n; ++i) {
    state = state * 1664525u + 1013904223u;
    ids.push_back(int32_t((state >> 8) % uint32_t(vocab - 2)) + 2);
  }
  return ids;
}

inline nano::SamplingParams greedy(int32_t max_tokens) {
  nano::SamplingParams params;
  params.temperature = 0;
  params.max_tokens = max_tokens;
  params.ignore_eos = true;
  return params;
}

inline nano::SamplingParams sampled(int32_t max_tokens, int64_t seed) {
  nano::SamplingParams params = greedy(max_tokens);
  params.temperature = 1.0f;
  params.seed = seed;
  return params;
}

inline nano::EngineOptions small_blocks() {
  nano::EngineOptions options = micro_options();
  options.block_size = 4;
  return options;
}

// Nothing is left of any request, in any of the engine's maps.
inline void check_idle(EngineUnderTest& run) {
  CHECK_FALSE(run.engine().has_work());
  CHECK(run.engine().blocks().num_free() == run.engine().blocks().num_blocks());
  CHECK(run.engine().scheduler().num_running() == 0);
  CHECK(run.engine().scheduler().num_waiting() == 0);
  CHECK(run.engine().num_live_sequences() == 0);
  CHECK(run.engine().num_live_requests() == 0);
}

}  // namespace nano_test
