// What nano must not write over.
#pragma once

#include <string>

#include "llm/options.h"  // EngineOptions

namespace nano {

// Error if the file that `flag` ("--trace") names is there and has something in it that nano did not write (a result
// of a benchmark or a trace, told by what is in it), or is the model or in its folder, by whatever name. A new file,
// an empty one, a pipe or a device may be written. "" is no file.
void check_output_file(const std::string& flag, const std::string& output, const EngineOptions& options);

}  // namespace nano
