// The block formats of GGML, taken apart: one row of a table per format, one function that unpacks a block.
//
// A block is 32 or 256 consecutive elements of a row with their scales. Formats of 32 are one-level: a scale d,
// and for the "_1" kinds a minimum. Formats of 256 (K-quants) are two-level: d and dmin are shared by the block,
// and each group of 16 or 32 has small integers sc and mc, so that  w = (d·sc)·(q − zero) − dmin·mc.
// This is the only place that knows their bit layouts. It does not know about rows, files or float results.
// Source: ggml-org/llama.cpp ggml/src/ggml-common.h (layouts), checked against gguf-py's dequantize.
#pragma once

#include <cstdint>

#include "quant/linear.h"  // Source, Code, Offset

namespace nano {

struct BlockParts {
  uint8_t codes[256];       // q: 0 … 2^bits − 1, or int8 bit patterns
  float scale = 0;          // d
  float minimum = 0;        // m of w = d·q − m, or dmin
  int8_t sub_scale[16];     // two-level only: sc per group
  uint8_t sub_minimum[16];  // two-level with a minimum: mc per group
};

struct BlockFormat {
  Source source;
  const char* name;  // as the file's users know it: "Q4_K"
  int64_t elems, bytes;
  int bits;
  int64_t group;
  Code code;
  Offset offset;
  int32_t zero;
  void (*unpack)(const uint8_t* block, BlockParts& out);

  bool two_level() const { return elems > group; }
};

// REQUIRES: source is not Source::dense.
const BlockFormat& block_format(Source source);

}  // namespace nano
