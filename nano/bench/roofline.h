// The roofline: what limits a step. A step reads bytes and multiplies numbers, and this machine has a ceiling for
// either, which is measured here in the same run as the thing that is compared with it: shares of a figure from a
// data sheet would flatter or shame. (Williams, Waterman and Patterson 2009, "Roofline".)
// Also here: the matrices that `bench gemm` and the ceilings are measured with, and the table of a profile.
// It does not say why a share is low; --profile shows which op, and `bench gemm` what the kernel can.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "backend/observers.h"  // Profile
#include "llm/loader.h"         // LoadedEngine, make_backend

namespace nano {

// So many bytes are read from memory and not from a cache: four times the last-level cache, at least 128 MiB.
int64_t beyond_cache_bytes();

// Weights and what they are multiplied with, by the names that papers use. A16 is the word for "activations as they
// are", which are float32 here.
struct LinearFormat {
  const char* name;
  DType dtype;    // of the elements; quantised: of the scales
  int bits;       // of a code; 0 = not quantised
  int64_t group;  // inputs a scale; 0 = a whole row
  ActivationScheme activations;
  const char* weights_text;  // for people
  const char* activations_text;
};
std::span<const LinearFormat> linear_formats();  // f32, bf16, W4A16, W4A8, W8A8

// [N, K] of that format, with random bytes that it owns.
QuantLinear random_matrix(const LinearFormat& format, int64_t N, int64_t K);

// The linear alone, on a backend of its own as --device and --threads in `options` say: one random matrix in as many
// copies as make up `bytes`, but no more than 256.
class LinearBench {
 public:
  LinearBench(const EngineOptions& options, const LinearFormat& format, int64_t N, int64_t K,
              int32_t max_rows, int64_t bytes);
  // The median time of x·Wᵀ for M rows; the calls take the copies in turn and go on for `at_least` seconds.
  double seconds(int32_t M, double at_least);
  int64_t weight_bytes() const { return copies_[0]->bytes; }  // of one copy
  int64_t num_copies() const { return int64_t(copies_.size()); }

 private:
  std::unique_ptr<Backend> backend_;
  std::vector<const PackedLinear*> copies_;
  std::vector<float> x_, out_;
};

// The ceilings of --device and --threads in `options`: the same number of threads, on the same cores. Each takes a
// fraction of a second.
// All threads read a buffer beyond the cache, in huge pages as the weights are.
double read_gb_per_second(const EngineOptions& options);
// The backend's own linear for 64 rows (W8A8, or f32) on a matrix that stays in each core's L2 cache: what the kernel
// does when memory is out of the way. Not the peak of the instruction set, which no kernel reaches.
double kernel_gmac_per_second(const EngineOptions& options, bool int8);

// Multiply-adds of a token: in the matrices of all layers, and in the head of a token whose logits are wanted.
struct Macs {
  int64_t layers = 0, head = 0;
  bool int8 = false;  // most of them are done by the int8 kernel
};
Macs count_macs(const LoadedEngine& loaded);

// [{"op", "calls", "seconds", "share", "bytes", "gb_per_second"}, …]: shares are of the time since the profile began,
// and the last entry, "between the ops", is what is left of it: scheduling, and the text of the tokens.
nlohmann::ordered_json profile_json(const Profile& profile);
std::string profile_text(const nlohmann::ordered_json& profile);  // the same as a table

}  // namespace nano
