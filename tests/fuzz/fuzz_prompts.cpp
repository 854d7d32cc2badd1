// Any bytes as a file of prompts (JSON lines): an Error, or jobs whose parameters pass or fail the check of every
// request.
#include <cstddef>
#include <cstdint>

#include "app/prompts.h"           // jobs_from_jsonl
#include "base/error.h"            // Error
#include "core/sampling_params.h"  // validate
#include "memory_file.h"           // MemoryFile

namespace {

void check(nano::PromptJob& job) {
  try {
    if (job.prompt.error.empty()) nano::validate(job.params, 1000);
  } catch (const nano::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const nano_test::MemoryFile file(data, size);
  try {
    for (nano::PromptJob& job : nano::jobs_from_jsonl(file.path(), nano::SamplingParams())) check(job);
  } catch (const nano::Error&) {
  }
  return 0;
}
