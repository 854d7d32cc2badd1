// checkpoint/gguf.h: reading values and tensors, and every way a file can be broken.
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"  // random_bits
#include "catch.h"
#include "checkpoint/gguf.h"
#include "checkpoint_files.h"  // GgufBuilder, error_of

using namespace nano;
using namespace nano_test;

namespace {

// Over a buffer of exactly this size, so that a sanitizer sees any step past its end.
struct InMemory {
  explicit InMemory(const std::string& file)
      : bytes(file.begin(), file.end()), gguf(bytes.data(), bytes.size(), "memory.gguf") {}
  std::vector<uint8_t> bytes;
  GgufFile gguf;
};

std::string load_error(const std::string& file) {
  return error_of([&] { InMemory loaded(file); });
}
std::string load_error(const GgufBuilder& builder) { return load_error(builder.build()); }

GgufBuilder small_file() {
  GgufBuilder b;
  b.kvs = {gguf_text("general.architecture", "llama"), gguf_u32("llama.block_count", 2),
           gguf_array("tokenizer.ggml.tokens", 8, 2, gguf_string("a") + gguf_string("bc")),
           gguf_array("scores", 6, 2, raw(1.5f) + raw(-2.0f))};
  b.add("one", {3}, 0, raw(1.0f) + raw(2.0f) + raw(3.0f));
  b.add("two", {32, 2}, 8, std::string(68, '\1'));
  return b;
}

// Reads every value in every way: what the walk accepted must be safe to read.
void read_everything(const GgufFile& file) {
  for (const char* key : {"general.architecture", "llama.block_count", "tokenizer.ggml.tokens", "scores",
                          "tokenizer.ggml.token_type", "llama.rope.freq_base"}) {
    error_of([&] { file.get_int(key); });
    error_of([&] { file.get_float(key); });
    error_of([&] { file.get_bool(key, false); });
    error_of([&] { file.get_strings(key); });
    error_of([&] { file.get_ints(key); });
    error_of([&] { file.get_floats(key); });
    error_of([&] { file.get_bools(key); });
  }
}

}  // namespace

TEST_CASE("gguf: tensors and values of a small file") {
  const InMemory m(small_file().build());
  REQUIRE(m.gguf.tensors().size() == 2);
  const GgufTensor* two = m.gguf.find("two");
  REQUIRE(two);
  CHECK(two->source == Source::q8_0);
  CHECK(two->shape == std::vector<int64_t>{2, 32});  // row-major: the file has the fastest first
  CHECK(two->bytes == 68);
  const GgufTensor* one = m.gguf.find("one");
  REQUIRE(one);
  float third;
  std::memcpy(&third, one->data + 8, 4);
  CHECK(third == 3.0f);
  CHECK(m.gguf.find("three") == nullptr);
  CHECK(m.gguf.get_string("general.architecture") == "llama");
  CHECK(m.gguf.get_strings("tokenizer.ggml.tokens") == std::vector<std::string>{"a", "bc"});
  CHECK(m.gguf.get_floats("scores") == std::vector<double>{1.5, -2.0});
  CHECK(m.gguf.is_array("scores"));
  CHECK(!m.gguf.is_array("llama.block_count"));
  CHECK(m.gguf.mapping() == nullptr);
}

TEST_CASE("gguf: integers of every width, and conversions that do not fit") {
  GgufBuilder b;
  b.kvs = {gguf_kv("u8", 0, raw(uint8_t(200))),
           gguf_kv("i8", 1, raw(int8_t(-3))),
           gguf_kv("u16", 2, raw(uint16_t(65535))),
           gguf_kv("i16", 3, raw(int16_t(-30000))),
           gguf_kv("u32", 4, raw(uint32_t(4000000000))),
           gguf_kv("i32", 5, raw(int32_t(-7))),
           gguf_kv("u64", 10, raw(uint64_t(1) << 40)),
           gguf_kv("i64", 11, raw(int64_t(-1) << 40)),
           gguf_kv("huge", 10, raw(~uint64_t(0))),
           gguf_kv("f32", 6, raw(0.5f)),
           gguf_kv("f64", 12, raw(0.1)),
           gguf_kv("yes", 7, raw(uint8_t(1))),
           gguf_array("bools", 7, 3, std::string("\1\0\1", 3)),
           gguf_array("empty", 4, 0, "")};
  const InMemory m(b.build());
  const GgufFile& f = m.gguf;
  CHECK(f.tensors().empty());  // a vocabulary-only file
  CHECK(f.get_int("u8") == 200);
  CHECK(f.get_int("i8") == -3);
  CHECK(f.get_int("u16") == 65535);
  CHECK(f.get_int("i16") == -30000);
  CHECK(f.get_int("u32") == 4000000000);
  CHECK(f.get_int("i32") == -7);
  CHECK(f.get_int("u64") == int64_t(1) << 40);
  CHECK(f.get_int("i64") == -(int64_t(1) << 40));
  CHECK(f.get_float("f32") == 0.5);
  CHECK(f.get_float("f64") == 0.1);
  CHECK(f.get_bool("yes", false));
  CHECK(f.get_bools("bools") == std::vector<bool>{true, false, true});
  CHECK(f.get_ints("empty").empty());
  CHECK(f.get_ints("i32") == std::vector<int64_t>{-7});  // one value is a list of one
  CHECK(f.get_int("absent", 5) == 5);
  CHECK(f.get_string("absent", "x") == "x");
  CHECK(contains(error_of([&] { f.get_int("huge"); }), "'huge' is 18446744073709551615, which is too large"));
  CHECK(contains(error_of([&] { f.get_int("absent"); }), "'absent' is missing"));
  CHECK(contains(error_of([&] { f.get_int("f32"); }), "'f32' is f32, not an integer"));
  CHECK(contains(error_of([&] { f.get_int("f32", 3); }), "'f32'"));  // a wrong type is no missing key
  CHECK(contains(error_of([&] { f.get_float("u8"); }), "'u8' is u8"));
  CHECK(contains(error_of([&] { f.get_int("bools"); }), "'bools' is an array of bool, not one value"));
  CHECK(contains(error_of([&] { f.get_string("yes"); }), "'yes' is bool, not strings"));
  CHECK(contains(error_of([&] { f.get_bool("u8", true); }), "'u8'"));
  CHECK(contains(error_of([&] { f.get_bools("empty"); }), "'empty'"));
}

TEST_CASE("gguf: versions 2 and 3 load, others have their own message") {
  GgufBuilder b = small_file();
  b.version = 2;
  CHECK(load_error(b) == "");
  b.version = 1;
  CHECK(contains(load_error(b), "version 1 is not supported"));
  b.version = 0;
  CHECK(contains(load_error(b), "version 0 is not known"));
  b.version = 4;
  CHECK(contains(load_error(b), "version 4"));
  b.version = 0x03000000;
  CHECK(contains(load_error(b), "big-endian"));
  b.version = 3;
  b.magic = "GGML";
  CHECK(contains(load_error(b), "not a GGUF file"));
}

TEST_CASE("gguf: hostile headers are refused with the name of the culprit") {
  struct Row {
    const char* what;
    void (*spoil)(GgufBuilder&);
    const char* message;
  };
  const Row rows[] = {
      {"2^62 tensors", [](GgufBuilder& b) { b.claimed_tensors = int64_t(1) << 62; }, "do not fit"},
      {"2^62 keys", [](GgufBuilder& b) { b.claimed_kvs = int64_t(1) << 62; }, "do not fit"},
      {"a few tensors too many", [](GgufBuilder& b) { b.claimed_tensors = 3; }, "tensor"},
      {"empty key", [](GgufBuilder& b) { b.kvs.push_back(gguf_u32("", 1)); }, "empty key"},
      {"key twice", [](GgufBuilder& b) { b.kvs.push_back(gguf_u32("scores", 1)); }, "'scores'"},
      {"key of 2^63 bytes", [](GgufBuilder& b) { b.kvs.push_back(raw(uint64_t(1) << 63)); },
       "truncated: key 4"},
      {"value type 13", [](GgufBuilder& b) { b.kvs.push_back(gguf_kv("odd", 13, "")); }, "'odd'"},
      {"array of arrays", [](GgufBuilder& b) { b.kvs.push_back(gguf_array("nest", 9, 1, "")); },
       "array of arrays"},
      {"array of 2^61 u64",
       [](GgufBuilder& b) { b.kvs.push_back(gguf_array("big", 10, uint64_t(1) << 61, "")); }, "'big'"},
      {"array past the end", [](GgufBuilder& b) { b.kvs.push_back(gguf_array("big", 10, 90, "")); }, "'big'"},
      {"array of 2^64-1 strings",
       [](GgufBuilder& b) { b.kvs.push_back(gguf_array("big", 8, ~uint64_t(0), "")); }, "'big'"},
      {"string past the end",
       [](GgufBuilder& b) { b.kvs.push_back(gguf_kv("s", 8, raw(uint64_t(1) << 40))); }, "'s'"},
      {"bool of 2", [](GgufBuilder& b) { b.kvs.push_back(gguf_kv("maybe", 7, "\2")); }, "'maybe'"},
      {"alignment 0", [](GgufBuilder& b) { b.kvs.push_back(gguf_u32("general.alignment", 0)); },
       "power of two"},
      {"alignment 48", [](GgufBuilder& b) { b.kvs.push_back(gguf_u32("general.alignment", 48)); },
       "power of two"},
      {"alignment as text", [](GgufBuilder& b) { b.kvs.push_back(gguf_text("general.alignment", "32")); },
       "general.alignment"},
      {"split file", [](GgufBuilder& b) { b.kvs.push_back(gguf_kv("split.count", 2, raw(uint16_t(3)))); },
       "merge"},
      {"name twice", [](GgufBuilder& b) { b.add("one", {1}, 0, raw(1.0f)); }, "'one' occurs twice"},
      {"empty name", [](GgufBuilder& b) { b.infos[1].name = ""; }, "0 bytes"},
      {"name of 64 bytes", [](GgufBuilder& b) { b.infos[1].name = std::string(64, 'x'); }, "64 bytes"},
      {"no dimensions", [](GgufBuilder& b) { b.infos[0].dims = {}; }, "'one'"},
      {"five dimensions",
       [](GgufBuilder& b) {
         b.infos[0].dims = {3, 1, 1, 1, 1};
       },
       "5 dimensions"},
      {"dimension 0",
       [](GgufBuilder& b) {
         b.infos[0].dims = {3, 0};
       },
       "dimension of 0"},
      {"dimension 2^63",
       [](GgufBuilder& b) {
         b.infos[0].dims = {3, uint64_t(1) << 63};
       },
       "'one'"},
      {"product overflows",
       [](GgufBuilder& b) {
         b.infos[0].dims = {4, 1u << 31, 1u << 31, 1u << 31};
       },
       "overflows"},
      {"bytes overflow", [](GgufBuilder& b) { b.infos[0].dims = {uint64_t(1) << 62}; }, "overflows"},
      {"row not whole blocks",
       [](GgufBuilder& b) {
         b.infos[1].dims = {33, 2};
       },
       "'two'"},
      {"type 4, removed", [](GgufBuilder& b) { b.infos[1].type = 4; }, "type id 4"},
      {"type 39, MXFP4", [](GgufBuilder& b) { b.infos[1].type = 39; }, "type id 39"},
      {"type 2^32-1", [](GgufBuilder& b) { b.infos[1].type = ~0u; }, "type id 4294967295"},
      {"overlap", [](GgufBuilder& b) { b.infos[1].offset = 0; }, "overlap"},
      {"hole", [](GgufBuilder& b) { b.infos[1].offset = 64; }, "hole"},
      {"offset 2^64-32", [](GgufBuilder& b) { b.infos[1].offset = ~uint64_t(31); }, "'two'"},
      {"tensor past the end",
       [](GgufBuilder& b) {
         b.infos[1].dims = {32, 3};
       },
       "truncated: tensor 'two'"},
  };
  REQUIRE(load_error(small_file()) == "");
  for (const Row& row : rows) {
    CAPTURE(row.what);
    GgufBuilder b = small_file();
    row.spoil(b);
    const std::string message = load_error(b);
    CAPTURE(message);
    CHECK(contains(message, row.message));
    CHECK(contains(message, "memory.gguf"));
  }
}

TEST_CASE("gguf: a file with another alignment") {
  GgufBuilder b = small_file();
  b.kvs.push_back(gguf_u32("general.alignment", 64));
  b.infos[1].offset = 64;
  b.data = b.data.substr(0, 12) + std::string(52, '\0') + std::string(68, '\1');
  const InMemory m(b.build(64));
  CHECK(m.gguf.find("two")->data[0] == 1);
  CHECK(m.gguf.find("two")->data - m.bytes.data() == int64_t(m.bytes.size()) - 68);
}

TEST_CASE("Q9 gguf: every cut is found, and said to be a cut") {
  const std::string whole = small_file().build();
  REQUIRE(load_error(whole) == "");
  int64_t silent = 0, other = 0;
  for (size_t length = 0; length < whole.size(); ++length) {
    const std::string message = load_error(whole.substr(0, length));
    if (message.empty()) ++silent;
    if (length >= 4 && !contains(message, "truncated")) ++other;
  }
  CHECK(silent == 0);
  CHECK(other == 0);
  const std::string last = load_error(whole.substr(0, whole.size() - 1));
  CHECK(contains(last, "'two'"));
  CHECK(contains(last, std::to_string(whole.size()) + " bytes but has " + std::to_string(whole.size() - 1)));
  // Only the padding after the last tensor may be missing.
  CHECK(load_error(whole + std::string(28, '\0')) == "");
}

TEST_CASE("gguf: 2000 random byte flips load or are refused") {
  const uint64_t seed = 4711;
  INFO("seed " << seed);
  const std::string good = read_bytes(data_path("golden/checkpoints/gguf-llama/gguf-llama.Q4_0.gguf"));
  const std::string small = small_file().build();
  REQUIRE(good.size() > 20000);
  int loaded = 0, refused = 0;
  for (uint64_t i = 0; i < 2000; ++i) {
    const uint64_t bits = random_bits({seed, 0}, i);
    // Mostly the small file, where each byte means something; sometimes the head of a real one.
    std::string file = i % 20 == 0 ? good : small;
    const size_t range = i % 20 == 0 ? 12000 : file.size();
    for (uint64_t flips = 0; flips <= (bits & 1); ++flips)
      file[size_t((bits >> (8 + 24 * flips)) % range)] ^= char(1 << ((bits >> 1) & 7));
    const std::string message = error_of([&] {
      const InMemory m(file);
      read_everything(m.gguf);
    });
    message.empty() ? ++loaded : ++refused;
  }
  CHECK(loaded > 100);
  CHECK(refused > 100);
}

TEST_CASE("gguf: element types by id, and the bytes they take") {
  struct Row {
    uint32_t id;
    Source source;
    DType dtype;
    uint64_t row, bytes;
  };
  const Row rows[] = {{0, Source::dense, DType::f32, 1, 4},     {1, Source::dense, DType::f16, 1, 2},
                      {30, Source::dense, DType::bf16, 1, 2},   {2, Source::q4_0, DType::f32, 32, 18},
                      {3, Source::q4_1, DType::f32, 32, 20},    {6, Source::q5_0, DType::f32, 32, 22},
                      {7, Source::q5_1, DType::f32, 32, 24},    {8, Source::q8_0, DType::f32, 32, 34},
                      {10, Source::q2_k, DType::f32, 256, 84},  {11, Source::q3_k, DType::f32, 256, 110},
                      {12, Source::q4_k, DType::f32, 256, 144}, {13, Source::q5_k, DType::f32, 256, 176},
                      {14, Source::q6_k, DType::f32, 256, 210}};
  for (const Row& row : rows) {
    CAPTURE(row.id);
    GgufBuilder b;
    b.add("t", {row.row, 3}, row.id, std::string(3 * row.bytes, '\1'));
    const InMemory m(b.build());
    const GgufTensor& t = m.gguf.tensors().at(0);
    CHECK(t.source == row.source);
    CHECK((t.source != Source::dense || t.dtype == row.dtype));
    CHECK(t.bytes == int64_t(3 * row.bytes));
    if (row.row > 1) {
      b.infos[0].dims = {row.row / 2, 6};
      CHECK(contains(load_error(b), "not a multiple of the"));
    }
  }
}
