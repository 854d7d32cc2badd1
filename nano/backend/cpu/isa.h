// Levels of instructions (an "ISA" each). The files of backend/cpu/ but memory and isa are compiled once for each level
// of a processor family, in a namespace of its name (-DNANO_ISA=avx2), and all are in the binary; isa.cpp chooses at
// start. The rest of the program runs on any machine.
//
// An inline function or template compiled with AVX-512 must not be what the linker takes for all callers of its name.
// So the objects of a level are joined, and everything in them but make_backend is made local (Makefile, ISA).
//
// Google Highway does such dispatch too, but Debian 12's version has no int8 dot product (SumOfMulQuadAccumulate), which
// is most of the work here, and tiles of AMX are beyond it.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"  // Backend, ActivationDtype

#if defined(__x86_64__)
#define NANO_ISA_LEVELS(level) level(plain) level(avx2) level(avxvnni) level(avx512)
#elif defined(__aarch64__)
#define NANO_ISA_LEVELS(level) level(plain) level(neon)
#else
#define NANO_ISA_LEVELS(level) level(plain)
#endif

namespace nano {

// In each level; `tiles`: on AMX's tile unit where that pays.
#define NANO_DECLARE(level)                                                                               \
  namespace level {                                                                                       \
  std::unique_ptr<Backend> make_backend(ActivationDtype activations, int32_t threads, bool exact_threads, \
                                        bool tiles);                                                      \
  }
NANO_ISA_LEVELS(NANO_DECLARE)
#undef NANO_DECLARE

}  // namespace nano
