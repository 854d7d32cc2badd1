// backend/observers: a profiled backend gives the same bits, and counts the calls, bytes and time of each op.
#include <map>
#include <string>
#include <vector>

#include "backend/observers.h"  // profiled, Profile
#include "catch.h"              // Catch2, version 2 or 3
#include "engine_fixture.h"     // EngineUnderTest, micro_options, make_prompt, greedy
#include "model/kv_cache.h"     // kv_bytes_per_token

using namespace nano;
using namespace nano_test;

namespace {

Observe into(Profile& profile) {
  return [&profile](std::unique_ptr<Backend> backend) { return profiled(std::move(backend), profile); };
}

std::map<std::string, OpTime> by_name(const Profile& profile) {
  std::map<std::string, OpTime> ops;
  for (const OpTime& op : profile.ops) ops[op.op] = op;
  return ops;
}

}  // namespace

TEST_CASE("a profiled engine gives the same tokens and the same bits of logits") {
  for (const char* device : {"ref", "cpu"}) {
    CAPTURE(device);
    const std::vector<Request> requests = {{"a", make_prompt(9, 1), greedy(6)},
                                           {"b", make_prompt(23, 2), greedy(4)}};
    Profile profile;
    EngineUnderTest plain(micro_options(device)), watched(micro_options(device), into(profile));
    CHECK(plain.run(requests) == watched.run(requests));
    CHECK(plain.loaded().backend->describe() == watched.loaded().backend->describe());
    CHECK(!profile.ops.empty());
  }
}

TEST_CASE("a profile has every call, the bytes they had to read, and no more time than went by") {
  for (const char* device : {"ref", "cpu"}) {
    CAPTURE(device);
    Profile profile;
    EngineUnderTest engine(micro_options(device), into(profile));
    engine.run({{"warm", make_prompt(5, 3), greedy(2)}});
    profile.clear();
    CHECK(profile.ops.empty());
    engine.steps = 0;
    const int32_t P = 11, answers = 6;  // P positions in the first step, then one more in each
    engine.run({{"a", make_prompt(P, 1), greedy(answers)}});
    const double wall = steady_seconds() - profile.since;
    REQUIRE(engine.steps == answers);

    std::map<std::string, OpTime> ops = by_name(profile);
    const ModelConfig& config = engine.loaded().model->config;
    const int64_t a_layer = answers * config.L;
    std::map<std::string, int64_t> calls = {{"embed", answers},
                                            {"rope_table", answers},
                                            {"rmsnorm", 2 * a_layer + answers},
                                            {"linear q+k+v", a_layer},
                                            {"rope_kv_write", a_layer},
                                            {"attention", a_layer},
                                            {"linear o", a_layer},
                                            {"linear gate+up", a_layer},
                                            {"linear down", a_layer},
                                            {"gather_rows", answers},
                                            {config.tied ? "linear embed" : "linear lm_head", answers},
                                            {"sampling", answers},
                                            {"waking the team", 2 * answers}};
    double seconds = 0;
    int64_t linear_bytes = 0;
    for (const auto& [name, op] : ops) {
      CAPTURE(name);
      CHECK(op.calls == calls[name]);
      CHECK(op.seconds > 0);
      seconds += op.seconds;
      if (name.rfind("linear", 0) == 0) linear_bytes += op.bytes;
    }
    CHECK(ops.size() == calls.size());
    CHECK(seconds <= wall);

    const DType kv_dtype = engine.loaded().kv.layers[0].dtype;
    CHECK(ops["attention"].bytes ==
          kv_bytes_per_token(config, kv_dtype) * (answers * P + answers * (answers - 1) / 2));
    CHECK(ops["linear down"].bytes >= a_layer * config.C * config.F * dtype_bytes(config.dtype));
    CHECK(ops["embed"].bytes == 0);
    // Every matrix once a step, and nothing else: what the backend holds, without the norms' vectors.
    const int64_t norms = int64_t(2 * config.L + 1) * config.C * 4;
    // (Made-up weights are in no file, so the rows of the embedding that embed() looks up are held beside the head.)
    const int64_t table = int64_t(config.V) * config.C * dtype_bytes(config.dtype);
    const int64_t held = engine.loaded().backend->allocated(Memory::weights) - table;
    CHECK(linear_bytes <= answers * held);
    CHECK(linear_bytes >= answers * (held - 2 * norms));
  }
}

TEST_CASE("a sliding window bounds the K and V that attention must read") {
  Profile profile;
  auto backend = profiled(make_ref_backend(ActivationDtype::float32), profile);
  Limits limits;
  limits.max_tokens = 8, limits.max_model_len = 32, limits.H = 2, limits.KVH = 1, limits.D = 16;
  limits.max_K = limits.max_N = 64;
  backend->reserve(limits);
  const int32_t B = 32, T = 3;  // rows at positions 7 and 8 of one sequence, 0 of another
  std::vector<float> k(2 * B * 16, 0.5f), v(k), qkv(T * 4 * 16, 0.25f), out(T * 2 * 16);
  KvLayer kv;
  kv.k = k.data(), kv.v = v.data(), kv.B = B;
  int32_t query_start[] = {0, 2, 3}, seq_len[] = {9, 1}, table[] = {0, 1};
  Batch batch;
  batch.T = T, batch.S = 2;
  batch.query_start = query_start, batch.seq_len = seq_len, batch.block_table = table, batch.max_blocks = 1;
  const int64_t position = 2 * 16 * 4;  // K and V of one head, float32
  for (const auto& [window, positions] : std::map<int32_t, int64_t>{{0, 9 + 1}, {4, 5 + 1}, {100, 9 + 1}}) {
    CAPTURE(window);
    profile.clear();
    const AttentionShape shape{2, 1, 16, 0.25f, window};
    backend->step(T, [&] { backend->attention({out.data()}, {qkv.data()}, kv, batch, shape); });
    CHECK(profile.of("attention").bytes == positions * position);
  }
}
