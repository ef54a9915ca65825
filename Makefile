# On a new machine, each of these sets up all it needs:
#   make run           build, and serve the demo model (or MODEL=FILE, MODEL=hf:ORG/REPO) with the first-party plugins
#                      (STORE=DIR for what is deployed)
#   make test          check format and lints, build, and run all tests
#   make lint          check format, lints and links of the documentation, the Dockerfile and compose.yaml, and that the
#                      web console's bundle is what its sources give
#   make build         build the host workspace
#   make plugins       build the plugins
#   make wit-package   write the WIT packages as components, for registries of packages (DIR=PATH)
#   make console       bundle the web console again, into host/console/dist (needs Node.js; Corral does not)
#   make where         print the paths of the build products
#   make env           print shell commands that put corral into PATH: eval "$(make -s env)"
#   make test-device   run the tests that need a device, with Vulkan on the CPU; it builds llama.cpp a second time
#   make fuzz          build the fuzz targets and run each for a minute (MINUTES=60 TARGET=gguf: one of them for an hour)
#   make soak          run check-install, the tests that need a device, those of agents and lm-eval (2.5 GB of packages),
#                      then everything at once for an hour, with kills and faults (MINUTES=10, SEED=1)
#   make bench         measure every target, in about an hour on two cores: see BENCHMARKS.md
#                      (PEER=URL compares HTTP, OPENAI_PEER=URL of llama.cpp's server compares throughput,
#                      LLAMA_BENCH=FILE prompts)
#   make microbench    time the parts of a token's path (BENCHES="text events", FILTER=REGEX)
#   make instructions  count the instructions of these with valgrind, and fail if they have grown
#                      (WRITE=1 records them, JSON=1 prints JSON)
#   make model         train the demo model, in about an hour on two cores; continues after an interruption
#   make newcomer      follow the README on a new Debian 12 in a chroot, as root, and measure the minutes to a first answer
#                      and to a plugin of one's own; half an hour on two cores
#   make dist          build packages for other machines (BACKENDS="vulkan cuda", PACKAGES=PATH): tarball, .deb, symbols,
#                      checksums; the program alone lies in DIR=PATH
#   make check-install install the program with cargo, as docs/operating.md says, into a directory of its own, and ask it
#                      about the demo model; a few minutes after make build
#   make check-image   run the steps of the Dockerfile's last stage in a chroot, as root, with the packages of make dist, and
#                      ask the server as compose.yaml runs it (PACKAGES=PATH); make lint checks both files
#   make audit         check licenses and security advisories of all dependencies with cargo-deny
# FEATURES=cuda (or vulkan, rocm, metal) builds a GPU backend into the binary; its compiler must be installed.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help run env test test-device build dist dist-program plugins wit-package console bundle where lint fuzz soak bench microbench instructions model audit newcomer check-image check-install

# Build products are outside the checkout, for quick builds of a second clone. The directory is named after the processor
# and the compiler, which native code depends on.
CACHE := $(or $(CORRAL_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/corral)
KEY := $(shell { rustc -vV; uname -m; grep -m1 '^flags' /proc/cpuinfo; } 2>/dev/null | sha256sum | cut -c1-12)
export CORRAL_CACHE := $(CACHE)
export CARGO_TARGET_DIR ?= $(CACHE)/$(KEY)

STORE ?= $(CACHE)/store
MODEL ?= models/tiny/tiny.gguf
LISTEN ?= 127.0.0.1:8080
ADMIN ?= 127.0.0.1:8081

export CORRAL_BIN := $(CARGO_TARGET_DIR)/release/corral
export CORRAL_BENCH_BIN := $(CARGO_TARGET_DIR)/release/corral-bench
export CORRAL_PLUGINS := $(CARGO_TARGET_DIR)/plugins

SETUP := eval "$$(host/setup.sh)"
VULKAN := build=$$(host/vulkan.sh build); eval "$$build"
# Always the whole workspace: features depend on the crates that are built together, and other features would build
# wasmtime again.
FEATURES ?=
MEMBERS := --workspace $(addprefix --features corral-cli/,$(FEATURES))
CARGO_FLAGS := --release $(MEMBERS)
ifneq ($(filter vulkan,$(FEATURES) $(BACKENDS)),)
SETUP := $(SETUP); $(VULKAN)
endif

# The engine's tests to repeat on a device. Other tests are too slow for Vulkan on the CPU.
DEVICE_TESTS ?= device_placement
DEVICE_FLAGS := --release --workspace --features corral-engine/vulkan $(addprefix --test ,$(DEVICE_TESTS))

# The micro-benchmarks; `events` is in the plugins' workspace.
BENCHES ?= attention scheduling prefixes sampling grammars text events
HOST_BENCHES := $(filter-out events,$(BENCHES))
FILTER ?=
BENCH_ARGUMENTS := $(if $(FILTER),-- '$(FILTER)')

BACKENDS ?=
TESTS ?=
DIR ?= $(CARGO_TARGET_DIR)/dist
PACKAGES ?= $(CARGO_TARGET_DIR)/packages

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

build:
	@$(SETUP); cargo build $(CARGO_FLAGS)

dist-program:
	@$(SETUP); host/dist.sh "$(DIR)" "$(BACKENDS)" "$(TESTS)"

dist:
	@packaging/package.sh --check
	@$(MAKE) --no-print-directory dist-program
	@plugins/build.sh "$(CORRAL_PLUGINS)"
	@packaging/package.sh "$(DIR)" "$(CORRAL_PLUGINS)" "$(PACKAGES)"

newcomer:
	@tests/newcomer.sh

# cargo builds the program without the rest of the workspace, so some crates have fewer features than in `make build`:
# tests/tests/documents/packages.rs names them. The next build puts its own program back into the target directory.
check-install:
	@$(SETUP); cargo install --quiet --locked --force --path host/cli --root "$(CARGO_TARGET_DIR)/installed"
	@"$(CARGO_TARGET_DIR)/installed/bin/corral" model info models/tiny/tiny.gguf

check-image:
	@packaging/check_image.py "$(PACKAGES)"

audit:
	@packaging/licenses.py
	@cargo deny --version >/dev/null 2>&1 || cargo install --locked cargo-deny
	@cargo deny --config deny.toml check
	@cargo deny --config deny.toml --manifest-path plugins/Cargo.toml check

plugins: build
	@plugins/build.sh "$(CORRAL_PLUGINS)"

wit-package: DIR = $(CARGO_TARGET_DIR)/wit
wit-package: build
	@"$(CORRAL_BIN)" wit --binary --out "$(DIR)"

console:
	@host/console/check.sh --write

where:
	@echo "corral:  $(CORRAL_BIN)"
	@echo "plugins: $(CORRAL_PLUGINS)"

env:
	@echo 'export PATH="$(CARGO_TARGET_DIR)/release:$$PATH" PLUGINS="$(CORRAL_PLUGINS)" STORE="$(STORE)"'

# The sources of the console may have changed. Without Node.js, or its packages, the bundle of the checkout serves.
bundle:
	@host/console/check.sh --write || echo "make run: the console's bundle is that of the checkout" >&2

run: bundle plugins
	@case "$(MODEL)" in hf:*) ;; *) [ -f "$(MODEL)" ] || \
	  { echo "make run: there is no model $(MODEL); give one as MODEL=FILE or MODEL=hf:ORG/REPO" >&2; exit 1; } ;; esac
	@mkdir -p "$(STORE)"
	@echo "Once it listens, try:"
	@echo "  curl -s http://$(LISTEN)/generate -d '{\"prompt\":\"1+1=\",\"max_tokens\":10}'"
	@echo "  curl -s http://$(LISTEN)/v1/chat/completions -d '{\"messages\":[{\"role\":\"user\",\"content\":\"12+7=\"}]}'"
	@echo "and to deploy, in this folder:"
	@echo '  eval "$$(make -s env)"'
	@echo '  corral deploy examples/chat --store "$$STORE"'
	@exec "$(CORRAL_BIN)" serve --model "$(MODEL)" --store "$(STORE)" --listen $(LISTEN) --admin $(ADMIN) \
	  --plugin /generate="$(CORRAL_PLUGINS)/generate.wasm" \
	  --plugin /="$(CORRAL_PLUGINS)/openai.wasm" --error-format /=openai \
	  --plugin /api="$(CORRAL_PLUGINS)/ollama.wasm" --error-format /api=ollama --plugin /hello="$(CORRAL_PLUGINS)/hello.wasm"

lint:
	@host/console/check.sh
	@packaging/check_image.py
	@$(SETUP); cargo fmt --all --check
	@cargo fmt --all --check --manifest-path plugins/Cargo.toml
	@cargo fmt --all --check --manifest-path plugins/componentize/Cargo.toml
	@cargo fmt --all --check --manifest-path fuzz/Cargo.toml
	@$(SETUP); cargo clippy $(CARGO_FLAGS) --all-targets -- -D warnings
	@$(SETUP); RUSTDOCFLAGS="-D warnings" cargo doc --quiet $(CARGO_FLAGS) --no-deps
	@cargo clippy --manifest-path plugins/Cargo.toml --workspace --all-targets -- -D warnings
	@cargo clippy --manifest-path plugins/componentize/Cargo.toml --all-targets -- -D warnings
	@cargo clippy --manifest-path fuzz/Cargo.toml -p fuzz-plugins -p fuzz-grammars --all-targets -- -D warnings

test: lint plugins
	@cargo test --manifest-path plugins/Cargo.toml
	@cargo test --manifest-path plugins/componentize/Cargo.toml
	@CORRAL_CLIENTS=$$(tests/clients/setup.sh); CORRAL_CONSOLE=$$(tests/console/setup.sh); CORRAL_PROMTOOL=$$(tests/promtool.sh); \
	  CORRAL_DOCKER_REGISTRY=$$(tests/docker-registry.sh); \
	  CORRAL_LLAMA_SERVER_SUITE=$$(tests/clients/llama_server/setup.sh); \
	  CORRAL_WASMTIME=$$(tests/wasmtime.sh); CORRAL_GO=$$(tests/go.sh); CORRAL_NATS_SERVER=$$(tests/nats-server.sh); \
	  CORRAL_ZMQ=$$(tests/zmq.sh); CORRAL_SMG=$$(tests/smg_router.sh); CORRAL_ENVOY=$$(tests/envoy.sh); \
	  CORRAL_HAPROXY=$$(tests/haproxy.sh); CORRAL_KUBERNETES=$$(tests/kubernetes/setup.sh); \
	  export CORRAL_CLIENTS CORRAL_CONSOLE CORRAL_PROMTOOL CORRAL_DOCKER_REGISTRY CORRAL_LLAMA_SERVER_SUITE CORRAL_WASMTIME \
	    CORRAL_GO CORRAL_NATS_SERVER CORRAL_ZMQ CORRAL_SMG CORRAL_ENVOY CORRAL_HAPROXY CORRAL_KUBERNETES; \
	  $(SETUP); cargo test $(CARGO_FLAGS)

# Tests of the GPU code without a GPU, by Vulkan on the CPU. It builds llama.cpp and the engine again, beside the other
# builds, and without the variables of the device: llama.cpp's build reads those that begin with GGML_. One test runs at
# a time, since a device has threads of its own.
test-device:
	@$(SETUP); $(VULKAN); cargo test $(DEVICE_FLAGS) --no-run
	@device=$$(host/vulkan.sh); $(SETUP); eval "$$device"; \
	  timeout 1800 cargo test $(DEVICE_FLAGS) -- --test-threads 1

fuzz:
	@$(SETUP); fuzz/run.sh "$(or $(MINUTES),1)" $(TARGET)

# An installation by cargo; the tests that need a device; random workloads of the scheduler and its stores with faults in
# decode, swap and states; kills during deploys and jobs; mutated model files; agents and lm-eval, whose packages take 2.5 GB;
# then everything at once, for MINUTES, with an allocator that returns freed memory at once, since the memory in use is
# measured.
SOAK := cargo test $(CARGO_FLAGS)
soak: check-install plugins test-device
	@$(SETUP); export $(if $(SEED),CORRAL_SEED=$(SEED)) CORRAL_MINUTES="$(or $(MINUTES),60)"; \
	  $(SOAK) --lib --test scheduler -- random_workloads fetches_end; \
	  $(SOAK) --test deploy_crash_safety --test random_calls; \
	  $(SOAK) --test deployments -- --ignored jobs::; \
	  $(SOAK) --test bench_all -- --ignored; \
	  CORRAL_MUTANTS=$$((10000 * CORRAL_MINUTES / 60)) $(SOAK) --test broken_models -- --ignored --nocapture --test-threads=1; \
	  tests/clients/setup.sh >/dev/null; CORRAL_AGENTS=$$(tests/clients/agents/setup.sh); export CORRAL_AGENTS; \
	  $(SOAK) --test agents -- --ignored --nocapture; \
	  MALLOC_TRIM_THRESHOLD_=0 MALLOC_MMAP_THRESHOLD_=65536 $(SOAK) --test soak -- --ignored --nocapture

bench: plugins
	@"$(CORRAL_BENCH_BIN)" model "$(CACHE)/qwen3-0.6b.gguf"
	@"$(CORRAL_BENCH_BIN)" model --shape wide "$(CACHE)/wide.gguf"
	@"$(CORRAL_BENCH_BIN)" all --model "$(CACHE)/qwen3-0.6b.gguf" --wide "$(CACHE)/wide.gguf" --plugins "$(CORRAL_PLUGINS)" \
	  $(if $(PEER),--peer $(PEER)) $(if $(OPENAI_PEER),--openai-peer $(OPENAI_PEER)) \
	  $(if $(LLAMA_BENCH),--llama-bench $(LLAMA_BENCH))

microbench:
	@[ -z "$(HOST_BENCHES)" ] || { $(SETUP); \
	  cargo bench $(MEMBERS) $(addprefix --bench ,$(HOST_BENCHES)) $(BENCH_ARGUMENTS); }
	@[ -z "$(filter events,$(BENCHES))" ] || \
	  cargo bench --manifest-path plugins/Cargo.toml -p corral-sdk --bench events $(BENCH_ARGUMENTS)

instructions:
	@$(SETUP); host/instruction_counts.sh $(if $(JSON),--json) $(if $(WRITE),--write)

model:
	@python3 -m venv "$(CACHE)/python"
	@"$(CACHE)/python/bin/pip" install --quiet -r models/tiny/requirements.txt
	@"$(CACHE)/python/bin/python" models/tiny/train.py --checkpoint "$(CACHE)/tiny-checkpoint.pkl"
	@"$(CACHE)/python/bin/python" models/tiny/evaluate.py
