// `nano trace summary FILE`: what the scheduler did, from the lines that --trace wrote.
#pragma once

#include "app/cli.h"  // Args

namespace nano {

int trace_command(const Args& args);

}  // namespace nano
