# Two commands: `make demo` and `make test`. Each sets up what it needs in .venv, alone and in any order.

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$p && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
CMAKE := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cmake

.DEFAULT_GOAL := help
.PHONY: help demo test faults test-native test-aarch64 fuzz test-slow test-integrations lint lint-native docs wheels bench bench-rivals bench-gpu clean

help: ## Show what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

demo: .venv/core ## Five ways to feed an accelerator, side by side, on this machine (under 4 minutes)
	$(BIN)/stoker demo

test: .venv/dev test-native ## The tests (a few minutes)
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal

FUZZ_TARGETS := $(filter-out main,$(basename $(notdir $(wildcard native/fuzz/*.cpp))))
FUZZ_S ?= 60

test-native: .venv/dev ## The tests of the native code, and its fuzz targets over their seeds, under ASan and UBSan
	@$(CMAKE) -S native -B build/native-tests -G Ninja -DSTOKER_TESTS=ON > /dev/null
	@$(CMAKE) --build build/native-tests -- --quiet
	@$(BIN)/python native/fuzz/seeds.py build/fuzz/seeds
	@set -e; for t in $(FUZZ_TARGETS); do build/native-tests/fuzz_$$t build/fuzz/seeds/$$t native/fuzz/finds/$$t; done
	build/native-tests/native_tests

test-aarch64: .venv/dev ## The tests of the native code for AArch64, compiled by ziglang, run by qemu-user
	@command -v qemu-aarch64 > /dev/null || { echo "qemu-aarch64 is missing (Debian, Ubuntu: apt install qemu-user)"; exit 1; }
	@$(PIP) ziglang
	@STOKER_ZIG=aarch64-linux-musl $(CMAKE) -S native -B build/aarch64 -G Ninja -DSTOKER_TESTS=ON -DSTOKER_SANITIZE=OFF \
		-DCMAKE_TOOLCHAIN_FILE=zig.cmake -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python > /dev/null
	@STOKER_ZIG=aarch64-linux-musl $(CMAKE) --build build/aarch64 -- --quiet
	@$(BIN)/python native/fuzz/seeds.py build/fuzz/seeds
	@set -e; for t in $(FUZZ_TARGETS); do qemu-aarch64 build/aarch64/fuzz_$$t build/fuzz/seeds/$$t native/fuzz/finds/$$t; done
	qemu-aarch64 build/aarch64/native_tests

fuzz: .venv/dev ## Fuzz the native code with clang's libFuzzer, FUZZ_S seconds (60) for each target
	@$(CMAKE) -S native -B build/fuzz/built -G Ninja -DSTOKER_TESTS=ON -DSTOKER_FUZZ=ON -DCMAKE_CXX_COMPILER=clang++ > /dev/null
	@$(CMAKE) --build build/fuzz/built -- --quiet
	@$(BIN)/python native/fuzz/seeds.py build/fuzz/seeds
	@for t in $(FUZZ_TARGETS); do mkdir -p build/fuzz/corpus/$$t; \
		build/fuzz/built/fuzz_$$t -max_total_time=$(FUZZ_S) -max_len=4096 -print_final_stats=1 -artifact_prefix=build/fuzz/$$t- \
			build/fuzz/corpus/$$t build/fuzz/seeds/$$t $$(ls -d native/fuzz/finds/$$t 2> /dev/null) > build/fuzz/$$t.log 2>&1 \
			|| { tail -40 build/fuzz/$$t.log; exit 1; }; \
		echo "$$t: $$(sed -n 's/stat::number_of_executed_units: *//p' build/fuzz/$$t.log) runs in $(FUZZ_S) s, nothing found"; done

test-slow: .venv/dev ## The long and costly tests; and the laws with examples that `make test` does not draw
	$(BIN)/python -m pytest -m slow
	$(BIN)/python -m pytest -m "not slow" --hypothesis-profile=others tests/laws tests/crash tests/unit tests/integration/test_source.py

test-integrations: .venv-integrations/made ## The loops of Lightning, transformers, Accelerate and Ray Train (10 minutes, 2 GB)
	.venv-integrations/bin/python -m pytest -m "" tests/integrations tests/integration/test_starting_ranks.py

faults: .venv/dev ## Whatever a store does, over every operation, store and number of ranks (about 10 minutes)
	$(BIN)/python -m pytest tests/integration/test_faults.py -n 2

lint: .venv/dev ## Linter, formatter, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

lint-native: .venv/dev ## clang-tidy over the native code (a minute)
	@$(CMAKE) -S native -B build/native-tests -G Ninja -DSTOKER_TESTS=ON -DCMAKE_EXPORT_COMPILE_COMMANDS=ON > /dev/null
	$(BIN)/clang-tidy -p build/native-tests --quiet $(wildcard native/*.cpp native/parquet/*.cpp)

docs: .venv/dev ## The documentation site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

wheels: .venv/bin/python ## Wheels for Linux on x86-64 and aarch64 and macOS on arm64, in dist/, compiled by ziglang
	$(BIN)/python -m tools.wheels

bench: .venv/core ## Ours against the machine's ceilings, as ratios
	$(BIN)/python -m benchmarks

bench-rivals: .venv/core ## The same rows through every other loader, each in its own environment (an hour, a few GB)
	$(BIN)/python -m benchmarks.rivals

bench-gpu: .venv/dev ## What needs a GPU: copies, chunks that stay there, steps of real models
	$(BIN)/python -m benchmarks.gpu

clean: ## Remove what make made
	rm -rf .venv .venv-integrations benchmarks/.environments benchmarks/rivals/.environments build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Stoker needs Python 3.11 or newer with venv; name it with: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv .venv

# What pip builds with stays in .venv, so that after a change only that is compiled; a machine without a C++ compiler
# gets PyPI's.
NATIVE := $(wildcard native/*.* native/*/*.h native/*/*.cpp)
ifeq ($(shell command -v $(CXX) || command -v c++ || command -v clang++),)
export STOKER_ZIG ?= native
endif
.venv/core: pyproject.toml constraints.txt $(NATIVE) | .venv/bin/python
	$(PIP) scikit-build-core nanobind cmake ninja $(if $(STOKER_ZIG),ziglang)
	$(PIP) --no-build-isolation -e .
	@touch $@


# torch is pinned to a version by constraints.txt: the newest one brings gigabytes of CUDA libraries along.
.venv/dev: .venv/core
	$(PIP) --no-build-isolation -e '.[dev,docs,fsspec,torch]'
	@touch $@

# Frameworks in an environment of their own: they hold back versions of much else.
.venv-integrations/made: pyproject.toml constraints.txt constraints-integrations.txt | .venv/bin/python
	test -x .venv-integrations/bin/python || $(PYTHON) -m venv .venv-integrations
	.venv-integrations/bin/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -c constraints-integrations.txt \
		-e '.[torch,lightning,transformers]' 'ray[train]' torchdata hypothesis pytest pytest-timeout
	@touch $@
