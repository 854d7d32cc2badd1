// quant/linear.h and quant/ggml_blocks.h: every block format against gguf-py, parts against decoded rows.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/rng.h"  // random_bits
#include "catch.h"
#include "checkpoint_files.h"   // read_bytes, error_of, contains
#include "quant/activations.h"  // round_activations
#include "quant/ggml_blocks.h"
#include "quant/linear.h"

using namespace nano;
using namespace nano_test;

namespace {

constexpr Source kBlockSources[] = {Source::q4_0, Source::q4_1, Source::q5_0, Source::q5_1, Source::q8_0,
                                    Source::q2_k, Source::q3_k, Source::q4_k, Source::q5_k, Source::q6_k};

std::vector<uint8_t> from_hex(const std::string& hex) {
  std::vector<uint8_t> out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    out.push_back(uint8_t(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return out;
}

// Where the f16 numbers of a block lie: random bytes there may be NaN, so they are set by hand.
std::vector<int64_t> halves_of(Source source) {
  switch (source) {
    case Source::q4_1:
    case Source::q5_1:
    case Source::q4_k:
    case Source::q5_k: return {0, 2};
    case Source::q2_k: return {80, 82};
    case Source::q3_k: return {108};
    case Source::q6_k: return {208};
    default: return {0};
  }
}

std::vector<uint8_t> random_blocks(Source source, int64_t count, uint64_t seed) {
  const BlockFormat& f = block_format(source);
  std::vector<uint8_t> bytes(size_t(count * f.bytes));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = uint8_t(random_bits({seed, 0}, i));
  for (int64_t b = 0; b < count; ++b)
    for (int64_t at : halves_of(source)) {
      const double u = random_uniform({seed, 1}, uint64_t(b * f.bytes + at));
      const uint16_t h = f32_to_f16(float(u - 0.5));
      std::memcpy(&bytes[size_t(b * f.bytes + at)], &h, 2);
    }
  return bytes;
}

bool same_bits(float a, float b) { return f32_bits(a) == f32_bits(b); }

}  // namespace

TEST_CASE("linear: every block format decodes to the bits of gguf-py") {
  const auto golden = nlohmann::json::parse(read_bytes(data_path("golden/ggml_blocks.json")));
  const int64_t N = golden["rows"], K = golden["K"];
  for (Source source : kBlockSources) {
    const std::string name = block_format(source).name;
    CAPTURE(name);
    const std::vector<uint8_t> bytes = from_hex(golden["formats"][name]["bytes"]);
    const std::vector<uint8_t> expected = from_hex(golden["formats"][name]["bits"]);
    const QuantLinear w = describe_blocks("w", bytes.data(), int64_t(bytes.size()), source, N, K);
    REQUIRE(int64_t(expected.size()) == N * K * 4);
    std::vector<float> out(size_t(N * K));
    decode_rows(w, 0, N, out.data());
    CHECK(std::memcmp(out.data(), expected.data(), expected.size()) == 0);
    // One row alone gives the same, from a place that is not aligned.
    std::vector<uint8_t> shifted(bytes.size() + 1);
    std::memcpy(shifted.data() + 1, bytes.data(), bytes.size());
    const QuantLinear moved = describe_blocks("w", shifted.data() + 1, int64_t(bytes.size()), source, N, K);
    std::vector<float> row(static_cast<size_t>(K));
    decode_rows(moved, 1, 1, row.data());
    CHECK(std::memcmp(row.data(), expected.data() + K * 4, size_t(K) * 4) == 0);
  }
}

TEST_CASE("linear: the parts of a row rebuild the decoded row") {
  const uint64_t seed = 77;
  INFO("seed " << seed);
  for (Source source : kBlockSources) {
    const BlockFormat& f = block_format(source);
    CAPTURE(f.name);
    const int64_t N = 3, K = 512;
    const std::vector<uint8_t> bytes = random_blocks(source, N * K / f.elems, seed);
    const QuantLinear w = describe_blocks("w", bytes.data(), int64_t(bytes.size()), source, N, K);
    const int64_t groups = w.num_groups(), supers = w.super_group ? K / w.super_group : 0;
    std::vector<uint8_t> codes(static_cast<size_t>(K)), sub_minimum(static_cast<size_t>(groups));
    std::vector<float> scale(static_cast<size_t>(groups)), minimum(static_cast<size_t>(groups));
    std::vector<float> super_scale(static_cast<size_t>(supers)), super_minimum(static_cast<size_t>(supers));
    std::vector<int8_t> sub_scale(static_cast<size_t>(groups));
    std::vector<float> row(static_cast<size_t>(K));
    int64_t wrong = 0;
    for (int64_t n = 0; n < N; ++n) {
      RowParts parts;
      parts.codes = codes.data(), parts.scale = scale.data(), parts.minimum = minimum.data();
      parts.super_scale = super_scale.data(), parts.super_minimum = super_minimum.data();
      parts.sub_scale = sub_scale.data(), parts.sub_minimum = sub_minimum.data();
      read_row(w, n, parts);
      decode_rows(w, n, 1, row.data());
      for (int64_t k = 0; k < K; ++k) {
        const size_t g = size_t(k / w.group), s = supers ? size_t(k / w.super_group) : 0;
        const uint8_t q = codes[size_t(k)];
        if (w.code == Code::unsigned_bits && q >= (1 << w.bits)) ++wrong;
        float x = w.code == Code::int8 ? scale[g] * float(int8_t(q)) : scale[g] * float(int32_t(q) - w.zero);
        if (w.offset == Offset::minimum) x -= minimum[g];
        if (!same_bits(x, row[size_t(k)])) ++wrong;
        if (supers && !same_bits(scale[g], super_scale[s] * float(sub_scale[g]))) ++wrong;
        if (supers && w.offset == Offset::minimum &&
            !same_bits(minimum[g], super_minimum[s] * float(sub_minimum[g])))
          ++wrong;
      }
      read_row(w, n, RowParts{});  // nothing asked, nothing written
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("linear: what a format is: bits, groups, file bytes") {
  struct Row {
    Source source;
    int bits;
    int64_t group, super_group;
    double bits_per_weight;
  };
  const Row rows[] = {{Source::q4_0, 4, 32, 0, 4.5},      {Source::q4_1, 4, 32, 0, 5.0},
                      {Source::q5_0, 5, 32, 0, 5.5},      {Source::q5_1, 5, 32, 0, 6.0},
                      {Source::q8_0, 8, 32, 0, 8.5},      {Source::q2_k, 2, 16, 256, 2.625},
                      {Source::q3_k, 3, 16, 256, 3.4375}, {Source::q4_k, 4, 32, 256, 4.5},
                      {Source::q5_k, 5, 32, 256, 5.5},    {Source::q6_k, 6, 16, 256, 6.5625}};
  std::vector<uint8_t> bytes(2 * 512 * 2);
  for (const Row& row : rows) {
    const QuantLinear w = describe_blocks("w", bytes.data(), int64_t(bytes.size()), row.source, 2, 512);
    CAPTURE(source_name(w));
    CHECK(w.bits == row.bits);
    CHECK(w.group == row.group);
    CHECK(w.super_group == row.super_group);
    CHECK(std::fabs(bits_per_weight(w) - row.bits_per_weight) <= 0.0);
    CHECK(double(w.file_bytes()) * 8 == row.bits_per_weight * 2 * 512);
  }
}

TEST_CASE("linear: dense matrices of three types, unaligned, decode exactly") {
  const float values[6] = {1.0f, -2.5f, 0.0f, 65504.0f, 6e-8f, -0.15625f};
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    CAPTURE(dtype_name(dtype));
    std::vector<uint8_t> bytes(6 * 4 + 1);
    for (int64_t i = 0; i < 6; ++i) store_f32(bytes.data() + 1, dtype, i, values[i]);
    const QuantLinear w = describe_dense("w", bytes.data() + 1, dtype, 2, 3);
    CHECK(std::string(source_name(w)) == dtype_name(dtype));
    CHECK(w.row_bytes == 3 * dtype_bytes(dtype));
    std::vector<float> out(6);
    decode_rows(w, 0, 2, out.data());
    for (int64_t i = 0; i < 6; ++i) CHECK(same_bits(out[size_t(i)], load_f32(bytes.data() + 1, dtype, i)));
    CHECK(out[1] == -2.5f);
    decode_rows(w, 1, 1, out.data());
    CHECK(out[2] == -0.15625f);
  }
}

TEST_CASE("FP8 E4M3 rounds to the nearest code, ties to even, and saturates") {
  // Against a search over all codes; halfway values are exact in float32.
  std::vector<float> values;
  for (int c = 0; c < 0x7f; ++c) {
    CHECK(f32_to_e4m3(e4m3_to_f32(uint8_t(c))) == c);
    CHECK(f32_to_e4m3(-e4m3_to_f32(uint8_t(c))) == (c | 0x80));
    if (c < 0x7e) values.push_back((e4m3_to_f32(uint8_t(c)) + e4m3_to_f32(uint8_t(c + 1))) / 2);
  }
  for (uint64_t i = 0; i < 2000; ++i) values.push_back(float(std::exp(random_uniform({5, 1}, i) * 16 - 9.5)));
  int64_t wrong = 0;
  for (float x : values) {
    int best = 0;
    for (int c = 1; c < 0x7f; ++c) {
      const double d = std::fabs(e4m3_to_f32(uint8_t(c)) - double(x)),
                   least = std::fabs(e4m3_to_f32(uint8_t(best)) - double(x));
      if (d < least || (d <= least && c % 2 == 0)) best = c;
    }
    wrong += f32_to_e4m3(x) != best;
  }
  CHECK(wrong == 0);
  CHECK(f32_to_e4m3(1e30f) == 0x7e);
  CHECK(f32_to_e4m3(-INFINITY) == 0xfe);
  CHECK(std::isnan(e4m3_to_f32(f32_to_e4m3(NAN))));
}

TEST_CASE("activations: each scheme by hand") {
  auto rounded = [](std::vector<float> x, ActivationScheme scheme, float scale = 0, int32_t zero = 0) {
    round_activations(x.data(), int64_t(x.size()), scheme, scale, zero);
    return x;
  };
  std::vector<float> x(33, 0.0f);
  x[0] = 127, x[1] = 2.5f, x[2] = 3.5f, x[32] = 0.5f;
  std::vector<float> y =
      rounded(x, ActivationScheme::int8_per32);  // 32 with scale 1, then one with scale 0.5/127
  CHECK((y[0] == 127 && y[1] == 2 && y[2] == 4 && y[32] == 0.5f));
  y = rounded(x, ActivationScheme::int8_per_token);
  CHECK((y[0] == 127 && y[1] == 2 && y[32] == 0));
  y = rounded({1.0f, -40.0f, 40.0f, 0.26f}, ActivationScheme::int8_static, 0.25f, 3);
  CHECK((y[0] == 1 && y[1] == 0.25f * (-128 - 3) && y[2] == 0.25f * (127 - 3) && y[3] == 0.25f));
  y = rounded({17.0f, -1000.0f, 0.001f}, ActivationScheme::fp8_static, 1.0f);
  CHECK((y[0] == 16 && y[1] == -448 && y[2] == 0.001953125f));
  y = rounded({448.0f, 17.0f}, ActivationScheme::fp8_token);
  CHECK((y[0] == 448 && y[1] == 16));
  std::vector<float> wide(129, 1.0f);
  wide[0] = 896, wide[1] = 34, wide[128] = 3;
  y = rounded(wide, ActivationScheme::fp8_group128);
  CHECK((y[0] == 896 && y[1] == 32 && y[128] == 3));
  CHECK(rounded(x, ActivationScheme::none) == x);
  CHECK(std::isnan(rounded({NAN, 1.0f}, ActivationScheme::int8_per32)[1]));
  CHECK(std::isnan(rounded({NAN}, ActivationScheme::int8_static, 1.0f)[0]));
}

TEST_CASE("linear: interleaved rows are read in half-split order") {
  // Two heads of 4: half-split row b·2 + i of a head lies at 2i + b in the file.
  std::vector<float> rows = {0, 2, 1, 3, 4, 6, 5, 7};  // the value is the half-split index
  QuantLinear w = describe_dense("w", rows.data(), DType::f32, 8, 1);
  w.rope_interleaved_dim = 4;
  std::vector<float> out(8);
  decode_rows(w, 0, 8, out.data());
  for (int n = 0; n < 8; ++n) CHECK(out[size_t(n)] == float(n));
}

TEST_CASE("Q3 rows that are not a multiple of the block are refused by name") {
  std::vector<uint8_t> bytes(100000);
  auto describe = [&](Source source, int64_t K, int64_t size = 100000) {
    return error_of([&] { describe_blocks("blk.0.ffn_down.weight", bytes.data(), size, source, 4, K); });
  };
  CHECK(describe(Source::q4_k, 512) == "");
  CHECK(describe(Source::q5_0, 288) == "");
  CHECK(contains(describe(Source::q4_k, 288), "blk.0.ffn_down.weight"));
  CHECK(contains(describe(Source::q4_k, 288), "288"));
  CHECK(contains(describe(Source::q4_k, 288), "Q4_K"));
  CHECK(contains(describe(Source::q8_0, 48), "multiple of the Q8_0 block of 32"));
  CHECK(contains(describe(Source::q8_0, 64, 271), "needs 272 bytes, but there are 271"));
  CHECK(describe(Source::q8_0, 64, 272) == "");
  CHECK(contains(describe(Source::q8_0, 0), "empty"));
  CHECK(contains(describe(Source::q8_0, int64_t(1) << 62), "overflows"));
  CHECK(contains(error_of([&] { describe_dense("w", bytes.data(), DType::i8, 2, 2); }), "int8"));
  CHECK(contains(
      error_of([&] { describe_dense("w", bytes.data(), DType::f32, int64_t(1) << 40, int64_t(1) << 40); }),
      "overflows"));
  CHECK(contains(error_of([&] { describe_dense("w", bytes.data(), DType::f32, -1, 2); }), "empty"));
}
