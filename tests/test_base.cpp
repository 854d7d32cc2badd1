// base/: random numbers, number formats, errors, mapped files.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "base/rng.h"
#include "catch.h"
#include "subprocess.h"  // data_path, nano_binary, run_nano, tiny

using namespace nano;

TEST_CASE("philox4x32: known answers of Random123") {
  using Words = std::array<uint32_t, 4>;
  const uint32_t f = 0xffffffffu;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({f, f, f, f}, {f, f}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("rng: every part of the key matters") {
  CHECK(random_bits({0, 0}, 0) == 0xe169c58d6627e8d5u);
  const RngKey key{0x123456789abcdef0u, 7};
  const uint64_t bits = random_bits(key, 5);
  CHECK(bits == random_bits(key, 5));
  for (int bit = 0; bit < 64; ++bit) {
    CAPTURE(bit);
    CHECK(bits != random_bits({key.seed ^ (uint64_t(1) << bit), 7}, 5));
    CHECK(bits != random_bits(key, 5 ^ (uint64_t(1) << bit)));
    if (bit < 32) CHECK(bits != random_bits({key.seed, 7 ^ (1u << bit)}, 5));
  }
}

TEST_CASE("rng: uniform is never 0 and never 1") {
  // Keys that give 64 ones and 64 zeros, found by running Philox backwards.
  const RngKey ones{0, 0x033a83aa}, zeros{0, 0xadcbd2c4};
  const uint64_t ones_draw = 0x3c1e6658a4376e5a, zeros_draw = 0xf783ed5a01eea480;
  REQUIRE(random_bits(ones, ones_draw) == ~uint64_t(0));
  REQUIRE(random_bits(zeros, zeros_draw) == 0);
  CHECK(random_uniform(ones, ones_draw) < 1.0);
  CHECK(random_uniform(ones, ones_draw) > 1.0 - 1e-15);
  CHECK(random_uniform(zeros, zeros_draw) > 0.0);
  CHECK(random_uniform(zeros, zeros_draw) < 1e-15);
}

TEST_CASE("rng: moments of the uniform") {
  const int n = 100000;
  double u1 = 0, u2 = 0, lag = 0;
  for (int i = 0; i < n; ++i) {
    const double u = random_uniform({1, 2}, i);
    u1 += u, u2 += u * u;
    lag += (u - 0.5) * (random_uniform({1, 2}, i + 1) - 0.5);
  }
  // Five standard deviations of each mean.
  const double s = 5 / std::sqrt(double(n));
  CHECK(std::abs(u1 / n - 0.5) <= s * std::sqrt(1 / 12.0));
  CHECK(std::abs(u2 / n - 1 / 3.0) <= s * std::sqrt(4 / 45.0));
  CHECK(std::abs(lag / n) <= s / 12);
}

namespace {

// The value of a small format by its definition: sign, exponent field, mantissa; `ieee` has infinities and NaNs
// at the top exponent. Slow on purpose, in double.
double decode(uint32_t code, int exponent_bits, int mantissa_bits, bool ieee) {
  const int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
  const int exponent = int(code >> mantissa_bits) & top, mantissa = int(code) & ((1 << mantissa_bits) - 1);
  const double sign = (code >> (exponent_bits + mantissa_bits)) & 1 ? -1.0 : 1.0;
  if (ieee && exponent == top) return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

bool same(double a, double b) {
  if (std::isnan(b)) return std::isnan(a);
  return a == b && std::signbit(a) == std::signbit(b);
}

struct Format {
  int exponent_bits, mantissa_bits;
  float (*to_f32)(uint16_t);
  uint16_t (*from_f32)(float);
};
const Format kF16{5, 10, f16_to_f32, f32_to_f16}, kBf16{8, 7, bf16_to_f32, f32_to_bf16};

int wrong_decodes(const Format& f) {
  int wrong = 0;
  for (uint32_t code = 0; code < 65536; ++code)
    wrong += !same(f.to_f32(uint16_t(code)), decode(code, f.exponent_bits, f.mantissa_bits, true));
  return wrong;
}

int wrong_round_trips(const Format& f) {
  int wrong = 0;
  for (uint32_t code = 0; code < 65536; ++code) {
    const float x = f.to_f32(uint16_t(code));
    const uint16_t back = f.from_f32(x);
    wrong += std::isnan(x) ? !std::isnan(f.to_f32(back)) || (back ^ code) & 0x8000 : back != code;
  }
  return wrong;
}

// Between each value and the next one up (infinity counts as the power of two it stands in for): just below the
// middle goes down, just above goes up, the middle goes to the even code.
int wrong_roundings(const Format& f) {
  const uint32_t infinity = ((1u << f.exponent_bits) - 1) << f.mantissa_bits;
  int wrong = 0;
  for (uint32_t low = 0; low < infinity; ++low) {
    const double a = decode(low, f.exponent_bits, f.mantissa_bits, false);
    const double b = decode(low + 1, f.exponent_bits, f.mantissa_bits, false);
    const float middle = float((a + b) / 2);
    if (double(middle) != (a + b) / 2) return -1;  // the test itself needs exact middles
    for (int sign = 0; sign < 2; ++sign) {
      const uint32_t s = sign ? 0x8000 : 0;
      const float x = sign ? -middle : middle;
      wrong += f.from_f32(x) != (s | (low % 2 ? low + 1 : low));
      wrong += f.from_f32(std::nextafter(x, 0.0f)) != (s | low);
      wrong += f.from_f32(std::nextafter(x, sign ? -INFINITY : INFINITY)) != (s | (low + 1));
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("dtype: all 65536 halves and bfloat16s decode by definition") {
  CHECK(wrong_decodes(kF16) == 0);
  CHECK(wrong_decodes(kBf16) == 0);
}

TEST_CASE("dtype: all 65536 halves and bfloat16s survive a round trip") {
  CHECK(wrong_round_trips(kF16) == 0);
  CHECK(wrong_round_trips(kBf16) == 0);
}

TEST_CASE("dtype: rounding to nearest, ties to even, at every step of f16 and bf16") {
  CHECK(wrong_roundings(kF16) == 0);
  CHECK(wrong_roundings(kBf16) == 0);
}

TEST_CASE("dtype: far ends of f16 and bf16") {
  CHECK(f32_to_f16(1e30f) == 0x7c00);
  CHECK(f32_to_f16(-INFINITY) == 0xfc00);
  CHECK(f32_to_f16(1e-30f) == 0);
  CHECK(f32_to_f16(-1e-45f) == 0x8000);
  CHECK(f32_to_bf16(-INFINITY) == 0xff80);
  CHECK(f32_to_bf16(1e-45f) == 0);
  for (uint32_t payload : {0x7f800001u, 0x7fffffffu, 0x7fc00000u, 0xffc00001u, 0xff802000u}) {
    CAPTURE(payload);
    CHECK(std::isnan(f16_to_f32(f32_to_f16(bits_f32(payload)))));
    CHECK(std::isnan(bf16_to_f32(f32_to_bf16(bits_f32(payload)))));
  }
}

TEST_CASE("dtype: all 256 FP8 E4M3 codes decode by definition") {
  int wrong = 0;
  for (uint32_t code = 0; code < 256; ++code)
    wrong += !same(e4m3_to_f32(uint8_t(code)), (code & 0x7f) == 0x7f ? NAN : decode(code, 4, 3, false));
  CHECK(wrong == 0);
  CHECK(e4m3_to_f32(0x7e) == 448.0f);  // the largest, as the paper states it
}

TEST_CASE("dtype: sizes, and elements of arrays") {
  CHECK(dtype_bytes(DType::f32) == 4);
  CHECK(dtype_bytes(DType::bf16) == 2);
  CHECK(dtype_bytes(DType::e4m3) == 1);
  CHECK(dtype_bytes(DType::i64) == 8);
  CHECK(std::string(dtype_name(DType::bf16)) == "bfloat16");
  for (DType t : {DType::f32, DType::f16, DType::bf16}) {
    CAPTURE(dtype_name(t));
    std::vector<uint8_t> bytes(3 * dtype_bytes(t) + 1);
    uint8_t* unaligned = bytes.data() + 1;
    for (int i = 0; i < 3; ++i) store_f32(unaligned, t, i, 1.5f - float(i));
    for (int i = 0; i < 3; ++i) CHECK(load_f32(unaligned, t, i) == 1.5f - float(i));
  }
  const uint8_t fp8[] = {0x38, 0xb8};
  CHECK(load_f32(fp8, DType::e4m3, 1) == -1.0f);
}

TEST_CASE("Error: where, problem and hint on one line") {
  CHECK(std::string(Error("too short", "a.gguf", "download it again").what()) ==
        "a.gguf: too short (download it again)");
  CHECK(std::string(Error("too short").what()) == "too short");
  CHECK(std::string(Error("too short", "", "hint").what()) == "too short (hint)");
  const std::string foreign = Error("bad key 'a\nb'", "dir\r\n/x", "drop\nit").what();
  CHECK(foreign.find_first_of("\r\n") == std::string::npos);
  CHECK(foreign.find("bad key 'a b'") != std::string::npos);
  const Error e("p\nq", "w", "h");
  CHECK(e.problem == "p\nq");
  CHECK(e.where == "w");
  CHECK(e.hint == "h");
}

TEST_CASE("NANO_CHECK: says the place in one line and aborts") {
  NANO_CHECK(1 + 1 == 2, "arithmetic");
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    dup2(ends[1], 2);
    NANO_CHECK(1 + 1 == 3, std::string("row ") + "index");
    _exit(0);
  }
  close(ends[1]);
  char buffer[512];
  const ssize_t n = read(ends[0], buffer, sizeof buffer);
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
  REQUIRE(n > 0);
  const std::string line(buffer, size_t(n));
  CHECK(line.find("test_base.cpp") != std::string::npos);
  const std::string end = "1 + 1 == 3: row index\n";
  REQUIRE(line.size() > end.size());
  CHECK(line.substr(line.size() - end.size()) == end);
  CHECK(line.find('\n') == line.size() - 1);
}

namespace {

struct TempDir {
  std::string path = (std::filesystem::temp_directory_path() / "nano-test-XXXXXX").string();
  TempDir() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~TempDir() { std::filesystem::remove_all(path); }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path + "/" + name, std::ios::binary) << content;
    return path + "/" + name;
  }
};

template <class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no Error";
}

}  // namespace

TEST_CASE("MappedFile: the bytes of the file, also after the pages were dropped") {
  TempDir dir;
  std::string content;
  for (int i = 0; i < 100000; ++i) content += char(random_bits({5, 0}, i));
  const MappedFile file(dir.write("data", content));
  REQUIRE(file.size() == content.size());
  CHECK(file.path() == dir.path + "/data");
  CHECK(std::memcmp(file.data(), content.data(), content.size()) == 0);
  file.drop_pages(file.data() + 10, 50000);
  file.drop_pages(file.data() + 1, 2);  // not one whole page
  CHECK(std::memcmp(file.data(), content.data(), content.size()) == 0);
  CHECK(read_file(file.path()) == content);
}

TEST_CASE("MappedFile, read_file: what cannot be read is an Error that names the file") {
  TempDir dir;
  const std::string missing = dir.path + "/missing", fifo = dir.path + "/fifo";
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  for (const std::string& path : {missing, dir.path, fifo, std::string()}) {
    CAPTURE(path);
    const std::string mapped = message_of([&] { MappedFile f(path); });
    const std::string read = message_of([&] { read_file(path); });
    const char* reason = path == missing || path.empty() ? "cannot open: No such file" : "not a regular file";
    CHECK(mapped.find(reason) != std::string::npos);
    CHECK(read.find(reason) != std::string::npos);
    CHECK(mapped.find(path) == 0);
  }
  const std::string empty = dir.write("nothing", "");
  CHECK(message_of([&] { MappedFile f(empty); }).find("nothing: the file is empty") != std::string::npos);
  CHECK(read_file(empty).empty());
}

TEST_CASE(
    "a model file that is cut short while it is in use ends the process with one line and exit code 1") {
  TempDir dir;
  const std::string model = dir.path + "/model.gguf", err = dir.path + "/err";
  // ref reads the weights where they are mapped. Its report comes once they are. On cpu the embedding is read there.
  const std::string script =
      ": > $ERR; $NANO run $MODEL Moses --raw $DEVICE --ignore-eos --max-tokens 1000 >/dev/null 2>$ERR & "
      "while kill -0 $! && ! grep -q device $ERR; do sleep 0.01; done; "
      "truncate -s 4096 $MODEL; wait $!";
  for (const std::string device : {"--device ref", "--device cpu --threads 2"}) {
    CAPTURE(device);
    std::filesystem::copy(nano_test::tiny(), model, std::filesystem::copy_options::overwrite_existing);
    const std::string variables = "NANO=" + nano_test::nano_binary() + "; MODEL=" + model + "; ERR=" + err +
                                  "; DEVICE=\"" + device + "\"; ";
    const int status = std::system((variables + script).c_str());
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 1);
    const std::string text = read_file(err),
                      line = "error: the model file changed or was truncated while in use\n";
    const size_t at = text.find(line);
    REQUIRE(at != std::string::npos);
    CHECK(at + line.size() == text.size());
  }
}

TEST_CASE(
    "threads that read a truncated file at once end the process with one line; another SIGBUS kills it") {
  TempDir dir;
  auto in_child = [&](bool truncated) {  // how it ends, and what it says
    const std::string path = dir.write("mapped", std::string(64 << 12, 'x')), err = dir.write("err", "");
    const pid_t child = fork();
    if (child == 0) {
      dup2(open(err.c_str(), O_WRONLY | O_APPEND), STDERR_FILENO);
      report_truncated_files();
      if (!truncated) std::raise(SIGBUS);
      const MappedFile file(path);
      if (truncate(path.c_str(), 4096) != 0) _exit(2);
      std::atomic<int> ready{0};
      std::vector<std::thread> threads;
      for (size_t i = 1; i <= 4; ++i)
        threads.emplace_back([&, i] {
          for (++ready; ready < 4;) std::this_thread::yield();
          [[maybe_unused]] const volatile uint8_t byte = file.data()[i << 12];
        });
      for (std::thread& thread : threads) thread.join();
      _exit(3);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return std::pair(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(err));
  };
  const std::string line = "error: the model file changed or was truncated while in use\n";
  for (int i = 0; i < 50; ++i) {
    const auto [code, text] = in_child(true);
    CHECK(code == 1);
    CHECK(text == line);
  }
  CHECK(in_child(false).first == 128 + SIGBUS);
}

TEST_CASE("a checkpoint with more layers than its config is one line of warning, with the number") {
  TempDir dir;
  for (const auto& entry :
       std::filesystem::directory_iterator(nano_test::data_path("golden/checkpoints/qwen2-bf16")))
    std::filesystem::copy(entry.path(), dir.path);
  std::string config = read_file(dir.path + "/config.json");
  const std::string two = "\"num_hidden_layers\": 2";
  REQUIRE(config.find(two) != std::string::npos);
  dir.write("config.json", config.replace(config.find(two) + two.size() - 1, 1, "1"));
  const nano_test::Ran ran =
      nano_test::run_nano({"run", dir.path, "--prompt-token-ids", "1,2", "--max-tokens", "1"});
  CHECK(ran.exit_code == 0);
  const std::string line =
      "warning: 12 tensors are in the file but not in the model: "
      "model.layers.1.input_layernorm.weight, … (`build/nano info` lists them)\n";
  const size_t at = ran.err.find("warning: ");
  REQUIRE(at != std::string::npos);
  CHECK(ran.err.substr(at, line.size()) == line);
  CHECK(ran.err.find("warning: ", at + 1) == std::string::npos);
}
