// `nano run MODEL [PROMPT]`: complete one prompt, streaming, or a file of prompts in one batch.
#pragma once

#include "app/cli.h"  // Args

namespace nano {

int run_command(const Args& args);  // 0, or 1 when a request failed

}  // namespace nano
