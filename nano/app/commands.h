// The commands of build/nano, one source file each (app/run.cpp …). They get what stands after the command's name,
// and return the exit code; bad usage and what cannot start is an Error.
#pragma once

#include "app/cli.h"  // Args

namespace nano {

int run_command(const Args& args);   // complete a prompt, or a file of prompts in one batch
int chat_command(const Args& args);  // a conversation; the prefix cache makes a turn cost only what is new
int info_command(const Args& args);  // what a model is made of, and the memory it takes
int tokenize_command(const Args& args);  // text or a conversation to token ids; needs no weights
int ppl_command(const Args& args);       // perplexity of a text (app/ppl.h)
int bench_command(const Args& args);     // vLLM's offline benchmarks: latency, throughput
int trace_command(const Args& args);     // summary of a --trace file

}  // namespace nano
