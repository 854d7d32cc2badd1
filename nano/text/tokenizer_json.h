// huggingface/tokenizers' tokenizer.json, as a PipelineTokenizer. Whatever stages the file states are built; one
// that is not known is an Error with its name. Its truncation and padding are training settings and not used.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/pipeline.h"  // PipelineTokenizer

namespace nano {

// `where` names the file in errors.
std::unique_ptr<PipelineTokenizer> tokenizer_from_json(std::string_view text, const std::string& where);

}  // namespace nano
