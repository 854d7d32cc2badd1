// `nano ppl MODEL --file F`: perplexity of a text, in the plain definition and in llama.cpp's.
#pragma once

#include "app/cli.h"  // Args

namespace nano {

int ppl_command(const Args& args);

}  // namespace nano
