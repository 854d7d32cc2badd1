// `nano info MODEL | --config FILE | --params N`: what a model is made of, and the memory it takes.
#pragma once

#include "app/cli.h"  // Args

namespace nano {

int info_command(const Args& args);

}  // namespace nano
