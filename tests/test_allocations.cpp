// model/, backend/cpu and core/sampler: once a step has been seen, the next one like it allocates nothing. (A StepPlan
// is a value with a few small vectors of its own; this is about what works on tensors.) Plain builds count operator
// new, the sanitized ones every malloc.
#include <atomic>
#include <cstdlib>
#include <new>

#include "catch.h"
#include "core/sampler.h"    // sample
#include "data.h"            // NANO_SANITIZER
#include "engine_fixture.h"  // EngineUnderTest, micro_options, make_prompt

namespace {
std::atomic<int64_t> allocations{0};
}

// Sanitizers have an operator new of their own, and a hook in it.
#ifdef NANO_SANITIZER
#include <sanitizer/allocator_interface.h>
namespace {
const int hooked = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, size_t) { ++allocations; }, [](const volatile void*) {});
}
#else
#define NOINLINE __attribute__((noinline))  // else GCC sees a free() of what new gave, and warns
NOINLINE void* operator new(size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
NOINLINE void operator delete(void* p) noexcept { std::free(p); }
NOINLINE void operator delete(void* p, size_t) noexcept { std::free(p); }
#endif

using namespace nano;
using namespace nano_test;

namespace {

template <class Body>
int64_t allocations_of(Body body) {
  const int64_t before = allocations;
  body();
  return allocations - before;
}

// Two sequences: a chunk of a prompt, and one token of an answer.
StepPlan mixed_step() {
  StepPlan plan;
  ScheduledSeq chunk, decode;
  chunk.tokens = make_prompt(40, 1), chunk.block_table = {0, 1, 2};
  chunk.first_logit_row = 39;
  decode.first_pos = 20, decode.tokens = {7}, decode.block_table = {3, 4};
  plan.seqs = {chunk, decode};
  return plan;
}

}  // namespace

TEST_CASE("the counter of these tests counts") {
  CHECK(allocations_of([] { std::vector<int>(1000).back() = 1; }) > 0);
  CHECK(allocations_of([] {}) == 0);
}

TEST_CASE("the model's part of a step allocates nothing") {
  for (const char* activations : {"float32", "int8"}) {
    CAPTURE(activations);
    EngineOptions options = micro_options("cpu");
    options.activation_dtype = activations;
    options.threads = 2;
    EngineUnderTest run(options);
    const StepPlan plan = mixed_step();
    auto step = [&] { run.loaded().runner->run(plan, [](int32_t, int32_t, float*) {}); };
    step();
    CHECK(allocations_of(step) == 0);
  }
}

TEST_CASE("sampling a token without top_k and top_p allocates nothing") {
  const std::vector<int32_t> prompt = make_prompt(9, 1), output = {3, 4, 3};
  std::vector<float> logits(1000);
  auto draw = [&](const SamplingParams& params) {
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = float(i * 7919 % 1000) / 100;
    return sample(logits, params, {prompt, output, {}, {1, 2}}).id;
  };
  for (const SamplingParams& params : {greedy(8), SamplingParams()}) {  // temperature 0 and 1
    CAPTURE(params.temperature);
    int32_t id = draw(params);
    CHECK(allocations_of([&] { id = draw(params); }) == 0);
    CHECK(id >= 0);
  }
}
