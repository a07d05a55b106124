# Every target does its own set-up; when nothing changed that takes no time. `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUST := 1.87
FUZZ_SECONDS ?= 600
ROUNDS ?= 200
PARTITION ?= 30
SEED ?=
N ?= 1000
FIRST ?= 0
BENCH ?=
PYTEST ?=
SYSTEM ?= ask
DATA ?= .busway
# Tests wait for processes and servers more than they compute.
JOBS ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))

# One environment that grows: what serving needs and the engine first, everything else where a target needs it.
SERVE := $(VENV)/.serve
CONSOLE := $(VENV)/.console
ENGINE := $(VENV)/.engine
DEPENDENCIES := $(VENV)/.dependencies
EVERYTHING := $(ENGINE) $(DEPENDENCIES)
SOURCES := $(shell find crates -type f \( -name '*.rs' -o -name '*.toml' \) -not -path '*/target/*' 2>/dev/null) \
	$(wildcard Cargo.toml Cargo.lock rust-toolchain.toml .cargo/config.toml)

.DEFAULT_GOAL := help
.PHONY: help setup run demo test test-all check format sync console bench bench-fuse bench-gateway bench-mesh fuzz crash crash-spark crash-mesh simulate lock clean python cargo
.NOTPARALLEL:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(EVERYTHING) ## prepare everything for work on Busway: all dependencies, the engine, Java
	@SYSTEM=$(SYSTEM) scripts/system-packages.sh java

# With job control the terminal's Ctrl-C reaches the server alone, so that make does not report an error.
run: $(ENGINE) $(CONSOLE) ## start a bus on tcp://127.0.0.1:7420, with the console on http://127.0.0.1:15555 and its data in .busway
	@echo "data is stored in $(DATA) (make clean leaves it; delete the folder to begin anew)"
	@if [ -t 0 ]; then set -m; fi; $(BIN)/busway serve --data $(DATA) --http 127.0.0.1:15555 || test $$? = 130

demo: $(EVERYTHING) ## payments, a Spark pipeline, an archive and a picture, in two minutes
	@SYSTEM=$(SYSTEM) scripts/system-packages.sh java
	$(BIN)/python examples/demo/demo.py

# The tests start hundreds of programs, which load compiled files faster. The crate for Python has no tests in Rust.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(EVERYTHING) $(CONSOLE) ## run every test (PYTEST="-k word" runs those in Python only; SYSTEM=no installs no system packages)
	@SYSTEM=$(SYSTEM) scripts/system-packages.sh postgresql java namespaces chromium curl fuse
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(PYTEST)
ifneq ($(and $(PYTEST),$(filter undefined,$(origin CARGO_TEST))),)
	@echo "PYTEST is set, so the tests in Rust were left out; CARGO_TEST=\"topic\" runs those that match"
else
	cargo test --workspace --exclude busway-python --locked --quiet $(CARGO_TEST)
endif

test-all: export BUSWAY_TEST_ALL := 1
test-all: test ## run every test over every transport and with all examples (make test takes a share)

check: $(EVERYTHING) ## linters, types, import order, formatting, and whether the generated code is current
	@# Python and Rust side by side: either needs one core for most of its time.
	@scripts/side-by-side.sh \
		"$(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/mypy && $(BIN)/lint-imports && \
			$(BIN)/python -m scripts.make_sync --check && \
			$(BIN)/python -m mypy.stubtest busway._core --allowlist scripts/stubtest.allow --ignore-unused-allowlist" \
		"cargo fmt --all --check && cargo fmt --manifest-path crates/fuzz/Cargo.toml --check && \
			cargo clippy --workspace --all-targets --locked --quiet -- -D warnings"
	@# Apart from the workspace, with a target folder of its own. libFuzzer comes as source and needs a C++ compiler.
	@if command -v c++ >/dev/null; then set -x; cargo check --locked --quiet --manifest-path crates/fuzz/Cargo.toml --target-dir target/fuzz/check; \
		else echo "crates/fuzz is not checked: libFuzzer needs a C++ compiler (c++)"; fi

format: $(EVERYTHING) sync ## let the formatters and the safe fixes rewrite the sources
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	cargo fmt --all

sync: $(EVERYTHING) ## generate the blocking API in src/busway/sync/generated from the asyncio API
	$(BIN)/python -m scripts.make_sync

console: $(CONSOLE) ## fetch the scripts of other projects that the console uses; needs npm

bench: $(EVERYTHING) ## compare with other systems (BENCH="--quick" for a short look)
	$(BIN)/python -m benchmarks.peers $(BENCH)

bench-fuse: $(EVERYTHING) ## measure the file door beside a trivial file system in C (BENCH="--quick")
	@SYSTEM=$(SYSTEM) scripts/system-packages.sh fuse
	$(BIN)/python -m benchmarks.fuse $(BENCH)

bench-gateway: $(EVERYTHING) ## measure the JSON door beside a plain WebSocket echo (BENCH="--quick")
	$(BIN)/python -m benchmarks.gateway $(BENCH)

bench-mesh: $(EVERYTHING) ## measure a cluster: over a link, copies, a new node, silence, size (BENCH="--quick")
	$(BIN)/python -m benchmarks.mesh $(BENCH)

fuzz: $(EVERYTHING) ## fuzz codec, topics, patterns, fields, rules and the stored log for FUZZ_SECONDS (600)
	scripts/fuzz.sh $(FUZZ_SECONDS)

crash: $(EVERYTHING) ## kill a busy broker ROUNDS (200) times and see what it has forgotten
	$(BIN)/python -m tests.chaos.single $(ROUNDS)

crash-spark: $(EVERYTHING) ## kill a streaming query ROUNDS (20) times and count what its sink has stored
	$(BIN)/python -m tests.chaos.spark $(if $(filter file,$(origin ROUNDS)),20,$(ROUNDS))

crash-mesh: $(EVERYTHING) ## kill nodes of a mesh and cut them off for PARTITION (30) seconds, ROUNDS (20) times, and see what was promised
	@SYSTEM=$(SYSTEM) scripts/system-packages.sh namespaces
	$(BIN)/python -m tests.chaos.cluster $(if $(filter file,$(origin ROUNDS)),20,$(ROUNDS)) --partition $(PARTITION) $(if $(SEED),--seed $(SEED))

simulate: $(EVERYTHING) ## run N (1000) simulated worlds from the seed FIRST (0) on, of NODES (1 or 3-7) brokers, and see which promise breaks
	$(BIN)/python -m tests.simulation $(N) --first $(FIRST) $(if $(NODES),--nodes $(NODES))

LOCK = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --no-emit-index-url --no-emit-find-links \
	--custom-compile-command "make lock"
lock: $(DEPENDENCIES) ## resolve the dependencies anew into requirements.lock and requirements-serve.lock
	$(BIN)/python -m pip install --quiet uv
	$(LOCK) --extra auth --extra cli --extra db --extra pydantic --extra arrow --extra http --extra mdns --extra spark --extra bench --group tools \
		-o requirements.lock pyproject.toml
	$(LOCK) --extra auth --extra cli --extra http --group build --constraint requirements.lock -o requirements-serve.lock pyproject.toml

clean: ## remove everything that was built; the data in .busway stays
	rm -rf $(VENV) target dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f src/busway/_core*.so
	rm -rf src/busway/gateway/console/vendor
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
	@if [ -e $(DATA) ]; then echo "the data in $(DATA) stays: delete the folder if you don't need it"; fi

python:
	@command -v $(PYTHON) >/dev/null || { echo "busway needs Python 3.11 or newer: '$(PYTHON)' was not found. Install it, or name one: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "busway needs Python 3.11 or newer: '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Name a newer one: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "busway needs Python's venv module: on Debian or Ubuntu install the package python3-venv"; exit 1; }

cargo:
	@command -v cargo >/dev/null || { echo "busway needs cargo (Rust $(RUST) or newer) to build its engine: install the Rust toolchain"; exit 1; }
	@have=$$(cargo --version | cut -d' ' -f2); test "$$(printf '%s\n' $(RUST) "$$have" | sort -V | head -n1)" = $(RUST) || { echo "busway needs Rust $(RUST) or newer: cargo is $$have. Update the toolchain (rustup update)"; exit 1; }

# The checks are order-only: they run first whenever something is to be made, and alone make nothing out of date.
$(SERVE): requirements-serve.lock | python
	@test -x $(BIN)/python || { echo "creating the virtual environment $(VENV)"; scripts/heartbeat.sh "creating $(VENV)" $(PYTHON) -m venv $(VENV); }
	@echo "installing what serving needs (requirements-serve.lock)"
	@scripts/heartbeat.sh "installing" $(BIN)/python -m pip install --requirement requirements-serve.lock
	@touch $@

# Without npm everything but the console works, so that is no error.
$(CONSOLE): scripts/console_vendor.py | $(SERVE)
	@$(BIN)/python -m scripts.console_vendor || test $$? = 3
	@if [ -d src/busway/gateway/console/vendor ]; then touch $@; fi

$(DEPENDENCIES): requirements.lock $(SERVE)
	@echo "installing the tools, Spark and the systems to compare with (requirements.lock, about 1.3 GB)"
	@scripts/heartbeat.sh "installing" $(BIN)/python -m pip install --requirement requirements.lock
	@touch $@

$(ENGINE): $(SERVE) $(SOURCES) pyproject.toml | cargo
	@echo "building the engine (the first build takes minutes; its last step, busway-python, takes half of them)"
	@# A running process keeps its file; writing over that would crash it.
	@for so in src/busway/_core*.so; do if [ -f $$so ]; then cp $$so $$so.old && mv $$so.old $$so; fi; done
	@PIP_QUIET=1 VIRTUAL_ENV="$(CURDIR)/$(VENV)" scripts/heartbeat.sh "building" $(BIN)/maturin develop --release --locked
	@touch $@
