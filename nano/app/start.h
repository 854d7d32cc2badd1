// What run, chat, ppl and bench do alike: start a model with a progress bar and its report, and sum up at the end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/llm.h"       // LLM, RequestOutput
#include "app/terminal.h"  // Interrupt

namespace nano {

// Before a program ends well: a trace whose end cannot be written is an Error, not a short file.
void close_trace(LLM& llm);

// Loads, with a progress bar while weights are packed; prints the start report to stderr if options.stats.
// Ctrl-C ends the program here.
std::unique_ptr<LLM> start_llm(const EngineOptions& options, Interrupt& interrupt,
                               const ChatTemplateOptions& chat_template = {});

// "12 prompt tokens (8 cached), first token after 0.05 s; 34 tokens in 1.20 s, 28.3 tokens/s"
std::string stats_line(const std::vector<RequestOutput>& results);

}  // namespace nano
