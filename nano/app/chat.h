// `nano chat MODEL`: a conversation, turn by turn. The prefix cache makes each turn cost only what is new.
#pragma once

#include "app/cli.h"  // Args

namespace nano {

int chat_command(const Args& args);

}  // namespace nano
