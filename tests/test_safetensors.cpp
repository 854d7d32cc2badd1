// checkpoint/safetensors.h: reading tensors, and every check that the reference implementation makes.
#include <cstring>
#include <string>
#include <vector>

#include "base/dtype.h"  // load_f32
#include "base/rng.h"    // random_bits
#include "catch.h"
#include "checkpoint/safetensors.h"
#include "checkpoint_files.h"  // safetensors, error_of

using namespace nano;
using namespace nano_test;

namespace {

struct InMemory {
  explicit InMemory(const std::string& text)
      : bytes(text.begin(), text.end()), file(bytes.data(), bytes.size(), "memory.safetensors") {}
  std::vector<uint8_t> bytes;
  SafetensorsFile file;
};

std::string load_error(const std::string& text) {
  return error_of([&] { InMemory loaded(text); });
}

const std::string kHeader =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]},)"
    R"("none":{"dtype":"I8","shape":[0,4],"data_offsets":[8,8]},)"
    R"("scalar":{"dtype":"F16","shape":[],"data_offsets":[14,16]}})";

std::string small_file() {
  return safetensors(kHeader, raw(1.5f) + raw(-2.0f) + raw(uint16_t(0x3f80)) + raw(uint16_t(0x4000)) +
                                  raw(uint16_t(0xc040)) + raw(uint16_t(0x3c00)));
}

// The header with one part replaced.
std::string patched(const std::string& from, const std::string& to) {
  std::string header = kHeader;
  const size_t at = header.find(from);
  REQUIRE(at != header.npos);
  header.replace(at, from.size(), to);
  return safetensors(header, small_file().substr(8 + kHeader.size()));
}

}  // namespace

TEST_CASE("safetensors: tensors of a small file, with a scalar and an empty one") {
  const InMemory m(small_file());
  const Tensor* a = m.file.find("a");
  REQUIRE(a);
  CHECK(a->dtype == DType::f32);
  CHECK(a->shape == std::vector<int64_t>{2, 1});
  CHECK(load_f32(a->data, a->dtype, 1) == -2.0f);
  CHECK(load_f32(m.file.find("b")->data, DType::bf16, 2) == -3.0f);
  CHECK(m.file.find("none")->numel() == 0);
  CHECK(m.file.find("scalar")->shape.empty());
  CHECK(load_f32(m.file.find("scalar")->data, DType::f16, 0) == 1.0f);
  CHECK(m.file.find("c") == nullptr);
  CHECK(m.file.names().size() == 4);  // __metadata__ is no tensor
}

TEST_CASE("safetensors: padding after the header, and types that cannot be read") {
  const std::string data = std::string(8, '\0');
  const std::string header = R"({"d":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}    )";
  const InMemory m(safetensors(header, data));
  CHECK(m.file.names() == std::vector<std::string>{"d"});
  CHECK(contains(error_of([&] { m.file.find("d"); }), "'d' has the element type F64"));
}

TEST_CASE("Q9 safetensors: broken files are refused with what is wrong") {
  const std::string good = small_file();
  REQUIRE(load_error(good) == "");
  const std::string body = good.substr(8);
  CHECK(contains(load_error(raw(uint64_t(1) << 63) + body), "9223372036854775808"));
  CHECK(contains(load_error(raw(~uint64_t(0)) + body), "header would have"));
  CHECK(contains(load_error(raw(uint64_t(good.size())) + body), "truncated: the header"));
  CHECK(contains(load_error(raw(uint64_t(100'000'001)) + body), "at most 100000000"));
  CHECK(contains(load_error(safetensors("{not json}", "")), "invalid JSON"));
  CHECK(contains(load_error(safetensors("[1, 2]", "")), "not JSON"));
  CHECK(contains(load_error(safetensors("", "")), "not JSON"));
  CHECK(contains(load_error("abc"), "truncated"));
  // Padding with NUL, or anything behind one.
  CHECK(contains(load_error(safetensors(std::string("{}\0\0", 4), "")), "column 3: a NUL byte"));
  CHECK(contains(load_error(good + "x"), "1 bytes follow the last tensor"));
  CHECK(contains(load_error(patched("[14,16]", "[14,18]")), "'scalar'"));       // size ≠ shape
  CHECK(contains(load_error(patched("[14,16]", "[16,14]")), "after its end"));  // begin > end
  CHECK(contains(load_error(patched("[8,14]", "[4,10]")), "overlap"));          // two tensors overlap
  CHECK(contains(load_error(patched("[14,16]", "[16,18]")), "hole"));           // a hole
  CHECK(contains(load_error(patched("[2,1],\"data_offsets\":[0,8]", "[2,2],\"data_offsets\":[0,16]")),
                 "overlap"));
  CHECK(contains(load_error(patched("\"scalar\"", "\"a\"")), "'a' occurs twice"));
  CHECK(contains(load_error(patched("\"F16\"", "\"F17\"")), "'F17'"));
  CHECK(contains(load_error(patched("\"F16\"", "16")), "no 'dtype'"));
  CHECK(contains(load_error(patched("[2,1]", "[2,-1]")), "'shape'"));
  CHECK(contains(load_error(patched("[2,1]", "[2.0,1]")), "'shape'"));
  CHECK(contains(load_error(patched("[2,1]", "2")), "'shape'"));
  CHECK(contains(load_error(patched("[2,1]", "[4294967296,4294967296]")), "overflows"));
  CHECK(contains(load_error(patched("[0,8]", "[0,8,9]")), "not a pair"));
  CHECK(contains(load_error(patched("[0,8]", "[0]")), "not a pair"));
  CHECK(
      contains(load_error(patched(R"({"dtype":"F16","shape":[],"data_offsets":[14,16]})", "7")), "'scalar'"));
  CHECK(contains(load_error(patched("\"F16\",\"shape\":[]", "\"F4\",\"shape\":[3]")),
                 "'scalar'"));  // half a byte
}

TEST_CASE("Q9 safetensors: an offset pair past the end names tensor and sizes") {
  const std::string good = small_file();
  const std::string cut = load_error(good.substr(0, good.size() - 1));
  CHECK(contains(cut, "truncated: tensor 'scalar'"));
  CHECK(contains(cut, "has " + std::to_string(good.size() - 1)));
}

TEST_CASE("safetensors: every cut and 2000 byte flips load or are refused") {
  const std::string good = small_file();
  int silent = 0;
  for (size_t length = 0; length < good.size(); ++length)
    silent += load_error(good.substr(0, length)).empty();
  CHECK(silent == 0);
  const uint64_t seed = 99;
  INFO("seed " << seed);
  int loaded = 0, refused = 0;
  for (uint64_t i = 0; i < 2000; ++i) {
    const uint64_t bits = random_bits({seed, 0}, i);
    std::string file = good;
    file[size_t((bits >> 8) % file.size())] ^= char(1 << (bits & 7));
    load_error(file).empty() ? ++loaded : ++refused;
  }
  CHECK(loaded > 50);
  CHECK(refused > 500);
}
