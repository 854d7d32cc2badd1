// `nano tokenize MODEL [TEXT]`: text to token ids, or a conversation to the prompt a model would see. Needs no weights.
#pragma once

#include "app/cli.h"  // Args

namespace nano {

int tokenize_command(const Args& args);

}  // namespace nano
