# SPDX-License-Identifier: Apache-2.0
#
# Plain make and a few probes. `make help` lists the targets.
#
#   make                              programs, libraries, examples
#   make CC=clang BUILD=build-clang   another compiler beside the first
#   make SAN=thread                   under a sanitizer (address, undefined, thread), in build-thread
#
# A layer is a folder; its .c files become one archive by wildcard, so a new file needs no line here.

VERSION := 0.1.0
SOVERSION := 0

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
endif

# One short line a step; V=1 shows the commands.
V ?=
Q := $(if $(V),,@)
say = @printf '  %-8s %s\n' $(1) $(2)

# --- what the caller may set -----------------------------------------------------------------------------------------

ifeq ($(origin CC),default)
CC := gcc
endif
SAN ?=
BUILD ?= $(if $(SAN),build-$(SAN),build)
OPT ?= $(if $(SAN),-O1,-O2)
WERROR ?= -Werror
PREFIX ?= /usr/local
DESTDIR ?=
SEEDS ?= 1000
SEEDS_FROM ?= 1
SEED ?=
FUZZ_SECONDS ?= 60
MINUTES ?= 60
KILL_BOX ?=
TESTS ?=
RUNS ?=
RECORD ?=
ROWS ?=
RATE ?=
RESUME ?=
CLANG ?= clang
ARM_CC ?= aarch64-linux-gnu-gcc
ARM_RUN ?= $(if $(SAN),,qemu-aarch64-static)
VM ?= $(if $(filter address thread,$(SAN)),qemu,uml)
# Objects are kept by what they are made of, beside the kernels of tests/vm; CCACHE= does without.
CCACHE ?= $(shell command -v ccache)
export CCACHE_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/phub-objects

# --- probes ----------------------------------------------------------------------------------------------------------

PKG_CONFIG ?= pkg-config
pkg_exists = $(shell $(PKG_CONFIG) --exists $(1) 2>/dev/null && echo yes)

NEEDED := libssl libcrypto libprotobuf-c yaml-0.1 jansson libcap-ng
MISSING := $(if $(call pkg_exists,$(NEEDED)),,$(foreach p,$(NEEDED),$(if $(call pkg_exists,$p),,$p)))

ifeq ($(MISSING),)
LIB_CFLAGS := $(shell $(PKG_CONFIG) --cflags $(NEEDED))
LIBS := $(shell $(PKG_CONFIG) --libs $(NEEDED))
endif
CLIENT_LIBS := $(shell $(PKG_CONFIG) --libs libssl libcrypto libprotobuf-c 2>/dev/null)
# dlopen() is in libc since glibc 2.34.
LIBS += -ldl
CLIENT_LIBS += -ldl
# RDMA: without libibverbs the transport verbs is left out.
HAVE_VERBS := $(call pkg_exists,libibverbs)
VERBS_LIBS := $(if $(HAVE_VERBS),$(shell $(PKG_CONFIG) --libs libibverbs))
LIB_CFLAGS += $(if $(HAVE_VERBS),-DPHUB_VERBS $(shell $(PKG_CONFIG) --cflags libibverbs))
# ibv_reg_dmabuf_mr() came with rdma-core 34.
LIB_CFLAGS += $(if $(shell $(PKG_CONFIG) --atleast-version=1.12.34 libibverbs 2>/dev/null && echo yes),-DPHUB_VERBS_DMABUF)
LIBS += $(VERBS_LIBS)
CLIENT_LIBS += $(VERBS_LIBS)
# DPDK: without libdpdk no plugin is built, and transport dpdk says so when it is asked for. Its headers are not ours to
# warn about.
HAVE_DPDK := $(call pkg_exists,libdpdk)
DPDK_CFLAGS := $(if $(HAVE_DPDK),$(patsubst -I%,-isystem %,$(shell $(PKG_CONFIG) --cflags libdpdk)) -DALLOW_EXPERIMENTAL_API)
DPDK_LIBS := $(if $(HAVE_DPDK),$(shell $(PKG_CONFIG) --libs libdpdk))
# ISA-L: without it CRC32C is a table's, which is slower, and checkpoints have no parity.
HAVE_ISAL := $(call pkg_exists,libisal)
ISAL_LIBS := $(if $(HAVE_ISAL),$(shell $(PKG_CONFIG) --libs libisal))
LIB_CFLAGS += $(if $(HAVE_ISAL),-DPHUB_ISAL $(shell $(PKG_CONFIG) --cflags libisal))
LIBS += $(ISAL_LIBS)
CLIENT_LIBS += $(ISAL_LIBS)
# intel-ipsec-mb: without it GMACs are libcrypto's, which is slower. It has no pkg-config file.
HAVE_IPSEC_MB := $(shell echo '\#include <intel-ipsec-mb.h>' | $(CC) -E - >/dev/null 2>&1 && echo yes)
IPSEC_MB_LIBS := $(if $(HAVE_IPSEC_MB),-lIPSec_MB)
LIB_CFLAGS += $(if $(HAVE_IPSEC_MB),-DPHUB_IPSEC_MB -DNO_COMPAT_IMB_API_053)
LIBS += $(IPSEC_MB_LIBS)
CLIENT_LIBS += $(IPSEC_MB_LIBS)
# libcurl: without its headers there is no etcd. It is loaded when it is asked for, and linked to nothing.
HAVE_CURL := $(call pkg_exists,libcurl)
LIB_CFLAGS += $(if $(HAVE_CURL),-DPHUB_CURL $(shell $(PKG_CONFIG) --cflags libcurl))
# Under a sanitizer a layer comes whole, with what the client needs nothing of (JSON of etcd).
CLIENT_LIBS += $(if $(SAN),$(LIBS))
MACHINE := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine 2>/dev/null)))

# --- flags -----------------------------------------------------------------------------------------------------------

SAN_address := -fsanitize=address,undefined -fno-sanitize-recover=all
SAN_undefined := -fsanitize=undefined -fno-sanitize-recover=all
SAN_thread := -fsanitize=thread
SAN_fuzzer := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
ifneq ($(SAN),)
ifeq ($(SAN_$(SAN)),)
$(error SAN=$(SAN): use address, undefined or thread)
endif
endif

# lld where it is installed: the program of all unit tests is large.
LLD := $(if $(shell command -v ld.lld),-fuse-ld=lld)
WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
# Debug information names no folder of this machine, and an object is the same in every checkout.
BASE_CFLAGS := -std=gnu11 $(OPT) -g -fPIC -fvisibility=hidden -ffunction-sections -pthread -fdebug-prefix-map=$(CURDIR)=. \
	$(if $(SAN),-fno-omit-frame-pointer $(SAN_$(SAN)))
PROJECT_CFLAGS := $(BASE_CFLAGS) $(WARNINGS) $(WERROR) -I. -I$(BUILD)/gen -D_GNU_SOURCE $(LIB_CFLAGS) $(CFLAGS)
PROJECT_LDFLAGS := -pthread -Wl,--gc-sections -Wl,--as-needed $(LLD) $(SAN_$(SAN)) $(LDFLAGS)

# Kernels: no contraction, or compilers fuse multiply and add and the bits differ from the scalar specification.
# They decode nothing, so fuzzers do without their checks, which take clang 40 s for kernels_avx2.c alone. Sanitizers do
# without those of the study's: training would take 50 times as long, all of it in one block of memory.
KERNEL_CFLAGS := $(if $(SAN),,-O3) -ffp-contract=off
flags_of = $(if $(filter tests/%,$(1)),-Wno-unused-parameter) \
	$(if $(filter aggregation/%,$(1)),$(KERNEL_CFLAGS)) \
	$(if $(filter fuzzer,$(SAN)),$(if $(filter aggregation/kernels_%,$(1)),-fno-sanitize=all)) \
	$(if $(filter aggregation/kernels_avx2.c,$(1)),-mavx2 -mf16c) \
	$(if $(filter aggregation/kernels_avx512.c,$(1)),-mavx512f -mavx512bw -mavx512vl -mavx512dq -mf16c) \
	$(if $(filter client/scout/% tests/system/%,$(1)),-ffp-contract=off) \
	$(if $(filter tests/bench/skew_%,$(1)),$(KERNEL_CFLAGS)) \
	$(if $(SAN),$(if $(filter tests/bench/skew_kernels.c,$(1)),-O3 -fno-sanitize=all)) \
	$(if $(filter tests/system/threads.c,$(1)),-fno-sanitize=all) \
	$(if $(filter client/example%,$(1)),-Iclient) \
	$(if $(filter $(SRC_dpdk) tests/fuzz/fuzz_dpdk.c,$(1)),$(DPDK_CFLAGS))

# --- layers ----------------------------------------------------------------------------------------------------------

skip_x86 := $(if $(filter x86_64,$(MACHINE)),,aggregation/kernels_avx2.c aggregation/kernels_avx512.c)
skip_arm := $(if $(filter aarch64,$(MACHINE)),,aggregation/kernels_neon.c)
EXAMPLE := $(wildcard client/example*.c)

SRC_base := $(wildcard phub/base/*.c)
SRC_aggregation := $(filter-out $(skip_x86) $(skip_arm),$(wildcard aggregation/*.c))
SRC_topology := $(wildcard topology/*.c)
SRC_dpdk := $(addprefix transport/,dpdk.c dpdk_arp.c dpdk_eal.c dpdk_init.c dpdk_memory.c dpdk_rx.c \
	dpdk_steer.c)
SRC_transport := $(filter-out $(if $(HAVE_VERBS),,transport/verbs%) $(if $(HAVE_CURL),,transport/curl.c transport/etcd.c) \
	transport/etcd_find.c $(SRC_dpdk),$(wildcard transport/*.c))
SRC_box := $(filter-out phub/main.c,$(wildcard phub/*.c))
SRC_control := $(wildcard phub/control/*.c)
SRC_client := $(filter-out $(EXAMPLE),$(wildcard client/*.c client/scout/*.c))
SRC_cli := $(filter-out phub/cli/main.c,$(wildcard phub/cli/*.c))

SOURCES := */*.c phub/base/*.c phub/control/*.c phub/cli/*.c client/scout/*.c tests/unit/*.c tests/suite/*.c tests/bench/*.c

# Under a sanitizer a layer is one translation unit, BUILD/unity/LAYER.c: headers are read and checked once in place of once a
# file. Files with compiler flags of their own stay by themselves, so aggregation and tests do.
UNITY_LAYERS := $(if $(SAN),base topology transport box control client cli)
unity = $(BUILD)/unity/$(1).c
define unity_layer
$(call unity,$(1)): force
	@mkdir -p $$(@D)
	@printf '#include "%s"\n' $$(SRC_$(1)) | cmp -s - $$@ || printf '#include "%s"\n' $$(SRC_$(1)) >$$@

$$(BUILD)/obj/unity/$(1).o: $(call unity,$(1)) $$(BUILD)/.flags | needed $$(GEN_H)
	@mkdir -p $$(@D)
	$$(call say,CC,$$<)
	$$(Q)$$(CCACHE) $$(CC) $$(PROJECT_CFLAGS) $$(UNITY_CFLAGS) -MMD -MP -c -o $$@ $$<
endef
# What gcc may inline across files makes it guess at texts that are too long for their buffers.
UNITY_CFLAGS := -Wno-unknown-warning-option -Wno-format-truncation -ffp-contract=off

LAYERS := base aggregation topology transport box control client cli
objects = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
archives = $(foreach l,$(1),$(BUILD)/lib$(l).a)

PROTO := $(wildcard transport/*.proto)
GEN_C := $(PROTO:%.proto=$(BUILD)/gen/%.pb-c.c)
GEN_H := $(PROTO:%.proto=$(BUILD)/gen/%.pb-c.h)
GEN_OBJ := $(PROTO:%.proto=$(BUILD)/obj/gen/%.o)

BOX_ARCHIVES := $(call archives,control box transport topology aggregation base)
CLIENT_ARCHIVES := $(call archives,client transport topology aggregation base)

# --- programs and libraries ------------------------------------------------------------------------------------------

INSTALLED := $(if $(wildcard phub/main.c),$(BUILD)/phubd) $(if $(SRC_cli),$(BUILD)/phub)
PROGRAMS := $(INSTALLED) $(EXAMPLE:client/%.c=$(BUILD)/%)
SHARED := $(BUILD)/libphub.so.$(VERSION)
LIBRARIES := $(if $(SRC_client),$(SHARED) $(BUILD)/libphub.a $(BUILD)/phub.pc)
PLUGINS := $(if $(HAVE_DPDK),$(BUILD)/libphub-dpdk.so) $(if $(HAVE_CURL),$(BUILD)/libphub-etcd.so)

.PHONY: all
all: $(call archives,$(LAYERS)) $(PROGRAMS) $(LIBRARIES) $(PLUGINS) ## programs, libraries, examples (default)
	@$(if $(HAVE_DPDK),:,echo "  without libdpdk-dev: transport dpdk is left out")
	@$(if $(HAVE_CURL),:,echo "  without libcurl4-openssl-dev: etcd is left out")
	@$(if $(HAVE_VERBS),:,echo "  without libibverbs-dev: transport verbs is left out")

link = $(CC) $(PROJECT_LDFLAGS) -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group

# With the client's half of a session, by which it reaches its standby.
$(BUILD)/phubd: $(call objects,phub/main.c) $(call archives,client) $(BOX_ARCHIVES)
	$(call say,LINK,$@)
	$(Q)$(link) $(LIBS) -lm

# With a box inside, for `bench exchange --transport loop`.
$(BUILD)/phub: $(call objects,phub/cli/main.c) $(call archives,cli client control box transport topology aggregation base)
	$(call say,LINK,$@)
	$(Q)$(link) $(LIBS) -lm

$(EXAMPLE:client/%.c=$(BUILD)/%): $(BUILD)/%: $(BUILD)/obj/client/%.o $(BUILD)/libphub.a
	$(call say,LINK,$@)
	$(Q)$(link) $(CLIENT_LIBS) -lm

# Only what is marked PHUB_API leaves either library: hidden visibility in the shared one; in the static one the objects
# are joined first and their hidden names made local, so that ours never meet those of the program.
$(SHARED): $(CLIENT_ARCHIVES)
	$(call say,LINK,$@)
	$(Q)$(CC) -shared -Wl,-soname,libphub.so.$(SOVERSION) $(if $(SAN),,-Wl,-z,defs) $(PROJECT_LDFLAGS) -o $@ \
		-Wl,--whole-archive $(BUILD)/libclient.a -Wl,--no-whole-archive \
		-Wl,--start-group $(filter-out %/libclient.a,$^) -Wl,--end-group $(CLIENT_LIBS) -lm
	$(Q)ln -sf $(@F) $(BUILD)/libphub.so.$(SOVERSION)
	$(Q)ln -sf libphub.so.$(SOVERSION) $(BUILD)/libphub.so

$(BUILD)/libphub.a: $(CLIENT_ARCHIVES)
	$(call say,AR,$@)
	$(Q)$(CC) -nostdlib -r -o $(BUILD)/obj/libphub.o \
		-Wl,--whole-archive $(BUILD)/libclient.a -Wl,--no-whole-archive \
		-Wl,--start-group $(filter-out %/libclient.a,$^) -Wl,--end-group
	$(Q)objcopy --localize-hidden $(BUILD)/obj/libphub.o
	$(Q)rm -f $@
	$(Q)ar rcs $@ $(BUILD)/obj/libphub.o

# What transport dpdk loads when it is asked for: nothing else needs DPDK's libraries.
$(BUILD)/libphub-dpdk.so: $(call objects,$(SRC_dpdk)) $(call archives,base)
	$(call say,LINK,$@)
	$(Q)$(CC) -shared -Wl,-soname,$(@F) $(if $(SAN),,-Wl,-z,defs) $(PROJECT_LDFLAGS) -o $@ $^ $(DPDK_LIBS)

# What libphub loads for phub+etcd://: it needs no JSON by itself.
$(BUILD)/libphub-etcd.so: $(call objects,transport/etcd_find.c) $(call archives,transport base)
	$(call say,LINK,$@)
	$(Q)$(CC) -shared -Wl,-soname,$(@F) $(if $(SAN),,-Wl,-z,defs) $(PROJECT_LDFLAGS) -o $@ $^ -ljansson -ldl

define PC
prefix=$(PREFIX)
libdir=$${prefix}/lib
includedir=$${prefix}/include

Name: phub
Description: Client of a PHub box: exchange gradients through a parameter server
Version: $(VERSION)
Requires.private: libssl libcrypto libprotobuf-c$(if $(HAVE_VERBS), libibverbs)$(if $(HAVE_ISAL), libisal)
Libs: -L$${libdir} -lphub
Libs.private: -pthread -lm -ldl$(if $(HAVE_IPSEC_MB), $(IPSEC_MB_LIBS))
Cflags: -I$${includedir}
endef
export PC

$(BUILD)/phub.pc: force
	@mkdir -p $(@D)
	@echo "$$PC" | cmp -s - $@ || echo "$$PC" >$@

# --- compiling -------------------------------------------------------------------------------------------------------

# What was built depends on how and of what: `make CC=clang` in a gcc folder rebuilds instead of mixing, and an object
# whose source is gone leaves its archive.
define stamp
$$(BUILD)/.$(1): force
	@mkdir -p $$(@D)
	@echo '$(2)' | cmp -s - $$@ || echo '$(2)' >$$@
endef
$(eval $(call stamp,flags,$(CC) $(PROJECT_CFLAGS) $(KERNEL_CFLAGS) $(PROJECT_LDFLAGS)))
$(eval $(call stamp,sources,$(sort $(wildcard $(SOURCES)))))

.PHONY: force
force:

.PHONY: needed
needed:
	$(if $(MISSING),@echo "missing libraries: $(MISSING). Run deploy/deps.sh build" >&2; exit 1,@:)

$(BUILD)/obj/%.o: %.c $(BUILD)/.flags | needed $(GEN_H)
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CCACHE) $(CC) $(PROJECT_CFLAGS) $(call flags_of,$<) -MMD -MP -c -o $@ $<

$(BUILD)/gen/%.pb-c.c $(BUILD)/gen/%.pb-c.h: %.proto | needed
	@mkdir -p $(BUILD)/gen
	$(call say,PROTO,$<)
	$(Q)protoc-c --c_out=$(BUILD)/gen $<

# Not to be deleted as steps on the way to an object.
.SECONDARY: $(GEN_C) $(GEN_H)

# Generated code is not ours to warn about.
$(BUILD)/obj/gen/%.o: $(BUILD)/gen/%.pb-c.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CCACHE) $(CC) $(BASE_CFLAGS) -w -I$(BUILD)/gen $(LIB_CFLAGS) -MMD -MP -c -o $@ $<

$(foreach l,$(UNITY_LAYERS),$(eval $(call unity_layer,$(l))))

define layer
$$(BUILD)/lib$(1).a: $(if $(filter $(1),$(UNITY_LAYERS)),$$(BUILD)/obj/unity/$(1).o,$$(call objects,$$(SRC_$(1)))) $(2) $$(BUILD)/.sources
	@mkdir -p $$(@D)
	@rm -f $$@
	$$(Q)ar rcs $$@ $$(filter %.o,$$^)
endef
$(foreach l,base aggregation topology box control client cli,$(eval $(call layer,$(l))))
$(eval $(call layer,transport,$(GEN_OBJ)))

# --- tests -----------------------------------------------------------------------------------------------------------
# All unit tests are one program, a run for each test_*.c; a test_*.c of the suite is one by itself. Other .c files beside
# them are shared helpers. fuzz_*.c are programs of libFuzzer; here they only replay their corpus.

UNIT_SRC := tests/unit/units.c tests/unit/libc_rig.c $(filter-out $(if $(HAVE_CURL),,tests/unit/test_etcd.c tests/unit/test_announce.c tests/unit/test_campaign.c), \
	$(wildcard tests/unit/test_*.c))
SUITE_SRC := $(wildcard tests/suite/test_*.c)
TEST_SRC := $(UNIT_SRC) $(SUITE_SRC)
CUDA_STAND_IN := $(BUILD)/tests/suite/libcuda.so.1
TEST_HELPERS := $(filter-out $(TEST_SRC) tests/suite/cuda_stand_in.c,$(wildcard tests/unit/*.c tests/suite/*.c))
UNITS := $(BUILD)/tests/units
TEST_PROGRAMS := $(UNITS) $(SUITE_SRC:%.c=$(BUILD)/%)
BENCH_CYCLES := $(BUILD)/tests/bench/dpdk_cycles
SKEW_STUDY := $(BUILD)/tests/bench/skew_study
SKEW_SRC := $(filter-out tests/bench/skew_study.c,$(wildcard tests/bench/skew_*.c))
BENCH_PROGRAMS := $(BENCH_CYCLES) $(SKEW_STUDY)
PRELOADS := $(addprefix $(BUILD)/tests/system/,slow_disk.so suspended.so)
# Preloaded into every program of a test, the shell among them: without a sanitizer's library.
THREADS := $(BUILD)/tests/system/threads.so
SYSTEM_PROGRAMS := $(BUILD)/tests/system/worker $(BUILD)/tests/system/skewed $(BUILD)/tests/system/racked $(BUILD)/tests/system/segment \
	$(PRELOADS) $(THREADS)
SIM_SRC := $(wildcard tests/sim/*.c)
# What comes in by DPDK's ports can be fuzzed only where there is DPDK.
FUZZ_SRC := $(filter-out $(if $(HAVE_DPDK),,tests/fuzz/fuzz_dpdk.c),$(wildcard tests/fuzz/fuzz_*.c))
REPLAY_PROGRAMS := $(FUZZ_SRC:tests/fuzz/fuzz_%.c=$(BUILD)/tests/fuzz/replay_%)
FUZZ_PROGRAMS := $(FUZZ_SRC:%.c=$(BUILD)/%)
TEST_ARCHIVES := $(call archives,test $(LAYERS))
SRC_test := $(TEST_HELPERS) $(SKEW_SRC)
$(eval $(call layer,test))

# Plugins are found where programs are.
$(UNITS): $(call objects,$(UNIT_SRC)) $(TEST_ARCHIVES)
$(SUITE_SRC:%.c=$(BUILD)/%): $(BUILD)/%: $(BUILD)/obj/%.o $(TEST_ARCHIVES)
$(TEST_PROGRAMS):
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(link) -Wl,-rpath,'$$ORIGIN/..:$$ORIGIN/../..' -lcmocka $(LIBS) -lz -lm

# What a datagram costs, for tests/bench/dpdk.py.
$(BENCH_CYCLES): $(BUILD)/obj/tests/bench/dpdk_cycles.o $(call archives,transport base)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(link) -Wl,-rpath,'$$ORIGIN/../..' $(LIBS) -lm

# Runs of the study on skewed sites.
$(SKEW_STUDY): $(BUILD)/obj/tests/bench/skew_study.o $(call archives,test) $(CLIENT_ARCHIVES)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(link) $(CLIENT_LIBS) -lz -lm

# What test_exchange loads in place of CUDA's driver.
$(CUDA_STAND_IN): $(call objects,tests/suite/cuda_stand_in.c)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -shared -Wl,-soname,$(@F) $(PROJECT_LDFLAGS) -o $@ $^

# A user's program: nothing but the public library, and its plugins where they are.
$(BUILD)/tests/system/racked: $(call objects,tests/system/racked.c) $(BUILD)/libphub.a
$(BUILD)/tests/system/worker: $(call objects,$(wildcard tests/system/worker*.c)) $(BUILD)/libphub.a
$(BUILD)/tests/system/worker $(BUILD)/tests/system/racked:
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(link) -Wl,-rpath,'$$ORIGIN/../..' $(CLIENT_LIBS) -lm

# With what is inside of libphub, for a loop beside the box.
$(BUILD)/tests/system/skewed: $(call objects,tests/system/skewed.c) $(CLIENT_ARCHIVES)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(link) -Wl,-rpath,'$$ORIGIN/../..' $(CLIENT_LIBS) -lm

$(BUILD)/tests/system/segment: $(call objects,tests/system/segment.c)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(PROJECT_LDFLAGS) -o $@ $^

$(PRELOADS): $(BUILD)/tests/system/%.so: $(BUILD)/obj/tests/system/%.o
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -shared $(PROJECT_LDFLAGS) -o $@ $^

$(THREADS): $(call objects,tests/system/threads.c)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -shared $(filter-out $(SAN_$(SAN)),$(PROJECT_LDFLAGS)) -o $@ $^ -ldl

$(BUILD)/sim: $(call objects,$(SIM_SRC)) $(TEST_ARCHIVES)
	$(call say,LINK,$@)
	$(Q)$(link) $(LIBS) -lm

FUZZ_DPDK := $(BUILD)/tests/fuzz/replay_dpdk $(BUILD)/tests/fuzz/fuzz_dpdk
$(FUZZ_DPDK): $(call objects,transport/dpdk_rx.c transport/dpdk_arp.c)
$(FUZZ_DPDK): LIBS += $(DPDK_LIBS)

$(REPLAY_PROGRAMS): $(BUILD)/tests/fuzz/replay_%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(BUILD)/obj/tests/fuzz/replay.o \
		$(TEST_ARCHIVES)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(link) $(LIBS) -lm

$(FUZZ_PROGRAMS): $(BUILD)/%: $(BUILD)/obj/%.o $(TEST_ARCHIVES)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(link) -fsanitize=fuzzer $(LIBS) -lm

.PHONY: test-programs
test-programs: all $(TEST_PROGRAMS) $(BENCH_PROGRAMS) $(CUDA_STAND_IN) $(SYSTEM_PROGRAMS) $(REPLAY_PROGRAMS) $(if $(SIM_SRC),$(BUILD)/sim) ## build the tests, run none

# run.py builds, so that the probes above run again after deps has installed what they look for.
RUN_TESTS = BUILD='$(BUILD)' CC='$(CC)' SAN='$(SAN)' CFLAGS='$(CFLAGS)' SEEDS='$(SEEDS)' SEEDS_FROM='$(SEEDS_FROM)' \
	ARM_RUN='$(ARM_RUN)' VM='$(VM)' FUZZ_SECONDS='$(FUZZ_SECONDS)' tests/run.py
.PHONY: test test-all
test: deps-test ## build and run every test (TESTS=word: only those whose name holds it; -word: all others)
	@$(RUN_TESTS) $(TESTS)

test-all: deps-test deps-lint deps-fuzz ## the same with every compiler and sanitizer, the fuzzers for FUZZ_SECONDS each, and lint
	@$(RUN_TESTS) --variants all $(TESTS)

.PHONY: vm
vm: deps-vm ## the kernel of the virtual machine for RDMA tests, into ~/.cache/phub-vm: minutes, once (VM=uml or qemu)
	@$(if $(filter qemu,$(VM)),tests/vm/debian.sh,tests/vm/uml.sh)

.PHONY: sim
sim: ## run SEEDS seeded simulations from SEEDS_FROM (1) on, or the one called SEED
	@$(MAKE) --no-print-directory $(BUILD)/sim
	$(BUILD)/sim $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --from $(SEEDS_FROM))

.PHONY: soak
soak: deps-test deps-demo ## load one box with jobs, faults and strangers for MINUTES=60, into BUILD/soak.md and pictures (SEED, KILL_BOX=1)
	@$(MAKE) --no-print-directory all $(SYSTEM_PROGRAMS)
	@BUILD='$(BUILD)' /usr/bin/python3 tests/system/soak.py --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(KILL_BOX),--kill-box)

.PHONY: fuzz-programs
fuzz-programs: $(FUZZ_PROGRAMS)

.PHONY: fuzz
fuzz: deps-fuzz ## run every fuzzer for FUZZ_SECONDS (clang)
	@$(MAKE) --no-print-directory CC='$(CLANG)' SAN=fuzzer BUILD='$(BUILD)-fuzz' fuzz-programs
	@BUILD='$(BUILD)-fuzz' tests/fuzz/run.sh $(FUZZ_SECONDS)

# The Arm kernels, cross-built and run under emulation. Only layers without libraries take part: cmocka has no cross
# package, tests/unit/cmocka_shim.h stands in.
ARM := $(BUILD)/arm
ARM_TESTS := $(wildcard tests/unit/test_aggregation*.c $(patsubst phub/base/%.c,tests/unit/test_%.c,$(SRC_base)))
ARM_PROGRAMS := $(ARM)/units
ARM_SRC := $(SRC_base) $(filter-out aggregation/kernels_avx%,$(wildcard aggregation/*.c))
ARM_OBJECTS := $(ARM_SRC:%.c=$(ARM)/obj/%.o)
ARM_CFLAGS := -std=gnu11 -O2 -g -pthread $(WARNINGS) $(WERROR) -I. -D_GNU_SOURCE -DPHUB_NO_CMOCKA -Wno-unused-parameter \
	-fdebug-prefix-map=$(CURDIR)=.

$(ARM)/obj/%.o: %.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(call say,CC-ARM,$<)
	$(Q)$(CCACHE) $(ARM_CC) $(ARM_CFLAGS) $(if $(filter aggregation/%,$<),$(KERNEL_CFLAGS)) -MMD -MP -c -o $@ $<

$(ARM_PROGRAMS): $(addprefix $(ARM)/obj/,$(patsubst %.c,%.o,tests/unit/units.c $(ARM_TESTS))) $(ARM_OBJECTS)
	@mkdir -p $(@D)
	$(call say,LINK-ARM,$@)
	$(Q)$(ARM_CC) -static -pthread -o $@ $^ -lm

.PHONY: arm-programs
arm-programs: $(if $(shell command -v $(ARM_CC)),$(ARM_PROGRAMS))

.PHONY: arm-test
arm-test: ## cross-build the kernels for 64-bit Arm and test them under emulation
	@$(RUN_TESTS) arm/

# --- the rest --------------------------------------------------------------------------------------------------------

.PHONY: deps deps-test deps-vm deps-demo deps-lint deps-fuzz deps-bench
deps: ## install what is missing (Debian packages)
	@deploy/deps.sh
deps-test:
	@deploy/deps.sh build test vm
deps-vm:
	@deploy/deps.sh vm
deps-demo:
	@deploy/deps.sh build demo
deps-lint:
	@deploy/deps.sh build lint
deps-fuzz:
	@deploy/deps.sh build fuzz
deps-bench:
	@deploy/deps.sh build bench || echo 'bench: goes on without what is missing' >&2

.PHONY: demo
demo: deps-demo ## a box and its workers on this machine
	@$(MAKE) --no-print-directory all
	@BUILD='$(BUILD)' deploy/demo/run.sh

RACK = BUILD='$(BUILD)' RUNS='$(RUNS)' ROWS='$(ROWS)' RATE='$(RATE)' tests/bench/rack.py
PAPER = BUILD='$(BUILD)' RUNS='$(RUNS)' ROWS='$(ROWS)' tests/bench/paper.py

.PHONY: bench
bench: deps-bench ## phub beside Open MPI and Gloo into BUILD/bench.md, rack.md and paper.md (RUNS=5, ROWS=quick or full)
	@$(MAKE) --no-print-directory all
	@BUILD='$(BUILD)' RUNS='$(RUNS)' ROWS='$(ROWS)' tests/bench/run.py
	@$(RACK)
	@$(PAPER)

.PHONY: bench-rack
bench-rack: deps-bench ## only the rack in network namespaces, into BUILD/rack.md (root; RATE=500 Mbit/s, RUNS, ROWS)
	@$(MAKE) --no-print-directory all
	@$(RACK)

RACKS = BUILD='$(BUILD)' RUNS='$(RUNS)' ROWS='$(ROWS)' RATE='$(RATE)' RESUME='$(RESUME)' tests/bench/racks.py

.PHONY: bench-racks bench-racks-readme
bench-racks: deps-bench ## several racks in network namespaces, beside Gloo and Open MPI, and PHub's experiment, into BUILD/racks.md (root; RUNS=5, ROWS=quick or full, RATE, RESUME=1)
	@$(MAKE) --no-print-directory all $(BUILD)/tests/system/worker
	@$(RACKS)

bench-racks-readme: bench-racks ## the same, and its tables into README.md
	@$(RACKS) --readme

.PHONY: bench-model
bench-model: ## the cost model of phub topo --racks beside measurement, into BUILD/model.md: ten minutes (root; RUNS=3, ROWS=full, fit, smoke)
	@$(MAKE) --no-print-directory test-programs
	@BUILD='$(BUILD)' RUNS='$(RUNS)' ROWS='$(ROWS)' tests/bench/model_check.py

.PHONY: bench-paper
bench-paper: deps-bench ## PHub's own experiments beside the paper's curves, into BUILD/paper.md and pictures
	@$(MAKE) --no-print-directory all
	@$(PAPER)

.PHONY: bench-plan
bench-plan: ## phub plan beside measurement, into BUILD/plan.md: minutes, on an idle machine (RUNS=5, POINTS, JUDGE)
	@$(MAKE) --no-print-directory all
	@BUILD='$(BUILD)' RUNS='$(RUNS)' POINTS='$(POINTS)' JUDGE='$(JUDGE)' tests/bench/plan_check.py

.PHONY: bench-verbs
bench-verbs: deps-vm ## the exchange over RDMA beside perftest, into BUILD/verbs.md: minutes; without a device in a virtual machine
	@$(MAKE) --no-print-directory all
	@BUILD='$(BUILD)' RUNS='$(RUNS)' tests/bench/verbs.py

.PHONY: bench-dpdk
bench-dpdk: deps-bench ## the exchange over DPDK beside testpmd and the kernel, into BUILD/dpdk.md: minutes (root; RUNS=5, QUICK=1)
	@$(MAKE) --no-print-directory all $(BENCH_CYCLES)
	@BUILD='$(BUILD)' RUNS='$(RUNS)' tests/bench/dpdk.py

.PHONY: bench-checkpoint
bench-checkpoint: ## what checkpoints cost a training job, into BUILD/checkpoint.md: half an hour (RUNS=5, SECONDS=60, FOLDER, QUICK=1)
	@$(MAKE) --no-print-directory all
	@BUILD='$(BUILD)' RUNS='$(RUNS)' tests/bench/checkpoint.py

.PHONY: bench-standby
bench-standby: ## what a standby costs, and how long a dead box is missed, into BUILD/standby.md: minutes (RUNS=5, QUICK=1)
	@$(MAKE) --no-print-directory all $(BUILD)/tests/system/worker
	@BUILD='$(BUILD)' RUNS='$(RUNS)' tests/bench/standby.py

.PHONY: bench-neighbours
bench-neighbours: ## what a flooding or stopped job costs another on its core, into BUILD/neighbours.md: minutes (RUNS=5, QUICK=1)
	@$(MAKE) --no-print-directory all $(BUILD)/tests/system/worker
	@BUILD='$(BUILD)' RUNS='$(RUNS)' tests/bench/neighbours.py

.PHONY: bench-rates
bench-rates: ## rates and times that tests only see happen, judged, into BUILD/rates.md: minutes, on an idle machine (root for links; RUNS=3)
	@$(MAKE) --no-print-directory all test-programs
	@BUILD='$(BUILD)' RUNS='$(RUNS)' tests/bench/rates.py

.PHONY: bench-encrypt
bench-encrypt: deps-bench ## what encryption costs on each transport, into BUILD/encrypt.md: minutes (root for dpdk; RUNS=5, QUICK=1)
	@$(MAKE) --no-print-directory all $(BENCH_CYCLES)
	@BUILD='$(BUILD)' RUNS='$(RUNS)' tests/bench/encrypt.py

STUDY = BUILD='$(BUILD)' tests/bench/study.py $(STUDY_OPTIONS)

.PHONY: study study-full study-torch
study: deps-bench ## the findings on sites with skewed labels, a PASS or FAIL each, into BUILD/study/report.md: 5 to 15 minutes on two CPUs (STUDY_OPTIONS='--lines R1,R6 --on valid --jobs 1 --plot')
	@$(MAKE) --no-print-directory $(SKEW_STUDY)
	@$(STUDY)

study-torch: deps-bench ## its main cells by PyTorch processes at a box, beside the same in one process, into BUILD/study/torch.md: 20 runs of a minute of CPU (STUDY_OPTIONS='--seeds 1-3 --json')
	@$(MAKE) --no-print-directory all $(SKEW_STUDY)
	@$(STUDY) --torch

study-full: deps-bench ## all of its cells, seeds 1 to 10: hours; what was run is not run again
	@$(MAKE) --no-print-directory $(SKEW_STUDY)
	@$(STUDY) --full

.PHONY: bench-readme
bench-readme: bench ## the same, and its tables into README.md
	@BUILD='$(BUILD)' tests/bench/run.py --readme

.PHONY: bench-instructions
bench-instructions: deps-test ## instructions per gradient byte beside those recorded (RECORD=1: record them anew)
	@$(MAKE) --no-print-directory all
	@BUILD='$(BUILD)' tests/system/test_instructions.py $(if $(RECORD),--record)

# What headers of ours include is generated first. lint-headers CC=clang: what another compiler adds to lint.
.PHONY: lint lint-headers
lint lint-headers: export LINT_CFLAGS = $(PROJECT_CFLAGS) $(DPDK_CFLAGS)
lint: deps-lint ## layer rule, forbidden calls, sizes, format, headers, cppcheck, shellcheck, yamllint
	@$(MAKE) --no-print-directory $(GEN_H)
	@CC='$(CC)' CCACHE='$(CCACHE)' BUILD='$(BUILD)' deploy/lint/lint.sh --self-test
	@CC='$(CC)' CCACHE='$(CCACHE)' BUILD='$(BUILD)' deploy/lint/lint.sh

lint-headers: deps-lint ## does every header compile by itself? A part of lint
	@$(MAKE) --no-print-directory $(GEN_H)
	@CC='$(CC)' CCACHE='$(CCACHE)' BUILD='$(BUILD)' deploy/lint/lint.sh --headers

.PHONY: format
format: ## let clang-format lay out every file of ours
	clang-format-14 -i $$(deploy/lint/lint.sh --list-c)

MAN := $(wildcard deploy/man/*.[1-8])
UNIT := deploy/systemd/phubd.service
EXAMPLES := $(PREFIX)/share/doc/phub/examples

.PHONY: install
install: all ## install under DESTDIR and PREFIX
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include
	$(if $(INSTALLED),install -m 755 $(INSTALLED) $(DESTDIR)$(PREFIX)/bin)
ifneq ($(SRC_client),)
	install -m 755 $(SHARED) $(DESTDIR)$(PREFIX)/lib
	ln -sf $(notdir $(SHARED)) $(DESTDIR)$(PREFIX)/lib/libphub.so.$(SOVERSION)
	ln -sf libphub.so.$(SOVERSION) $(DESTDIR)$(PREFIX)/lib/libphub.so
	$(foreach p,$(PLUGINS),install -m 755 $p $(DESTDIR)$(PREFIX)/lib;)
	install -m 644 $(BUILD)/libphub.a $(DESTDIR)$(PREFIX)/lib
	install -m 644 $(BUILD)/phub.pc $(DESTDIR)$(PREFIX)/lib/pkgconfig
	install -m 644 client/phub.h client/phub_sites.h $(DESTDIR)$(PREFIX)/include
	install -d $(DESTDIR)$(EXAMPLES)
	install -m 644 $(EXAMPLE) $(DESTDIR)$(EXAMPLES)
endif
	$(foreach m,$(MAN),install -D -m 644 $m $(DESTDIR)$(PREFIX)/share/man/man$(subst .,,$(suffix $m))/$(notdir $m);)
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system $(DESTDIR)$(EXAMPLES)
	sed 's,=phubd ,=$(PREFIX)/bin/phubd ,' $(UNIT) | install -m 644 /dev/stdin $(DESTDIR)$(PREFIX)/lib/systemd/system/$(notdir $(UNIT))
	install -m 755 deploy/dpdk-host.sh deploy/dpdk-host-show.sh deploy/slurm/phub.sbatch $(DESTDIR)$(EXAMPLES)
	install -d $(DESTDIR)$(EXAMPLES)/k8s
	install -m 644 $(wildcard deploy/k8s/*.yaml) $(DESTDIR)$(EXAMPLES)/k8s
	install -m 644 deploy/phubd.yaml deploy/racks.yaml deploy/systemd/dpdk.conf deploy/dpdk.md deploy/roce.md deploy/security.md $(DESTDIR)$(EXAMPLES)
	$(if $(wildcard deploy/completion/phub.bash),install -D -m 644 deploy/completion/phub.bash \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/phub && \
		ln -sf phub $(DESTDIR)$(PREFIX)/share/bash-completion/completions/phubd)
ifeq ($(DESTDIR),)
	@PATH=$$PATH:/usr/sbin:/sbin; ldconfig 2>/dev/null || true; ldconfig -p | grep -q ' $(PREFIX)/lib/libphub' || \
		echo "note: the loader does not look into $(PREFIX)/lib; export LD_LIBRARY_PATH=$(PREFIX)/lib" >&2
	@case $(PREFIX) in /usr | /usr/local) ;; *) \
		echo "note: systemd does not look into $(PREFIX): systemctl enable $(PREFIX)/lib/systemd/system/$(notdir $(UNIT))" >&2 ;; esac
endif

# Only what install put there; /etc/phub, /var/lib/phubd and the user phub are the operator's.
.PHONY: uninstall
uninstall: ## remove what install put under DESTDIR and PREFIX
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/,bin/phubd bin/phub $(addprefix lib/,$(notdir $(SHARED)) libphub.so.$(SOVERSION) \
		libphub.so libphub-dpdk.so libphub-etcd.so libphub.a pkgconfig/phub.pc systemd/system/$(notdir $(UNIT))) include/phub.h include/phub_sites.h \
		$(foreach m,$(MAN),share/man/man$(subst .,,$(suffix $m))/$(notdir $m)) $(addprefix share/bash-completion/completions/,phub phubd))
	rm -rf $(DESTDIR)$(PREFIX)/share/doc/phub
	@$(if $(DESTDIR),:,PATH=$$PATH:/usr/sbin:/sbin; ldconfig 2>/dev/null || true)

.PHONY: clean
clean: ## remove the build folders
	rm -rf build build-clang build-address build-undefined build-thread build-fuzz $(BUILD)

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' Makefile

-include $(shell find $(BUILD)/obj $(ARM)/obj -name '*.d' 2>/dev/null)
