# Two commands do everything on a fresh machine, set-up included:
#   make run     builds, and serves the demo model (or MODEL=FILE) with the plugins deployed
#   make test    checks format and lints, builds, and runs every test
# Also: make build, make plugins, make lint; make where (tells where build and plugins put what they made);
# make test-device (the part of make test that runs on a device); make bench (measures all that is promised, in less
# than an hour on two cores; VS=URL of a peer for HTTP, LLAMA=URL of llama.cpp's server
# for tokens a second, see BENCHMARKS.md); make model (trains the demo model again, in about an hour on two cores; stopped and started again
# it goes on where it was).
#   make microbench      times what stands on the way of a token, each alone (BENCHES="text events", FILTER=REGEX)
#   make instructions    counts the instructions of the same with valgrind, and fails if they have become more than
#                        is written down (WRITE=1 writes them down, JSON=1 prints them for programs)
# FEATURES=cuda with any of them builds a GPU backend in (or vulkan, rocm, metal; their compilers have to
# be there). make dist builds a binary for other machines, with BACKENDS="vulkan cuda" as it may be.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help run test test-device build dist plugins where lint bench microbench instructions model

# Build products stay outside the checkout, so that a second clone builds quickly. Native code fits
# the processor and compiler that it was built with: the folder is named after both.
CACHE := $(or $(CORRAL_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/corral)
KEY := $(shell { rustc -vV; uname -m; grep -m1 '^flags' /proc/cpuinfo; } 2>/dev/null | sha256sum | cut -c1-12)
export CORRAL_CACHE := $(CACHE)
export CARGO_TARGET_DIR ?= $(CACHE)/$(KEY)

MODEL ?= models/tiny/tiny.gguf
LISTEN ?= 127.0.0.1:8080
ADMIN ?= 127.0.0.1:8081

export CORRAL_BIN := $(CARGO_TARGET_DIR)/release/corral
export CORRAL_PLUGINS := $(CARGO_TARGET_DIR)/plugins

SETUP := eval "$$(host/setup.sh)"
VULKAN := build=$$(host/vulkan.sh build); eval "$$build"
# Always the whole workspace: cargo's features depend on which crates are built together, and
# another choice would build wasmtime a second time.
FEATURES ?=
MEMBERS := --workspace $(addprefix --features corral-cli/,$(FEATURES))
CARGO_FLAGS := --release $(MEMBERS)
ifneq ($(filter vulkan,$(FEATURES) $(BACKENDS)),)
SETUP := $(SETUP); $(VULKAN)
endif

# The engine's tests that run a second time, on a device; none to leave that out. Others that can (real_model,
# looking, sequences) are too slow on a device that is a processor: one test takes minutes.
DEVICE_TESTS ?= offload
DEVICE_FLAGS := --release --workspace --features corral-engine/vulkan $(addprefix --test ,$(DEVICE_TESTS))

# What make microbench times; a bench of the plugins' workspace is among them.
BENCHES ?= attention scheduling prefixes sampling constraints text events
HOST_BENCHES := $(filter-out events,$(BENCHES))
FILTER ?=
BENCH_ARGUMENTS := $(if $(FILTER),-- '$(FILTER)')

BACKENDS ?=
TESTS ?=
DIR ?= $(CARGO_TARGET_DIR)/dist

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

build:
	@$(SETUP); cargo build $(CARGO_FLAGS)

# Not of native code, and with libraries beside it: see the script.
dist:
	@$(SETUP); host/dist.sh "$(DIR)" "$(BACKENDS)" "$(TESTS)"

plugins: build
	@plugins/build.sh "$(CORRAL_PLUGINS)"

where:
	@echo "corral:  $(CORRAL_BIN)"
	@echo "plugins: $(CORRAL_PLUGINS)"

run: plugins
	@[ -f "$(MODEL)" ] || { echo "make run: there is no model $(MODEL); give one as MODEL=FILE" >&2; exit 1; }
	@echo "Once it listens, try:"
	@echo "  curl -s http://$(LISTEN)/generate -d '{\"prompt\":\"1+1=\",\"max_tokens\":10}'"
	@echo "  curl -s http://$(LISTEN)/v1/chat/completions -d '{\"messages\":[{\"role\":\"user\",\"content\":\"12+7=\"}]}'"
	@exec "$(CORRAL_BIN)" serve --model "$(MODEL)" --listen $(LISTEN) --admin $(ADMIN) \
	  --plugin /generate="$(CORRAL_PLUGINS)/generate.wasm" \
	  $(foreach route,/v1 /tokenize /detokenize,--plugin $(route)="$(CORRAL_PLUGINS)/openai.wasm" --error-format $(route)=openai) \
	  --plugin /hello="$(CORRAL_PLUGINS)/hello.wasm"

lint:
	@$(SETUP); cargo fmt --all --check
	@cargo fmt --all --check --manifest-path plugins/Cargo.toml
	@cargo fmt --all --check --manifest-path plugins/componentize/Cargo.toml
	@$(SETUP); cargo clippy $(CARGO_FLAGS) --all-targets -- -D warnings
	@cargo clippy --manifest-path plugins/Cargo.toml --workspace --all-targets -- -D warnings
	@cargo clippy --manifest-path plugins/componentize/Cargo.toml --all-targets -- -D warnings

test: lint plugins
	@cargo test --manifest-path plugins/Cargo.toml
	@cargo test --manifest-path plugins/componentize/Cargo.toml
	@CORRAL_CLIENTS=$$(tests/clients/setup.sh); export CORRAL_CLIENTS; \
	  $(SETUP); cargo test $(CARGO_FLAGS)
	@[ -z "$(DEVICE_TESTS)" ] || $(MAKE) --no-print-directory test-device

# What a GPU needs of us, without one: Vulkan on the processor. Only llama.cpp and the engine are built a second
# time for it, beside the others and as parts of the tests, so neither takes the other's place. Built without the
# device's variables: the build of llama.cpp takes those that begin with GGML_ as its own, and would run again when
# they change. One test at a time, since a device has its own threads; and never without end.
test-device:
	@$(SETUP); $(VULKAN); cargo test $(DEVICE_FLAGS) --no-run
	@device=$$(host/vulkan.sh); $(SETUP); eval "$$device"; \
	  timeout 1800 cargo test $(DEVICE_FLAGS) -- --test-threads 1

bench: plugins
	@"$(CORRAL_BIN)" bench model "$(CACHE)/qwen3-0.6b.gguf"
	@"$(CORRAL_BIN)" bench model --shape wide "$(CACHE)/wide.gguf"
	@"$(CORRAL_BIN)" bench all --model "$(CACHE)/qwen3-0.6b.gguf" --wide "$(CACHE)/wide.gguf" --plugins "$(CORRAL_PLUGINS)" $(if $(VS),--vs $(VS)) $(if $(LLAMA),--vs-openai $(LLAMA))

microbench:
	@[ -z "$(HOST_BENCHES)" ] || { $(SETUP); \
	  cargo bench $(MEMBERS) $(addprefix --bench ,$(HOST_BENCHES)) $(BENCH_ARGUMENTS); }
	@[ -z "$(filter events,$(BENCHES))" ] || \
	  cargo bench --manifest-path plugins/Cargo.toml -p corral-sdk --bench events $(BENCH_ARGUMENTS)

instructions:
	@$(SETUP); host/instructions.sh $(if $(JSON),--json) $(if $(WRITE),--write)

model:
	@python3 -m venv "$(CACHE)/python"
	@"$(CACHE)/python/bin/pip" install --quiet -r models/tiny/requirements.txt
	@"$(CACHE)/python/bin/python" models/tiny/train.py --checkpoint "$(CACHE)/tiny-checkpoint.pkl"
	@"$(CACHE)/python/bin/python" models/tiny/evaluate.py
