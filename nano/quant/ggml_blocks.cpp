#include "quant/ggml_blocks.h"

#include <cstring>

#include "base/dtype.h"  // f16_to_f32
#include "base/error.h"  // NANO_CHECK

namespace nano {

namespace {

float f16_at(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return f16_to_f32(h);
}

// 16 bytes hold 32 nibbles: the low ones are elements 0 … 15, the high ones 16 … 31.
void unpack_nibbles(const uint8_t* qs, uint8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = qs[j] & 15;
    codes[j + 16] = qs[j] >> 4;
  }
}

// The fifth bit of element e is bit e of a 32-bit word.
void add_fifth_bits(const uint8_t* qh, uint8_t* codes) {
  for (int e = 0; e < 32; ++e) codes[e] |= uint8_t(((qh[e / 8] >> (e % 8)) & 1) << 4);
}

void unpack_q4_0(const uint8_t* b, BlockParts& out) {
  out.scale = f16_at(b);
  unpack_nibbles(b + 2, out.codes);
}

void unpack_q4_1(const uint8_t* b, BlockParts& out) {
  out.scale = f16_at(b);
  out.minimum = -f16_at(b + 2);  // the file adds m, we subtract
  unpack_nibbles(b + 4, out.codes);
}

void unpack_q5_0(const uint8_t* b, BlockParts& out) {
  out.scale = f16_at(b);
  unpack_nibbles(b + 6, out.codes);
  add_fifth_bits(b + 2, out.codes);
}

void unpack_q5_1(const uint8_t* b, BlockParts& out) {
  out.scale = f16_at(b);
  out.minimum = -f16_at(b + 2);
  unpack_nibbles(b + 8, out.codes);
  add_fifth_bits(b + 4, out.codes);
}

void unpack_q8_0(const uint8_t* b, BlockParts& out) {
  out.scale = f16_at(b);
  std::memcpy(out.codes, b + 2, 32);
}

// 64 bytes hold 256 two-bit codes: each half of 32 bytes gives 128 elements, first all lowest pairs of bits,
// then the next pairs, and so on.
void unpack_pairs(const uint8_t* qs, uint8_t* codes) {
  for (int half = 0; half < 2; ++half)
    for (int t = 0; t < 4; ++t)
      for (int l = 0; l < 32; ++l) codes[128 * half + 32 * t + l] = (qs[32 * half + l] >> (2 * t)) & 3;
}

void unpack_q2_k(const uint8_t* b, BlockParts& out) {
  for (int g = 0; g < 16; ++g) {
    out.sub_scale[g] = int8_t(b[g] & 15);
    out.sub_minimum[g] = b[g] >> 4;
  }
  unpack_pairs(b + 16, out.codes);
  out.scale = f16_at(b + 80);  // d comes last here
  out.minimum = f16_at(b + 82);
}

void unpack_q3_k(const uint8_t* b, BlockParts& out) {
  const uint8_t *hmask = b, *qs = b + 32, *scales = b + 96;
  unpack_pairs(qs, out.codes);
  for (int n = 0; n < 8; ++n)  // the third bit: run n of 32 elements uses bit n of each byte
    for (int l = 0; l < 32; ++l) out.codes[32 * n + l] |= uint8_t(((hmask[l] >> n) & 1) << 2);
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
    const int high = (scales[8 + g % 4] >> (2 * (g / 4))) & 3;
    out.sub_scale[g] = int8_t((low | high << 4) - 32);
  }
  out.scale = f16_at(b + 108);
}

// 12 bytes hold eight pairs of 6-bit numbers (sc, mc).
void unpack_six_bit_pairs(const uint8_t* b, BlockParts& out) {
  for (int j = 0; j < 4; ++j) {
    out.sub_scale[j] = int8_t(b[j] & 63);
    out.sub_minimum[j] = b[j + 4] & 63;
    out.sub_scale[j + 4] = int8_t((b[j + 8] & 15) | (b[j] >> 6) << 4);
    out.sub_minimum[j + 4] = uint8_t(b[j + 8] >> 4 | (b[j + 4] >> 6) << 4);
  }
}

// 128 bytes hold 256 nibbles: 32 bytes give group 2i from the low and group 2i+1 from the high halves.
void unpack_nibble_groups(const uint8_t* qs, uint8_t* codes) {
  for (int i = 0; i < 4; ++i)
    for (int l = 0; l < 32; ++l) {
      codes[64 * i + l] = qs[32 * i + l] & 15;
      codes[64 * i + 32 + l] = qs[32 * i + l] >> 4;
    }
}

void unpack_q4_k(const uint8_t* b, BlockParts& out) {
  out.scale = f16_at(b);
  out.minimum = f16_at(b + 2);
  unpack_six_bit_pairs(b + 4, out);
  unpack_nibble_groups(b + 16, out.codes);
}

void unpack_q5_k(const uint8_t* b, BlockParts& out) {
  const uint8_t* qh = b + 16;
  out.scale = f16_at(b);
  out.minimum = f16_at(b + 2);
  unpack_six_bit_pairs(b + 4, out);
  unpack_nibble_groups(b + 48, out.codes);
  for (int g = 0; g < 8; ++g)
    for (int l = 0; l < 32; ++l) out.codes[32 * g + l] |= uint8_t(((qh[l] >> g) & 1) << 4);
}

void unpack_q6_k(const uint8_t* b, BlockParts& out) {
  for (int half = 0; half < 2; ++half) {
    const uint8_t *ql = b + 64 * half, *qh = b + 128 + 32 * half;
    uint8_t* codes = out.codes + 128 * half;
    for (int l = 0; l < 32; ++l) {
      codes[l] = uint8_t((ql[l] & 15) | (qh[l] & 3) << 4);
      codes[l + 32] = uint8_t((ql[l + 32] & 15) | ((qh[l] >> 2) & 3) << 4);
      codes[l + 64] = uint8_t(ql[l] >> 4 | ((qh[l] >> 4) & 3) << 4);
      codes[l + 96] = uint8_t(ql[l + 32] >> 4 | (qh[l] >> 6) << 4);
    }
  }
  std::memcpy(out.sub_scale, b + 192, 16);
  out.scale = f16_at(b + 208);
}

constexpr BlockFormat kFormats[] = {
    // source, name, elems, bytes, bits, group, code, offset, zero, unpack
    {Source::q4_0, "Q4_0", 32, 18, 4, 32, Code::unsigned_bits, Offset::integer, 8, unpack_q4_0},
    {Source::q4_1, "Q4_1", 32, 20, 4, 32, Code::unsigned_bits, Offset::minimum, 0, unpack_q4_1},
    {Source::q5_0, "Q5_0", 32, 22, 5, 32, Code::unsigned_bits, Offset::integer, 16, unpack_q5_0},
    {Source::q5_1, "Q5_1", 32, 24, 5, 32, Code::unsigned_bits, Offset::minimum, 0, unpack_q5_1},
    {Source::q8_0, "Q8_0", 32, 34, 8, 32, Code::int8, Offset::none, 0, unpack_q8_0},
    {Source::q2_k, "Q2_K", 256, 84, 2, 16, Code::unsigned_bits, Offset::minimum, 0, unpack_q2_k},
    {Source::q3_k, "Q3_K", 256, 110, 3, 16, Code::unsigned_bits, Offset::integer, 4, unpack_q3_k},
    {Source::q4_k, "Q4_K", 256, 144, 4, 32, Code::unsigned_bits, Offset::minimum, 0, unpack_q4_k},
    {Source::q5_k, "Q5_K", 256, 176, 5, 32, Code::unsigned_bits, Offset::minimum, 0, unpack_q5_k},
    {Source::q6_k, "Q6_K", 256, 210, 6, 16, Code::unsigned_bits, Offset::integer, 32, unpack_q6_k},
};

}  // namespace

const BlockFormat& block_format(Source source) {
  for (const BlockFormat& f : kFormats)
    if (f.source == source) return f;
  check_failed(__FILE__, __LINE__, "block format", "a dense matrix has no blocks");
}

}  // namespace nano
