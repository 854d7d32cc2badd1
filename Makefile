# nano: `make` builds build/nano, `make test` tests it, `make demo` lets a real model answer. No configure step.
#
# Flavours live side by side under build/<flavour>/: release, debug, asan, tsan, fuzz, neon, tiles.
SHELL := /bin/bash
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
endif
.DELETE_ON_ERROR:
.SECONDARY:

CXX ?= g++
OBJCOPY ?= objcopy
CLANG ?= $(firstword $(shell command -v clang++ clang++-14 clang++-15 clang++-16 clang++-17 clang++-18 clang++-19 2>/dev/null) clang++)
FLAVOUR ?= release
FLAGS_release := -O3 -DNDEBUG
FLAGS_debug := -O0 -g3
FLAGS_asan := -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all
FLAGS_tsan := -O1 -g1 -fsanitize=thread,undefined -fno-sanitize-recover=all

# The cpu backend, compiled once for each level of instructions; one is chosen at start (backend/cpu/isa.h, where each
# level's features are asked for). All else runs on any processor of the family.
ARCH := $(firstword $(subst -, ,$(shell $(CXX) -dumpmachine)))
BASE_x86_64 := -march=x86-64-v2
ISAS_x86_64 := plain avx2 avxvnni avx512
ISAS_aarch64 := plain neon
ISA_avx2 := -mavx2 -mfma -mf16c
ISA_avxvnni := $(ISA_avx2) -mavxvnni
ISA_avx512 := $(ISA_avx2) -mavx512f -mavx512bw -mavx512vl -mavx512vnni -mamx-tile -mamx-int8
ISA_neon := -march=armv8.2-a+dotprod+fp16
ISAS := $(or $(ISAS_$(ARCH)),plain)

BUILD := build/$(FLAVOUR)
CPPFLAGS += -Inano -Itests -MMD -MP -DNANO_BUILD_DIR='"$(BUILD)"'
# GCC 12 sees an overlap in std::string's operator+ that is not there (GCC bug 105329), and with AVX-512 its SLP
# vectoriser turns the constant {a, a, a, a, 0, 0, 0, 0} into eight a's (seen with 12.2). objcopy cannot make "unique"
# symbols local.
GCC_ONLY := $(if $(findstring clang,$(CXX)),,-Wno-restrict -fno-tree-slp-vectorize -fno-gnu-unique)
CXXFLAGS += -std=c++20 -g -fno-omit-frame-pointer -ffp-contract=off -Wall -Wextra -Werror $(GCC_ONLY) \
  $(BASE_$(ARCH)) $(FLAGS_$(FLAVOUR))
LDFLAGS += $(filter -fsanitize=%,$(FLAGS_$(FLAVOUR)))
LDLIBS += -ledit -lfmt -lpcre2-8 -lutf8proc -lpthread

ISA_SOURCES := $(addprefix nano/backend/cpu/,attention.cpp cpu.cpp dot.cpp fma.cpp linear.cpp pack.cpp)
ISA_OBJECTS := $(ISAS:%=$(BUILD)/isa/%.o)
SOURCES := $(filter-out $(ISA_SOURCES),$(sort $(wildcard nano/*/*.cpp nano/*/*/*.cpp)))
OBJECTS := $(SOURCES:%.cpp=$(BUILD)/obj/%.o) $(ISA_OBJECTS)
TESTS := $(sort $(wildcard tests/*.cpp))
MODEL_TESTS := $(sort $(wildcard tests/models/*.cpp))

# Tests need not be fast, but compile fast; the operators' references are loops over whole matrices.
ifneq ($(FLAVOUR),debug)
$(BUILD)/obj/tests/%.o: CXXFLAGS += -O0 -g1
$(BUILD)/obj/tests/test_ops%.o: CXXFLAGS += -O1
endif
# What a check of every pointer costs in unrolled kernels is 3 times their speed and minutes of compiling: they have
# the full set of checks in their own tests (make tsan).
build/asan/isa/%.o: CXXFLAGS += -O2 -fno-sanitize=undefined -fsanitize=signed-integer-overflow,shift
build/asan/obj/nano/app/%.o: CXXFLAGS += -O0

.PHONY: all
all: build/nano

.PHONY: build/nano
build/nano: $(BUILD)/nano
	@ln -sf $(FLAVOUR)/nano $@

# A line for each file made; V=1: the commands.
quiet = $(if $(V),,@echo "  $(1) $(patsubst %.o,%.cpp,$(@:$(BUILD)/obj/%=%))";)

# Another compiler or other flags make new objects.
COMMAND := $(BUILD)/command

$(BUILD)/obj/%.o: %.cpp $(COMMAND)
	@mkdir -p $(@D)
	$(call quiet,CXX )$(CXX) $(CPPFLAGS) $(CXXFLAGS) -c $< -o $@

# All objects of a level in one, of which others see only make_backend (why: backend/cpu/isa.h).
define ISA
$(BUILD)/isa/$(1)/%.o: nano/backend/cpu/%.cpp $(COMMAND)
	@mkdir -p $$(@D)
	$$(call quiet,CXX )$$(CXX) $$(CPPFLAGS) $$(CXXFLAGS) $$(ISA_$(1)) -DNANO_ISA=$(1) -c $$< -o $$@
$(BUILD)/isa/$(1).o: $(ISA_SOURCES:nano/backend/cpu/%.cpp=$(BUILD)/isa/$(1)/%.o)
	$$(call quiet,LINK)$$(CXX) -r -nostdlib -Wl,--force-group-allocation $$^ -o $$@
	@$(OBJCOPY) --wildcard --keep-global-symbol='_ZN4nano*12make_backend*' $$@
endef
$(foreach isa,$(ISAS),$(eval $(call ISA,$(isa))))

$(BUILD)/nano: $(BUILD)/obj/nano/main.o $(OBJECTS)
	$(call quiet,LINK)$(CXX) $(LDFLAGS) $^ $(LDLIBS) -o $@

$(BUILD)/tests: $(OBJECTS) $(TESTS:%.cpp=$(BUILD)/obj/%.o)
	$(call quiet,LINK)$(CXX) $(LDFLAGS) $^ $(LDLIBS) -o $@

$(BUILD)/model_tests: $(MODEL_TESTS:%.cpp=$(BUILD)/obj/%.o) $(BUILD)/obj/tests/test_main.o $(OBJECTS)
	$(call quiet,LINK)$(CXX) $(LDFLAGS) $^ $(LDLIBS) -o $@

# Everything that a new machine needs: `make demo` and `make test` do it themselves.
.PHONY: deps fuzz-deps models
deps:
	@.ci/deps build
fuzz-deps:
	@.ci/deps fuzz
models:
	@.ci/models

.PHONY: demo
demo: deps
	@$(MAKE) --no-print-directory build/nano
	@.ci/demo

# The last line of each is "N passed, N failed".
.PHONY: test test-flavour test-models test-isas asan debug
test: deps
	@$(MAKE) --no-print-directory test-flavour
test-flavour: $(BUILD)/tests $(BUILD)/nano
	NANO_BINARY=$(BUILD)/nano $(BUILD)/tests
test-models: $(BUILD)/model_tests $(BUILD)/nano
	NANO_BINARY=$(BUILD)/nano $(BUILD)/model_tests
test-isas: $(BUILD)/tests $(BUILD)/nano
	@.ci/test_isas $(BUILD) $(ISAS) amx
asan: fuzz-deps
	@$(MAKE) --no-print-directory FLAVOUR=asan CXX=$(CLANG) test-flavour
debug:
	@$(MAKE) --no-print-directory FLAVOUR=debug build/debug/nano

# Kernels and the thread team alone: on NEON (cross-compiled and emulated; on an ARM machine `make test` runs them),
# under ThreadSanitizer, and with a model of AMX's tile unit.
KERNEL_OBJECTS := $(ISA_OBJECTS) $(patsubst %.cpp,$(BUILD)/obj/%.o,$(filter nano/backend/% nano/quant/%,$(SOURCES)) \
  nano/base/error.cpp nano/base/rng.cpp nano/base/team.cpp $(wildcard tests/test_ops*.cpp) tests/test_main.cpp \
  $(if $(filter tsan,$(FLAVOUR)),tests/test_team.cpp))
FLAGS_neon := -O1 -g1 -static
FLAGS_tiles := -O1 -g1 -DNANO_TILE_MODEL
.PHONY: neon tsan tiles
neon:
	@.ci/deps neon
	@$(MAKE) --no-print-directory FLAVOUR=neon CXX=aarch64-linux-gnu-g++ OBJCOPY=aarch64-linux-gnu-objcopy build/neon/kernel_tests
	qemu-aarch64 -cpu max build/neon/kernel_tests
tsan: fuzz-deps
	@$(MAKE) --no-print-directory FLAVOUR=tsan CXX=$(CLANG) build/tsan/kernel_tests
	build/tsan/kernel_tests
tiles:
	@$(MAKE) --no-print-directory FLAVOUR=tiles build/tiles/kernel_tests
	build/tiles/kernel_tests
$(BUILD)/kernel_tests: $(KERNEL_OBJECTS)
	$(call quiet,LINK)$(CXX) $(FLAGS_$(FLAVOUR)) $^ -lpthread -o $@

# One token's path through the debugger, with the values that must be seen; and what the debugger's printers print.
DEBUGGED := --device ref --max-tokens 2 --block-size 4 --num-gpu-blocks-override 16 --max-model-len 64
.PHONY: tour printers
tour: debug
	gdb -q -nx -batch -x lessons/tour.py --args build/debug/nano run tiny "In the beginning" $(DEBUGGED) --temperature 0
printers: debug
	gdb -q -nx -batch -x lessons/gdb/check_printers.py --args build/debug/nano run lessons/models/tiny "In the beginning" \
	  $(DEBUGGED) --n 2 --seed 1 --kv-cache-dtype float16

# A fuzzer a parser, FUZZ_SECONDS each; needs clang and its runtime (make fuzz-deps). What parses is compiled anew, so
# that the fuzzer sees its branches; the rest comes from the sanitizer build.
FUZZ_SECONDS ?= 60
FUZZERS := $(patsubst tests/fuzz/%.cpp,%,$(wildcard tests/fuzz/*.cpp))
FLAGS_fuzz := -O1 -g1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
.PHONY: fuzz fuzz-run $(FUZZERS:%=run-%)
PARSERS := $(filter nano/base/% nano/text/% nano/checkpoint/% nano/engine/trace.cpp nano/app/prompts.cpp \
  nano/app/trace_summary.cpp,$(SOURCES))
SANITIZED := $(patsubst %.cpp,build/asan/obj/%.o,$(filter-out $(PARSERS),$(SOURCES))) $(ISAS:%=build/asan/isa/%.o)
.PHONY: sanitized
sanitized: $(SANITIZED)
fuzz: fuzz-deps
	@$(MAKE) --no-print-directory FLAVOUR=asan CXX=$(CLANG) sanitized
	@$(MAKE) --no-print-directory FLAVOUR=fuzz CXX=$(CLANG) fuzz-run
fuzz-run: $(FUZZERS:%=run-%)
	@echo "fuzz: $(words $(FUZZERS)) targets, $(FUZZ_SECONDS) s each, no crash"
build/fuzz/%: build/fuzz/obj/tests/fuzz/%.o $(PARSERS:%.cpp=build/fuzz/obj/%.o)
	$(call quiet,LINK)$(CXX) -fsanitize=fuzzer,address,undefined $^ $(SANITIZED) $(LDLIBS) -o $@
$(FUZZERS:%=run-%): run-%: build/fuzz/%
	@mkdir -p build/fuzz/new/$*
	$< -max_total_time=$(FUZZ_SECONDS) -timeout=20 -rss_limit_mb=3000 -verbosity=0 -print_final_stats=0 \
	  -artifact_prefix=build/fuzz/ build/fuzz/new/$* tests/fuzz/corpus/$(*:fuzz_%=%)

.PHONY: lines format clean
lines:
	@.ci/lines
format:
	clang-format -i $(shell git ls-files 'nano/*.cpp' 'nano/*.h' 'tests/*.cpp' 'tests/*.h')
clean:
	rm -rf build compile_commands.json

# For clangd and editors.
.PHONY: compile_commands.json
compile_commands.json:
	@$(MAKE) -nB V=1 --no-print-directory FLAVOUR=debug build/debug/nano build/debug/tests | .ci/compile_commands > $@
	@echo "$@: $$(grep -c '"file"' $@) files"

$(shell mkdir -p $(BUILD); echo '$(CXX) $(CPPFLAGS) $(CXXFLAGS)' > $(COMMAND).now; \
  cmp -s $(COMMAND).now $(COMMAND) || cp $(COMMAND).now $(COMMAND))
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
