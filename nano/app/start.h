// What run, chat, ppl and bench do alike: start a model with a progress bar and its report, and sum up at the end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "app/terminal.h"  // ProgressBar, Interrupt
#include "llm/llm.h"       // LLM, RequestOutput

namespace nano {

// Once the answers are out: the exit code, 1 for a trace that could not be written (stderr has said it).
[[nodiscard]] int close_trace(LLM& llm);

// Loads, with a progress bar while weights are packed; prints the start report to stderr if options.stats.
std::unique_ptr<LLM> start_llm(const EngineOptions& options, const ChatTemplateOptions& chat_template = {},
                               const Observe& observe = {});

// An answer on stdout while it comes; at the end a line break, after what the decoder of a stopped one held back.
void print_delta(const RequestOutput& output);
void print_rest(const RequestOutput& output);
// Of answers that did not end by themselves: "[stopped]", "[cut: …]", "[cut 2 of 3 answers: …]"; "" if all did.
std::string ending_marks(const std::vector<RequestOutput>& results);

// "12 prompt tokens (8 cached), first token after 0.05 s; 34 tokens in 1.20 s, decode 28.7 tokens/s". The rate is of
// what comes after the first token; none where there are only a few: it would be the clock's, not the engine's.
std::string stats_line(const std::vector<RequestOutput>& results);

// A file for the results of a benchmark, checked before the work; nothing is written or created then. `flag` is what
// named it; "" for no file does nothing. Error: it cannot be written or must not be (llm/output_file.h), or is the
// trace.
void check_results_file(const std::string& flag, const std::string& path, const EngineOptions& options);
// The same where no model is known: it must be none of `others`, paths as they were given (or "").
void check_results_file(const std::string& flag, const std::string& path,
                        const std::vector<std::string>& others);
void write_results(const std::string& path, const nlohmann::ordered_json& result);

}  // namespace nano
