// What nano must not write over.
#pragma once

#include <string>

#include "llm/options.h"  // EngineOptions

namespace nano {

// Error if the file that `flag` ("--trace") names is there and nano did not write it: what has something in it that
// is no result of a benchmark and no trace, and any other file of the model, by whatever name. A new file, an empty
// one elsewhere, a pipe or a device may be written. "" is no file.
void check_output_file(const std::string& flag, const std::string& output, const EngineOptions& options);

}  // namespace nano
