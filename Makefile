# SPDX-License-Identifier: MIT
# Every recipe calls a script or a tool that can be called by hand. `make` prints this list.

PYTHON ?= $(shell for p in /usr/bin/python3.11 python3.11 /usr/bin/python3 python3.13 python3.12 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := build/venv/bin
SUPPORT := tests/support
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
unexport PYTHONDONTWRITEBYTECODE
export IMAGE
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache

# A compiler on the command line means: build the engine with it.
ifneq ($(filter command\ line,$(foreach v,CC CROSS_COMPILE,$(if $(findstring command,$(origin $(v))),command\ line))),)
.DEFAULT_GOAL := engine
else
.DEFAULT_GOAL := help
endif
GIVEN_CC := $(if $(findstring command,$(origin CC)),$(CC))
SETUP = @$(or $(PYTHON),$(error no Python >= 3.11 found: install python3 or give PYTHON=…)) $(SUPPORT)/setup_machine.py

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

.PHONY: setup
setup: ## install what the tests need: Debian packages by name, pinned Python packages in build/venv
	$(SETUP) test

.PHONY: setup-build setup-demo
setup-build:
	$(SETUP) build
setup-demo:
	$(SETUP) demo

.PHONY: engine
engine: setup-build ## library and colibrictl; takes CROSS_COMPILE CC CFLAGS LDFLAGS USE_BUILTIN_MEMCPY SIGNATURES PKG_CONFIG
	@$(VENV)/python $(SUPPORT)/build_engine.py --cross-compile='$(CROSS_COMPILE)' --cc='$(GIVEN_CC)' \
		--cflags='$(CFLAGS)' --ldflags='$(LDFLAGS)' --builtin-memcpy='$(USE_BUILTIN_MEMCPY)' \
		--signatures='$(SIGNATURES)' --pkg-config='$(PKG_CONFIG)'

.PHONY: engine-musl
engine-musl: setup ## static musl programs: build/aarch64-linux-musl and build/arm-linux-musleabihf
	@$(VENV)/python $(SUPPORT)/build_engine.py --name=aarch64-linux-musl --ldflags=-static \
		--cc='$(abspath $(VENV))/python -m ziglang cc -target aarch64-linux-musl'
	@$(VENV)/python $(SUPPORT)/build_engine.py --name=arm-linux-musleabihf --ldflags=-static \
		--cc='$(abspath $(VENV))/python -m ziglang cc -target arm-linux-musleabihf -mcpu=cortex_a7'

.PHONY: models
models: setup-demo engine ## convert the tiny and the demo model, with golden results, into build/models
	@$(VENV)/python $(SUPPORT)/models.py tiny demo

.PHONY: image
image: models ## kernel, root file system and model disk for QEMU, in build/image
	@$(VENV)/python $(SUPPORT)/image.py

.PHONY: demo
demo: image ## boot the image and ask the model a question
	@$(VENV)/python tests/smoke/demo.py --image build/image

.PHONY: run
run: image ## boot the image with a console (leave with: poweroff, or Ctrl-A X)
	@$(VENV)/python tests/smoke/demo.py --image build/image --interactive

.PHONY: test
test: ## everything: set-up, host, parity, qemu-user, boot; closes with one line of counts
	$(SETUP) build
	@$(VENV)/python $(SUPPORT)/suites.py setup host parity qemu-user boot

.PHONY: test-host test-parity test-qemu-user test-boot
test-host: setup ## C and Python tests, linters, sanitizers, clang
test-parity: setup ## against transformers and torch
test-qemu-user: setup ## C tests as AArch64 and 32-bit ARM programs
test-boot: setup setup-demo ## inside the booted image, or in that of IMAGE=DIR (docs/testing.md)
test-host test-parity test-qemu-user test-boot: test-%:
	@$(VENV)/python $(SUPPORT)/suites.py $*

.PHONY: test-long
test-long: setup setup-demo ## boot suite with all CPUs and cores, 50 power cuts, soak; takes IMAGE=DIR; not part of test
	@$(VENV)/python $(SUPPORT)/suites.py long

.PHONY: eval
eval: setup setup-demo engine ## perplexity and KL divergence of recipes on the demo model (docs/convert.md); not part of test
	@COLIBRI_LIBRARY=build/host/libcolibri.so PYTHONPATH=engine $(VENV)/python tests/parity/recipes.py
	@COLIBRI_LIBRARY=$(CURDIR)/build/host/libcolibri.so PYTHONPATH=engine COLIBRI_PROMPTS=10 \
		$(VENV)/python -m pytest -q -p no:cacheprovider -c tests/pytest.ini tests/parity/test_dense.py

.PHONY: test-pages
test-pages: setup setup-demo ## in images whose kernels have pages of 16 and 64 KiB; not part of test (two kernel builds)
	@$(VENV)/python $(SUPPORT)/suites.py pages

.PHONY: lint check-gen sanitizers clang reproducible fuzz
lint: setup ## ruff, mypy --strict, generated files
check-gen: setup ## generated files are what their sources say
sanitizers: setup ## C tests under ASan+UBSan and TSan
clang: setup ## engine and C tests with clang
reproducible: setup ## two builds in different folders give the same bytes
fuzz: setup ## a minute (FUZZ_SECONDS) of each fuzz target
lint check-gen sanitizers clang reproducible fuzz:
	@$(VENV)/python $(SUPPORT)/suites.py $@

.PHONY: corpus
corpus: setup-demo ## hostile model files, each named for the rule it breaks, in build/corpus
	@PYTHONPATH=engine:tests/unit $(VENV)/python tests/unit/corpus.py build/corpus

.PHONY: planted
planted: setup ## plant one bug at a time in a copy of the engine: the bit comparison must find each
	@PYTHONPATH=engine $(VENV)/python tests/unit/planted_bugs.py

.PHONY: planted-boot
planted-boot: setup setup-demo models ## plant one fault at a time in an image: the boot suite must find each
	@$(VENV)/python tests/boot/planted_faults.py

.PHONY: embedded-demo
embedded-demo: setup setup-demo engine-musl ## a static AArch64 program with a model of a million parameters inside: build/embedded
	@$(VENV)/python tests/bench/embedded.py --run

.PHONY: bench bench-arm bench-convert bench-kernels bench-memory bench-open bench-peer bench-plan bench-cache bench-telemetry bench-verify bench-look-ahead
bench: setup-demo engine $(if $(PEER),bench-peer) ## decode and prefill of three sizes, beside llama.cpp with PEER=1; an expert beside OpenBLAS
	@PYTHONPATH=engine $(VENV)/python tests/bench/speed.py
	@PYTHONPATH=engine $(VENV)/python tests/bench/gemv.py
bench-memory: setup-demo engine $(if $(PEER),bench-peer) ## models larger than memory, start-up, tail of token times (root)
	@PYTHONPATH=engine $(VENV)/python tests/bench/memory.py
bench-convert: setup-demo ## memory of converting a 30B checkpoint, killed in the middle and resumed (LAYERS="48 --once": the whole)
	@PYTHONPATH=engine $(VENV)/python tests/parity/convert_large.py build/convert-large $(LAYERS)
bench-plan: setup-demo engine ## predictions of colibri plan against measurements (root)
	@COLIBRI_LIBRARY=build/host/libcolibri.so PYTHONPATH=engine $(VENV)/python tests/bench/plan_grid.py
bench-verify: setup-demo engine ## what hashing every read costs while streaming, with and without SHA instructions (root)
	@$(VENV)/python $(SUPPORT)/build_engine.py --name=portable-sha --cflags=-DCOLIBRI_SHA256_PORTABLE --option=-Dtests=false
	@PYTHONPATH=engine $(VENV)/python tests/bench/verify_cost.py
bench-look-ahead: setup-demo engine ## what reading ahead gains and costs while streaming (root)
	@PYTHONPATH=engine $(VENV)/python tests/bench/look_ahead.py
bench-cache: setup-demo engine models ## hit rates of replacement policies on routing traces
	@COLIBRI_LIBRARY=build/host/libcolibri.so PYTHONPATH=engine $(VENV)/python tests/bench/cache_policy.py
bench-telemetry: setup-demo engine models ## share of the instructions that counting experts takes (valgrind)
	@$(VENV)/python tests/bench/telemetry_cost.py
bench-arm: setup setup-demo ## instructions per decoded token on AArch64, counted under user-mode emulation
	@$(VENV)/python $(SUPPORT)/build_engine.py --name=aarch64-bench --cross-compile=aarch64-linux-gnu- \
		--ldflags=-static --option=-Dtests=false
	@PYTHONPATH=engine $(VENV)/python tests/bench/arm.py
bench-kernels: engine ## kernel speeds of this machine
	@build/host/checkkernels --bench
bench-open: setup-demo engine ## time to open a sparse model of 8 GiB, speed of SHA-256
	@COLIBRI_LIBRARY=build/host/libcolibri.so PYTHONPATH=engine $(VENV)/python tests/bench/open_sparse.py --judge=build/host/judge
bench-peer: setup-demo ## build llama.cpp in ~/.cache/colibri/bench: what benchmarks are compared with
	@PYTHONPATH=engine $(VENV)/python tests/bench/peer.py

.PHONY: yocto yocto-check
yocto: ## bitbake colibri-image through kas (docs/yocto.md); KAS_FILES=kas.yml:configs/kas/…
	@command -v kas >/dev/null || { echo 'make yocto: there is no kas: python3 -m pip install kas, in an environment of its own (docs/yocto.md)' >&2; exit 1; }
	@kas build $(or $(KAS_FILES),kas.yml)
yocto-check: ## the layer against upstream trees: OECORE=DIR BITBAKE=DIR; parse, linter, task graph (not as root)
	@$(or $(PYTHON),$(error no Python >= 3.11 found: install python3 or give PYTHON=…)) tests/firmware/yocto_check.py --oecore '$(OECORE)' --bitbake '$(BITBAKE)'

.PHONY: dist
dist: setup-build ## release tarball of engine/: dist/colibri-VERSION.tar.gz, the same bytes every time
	@$(VENV)/python $(SUPPORT)/dist.py

.PHONY: buildroot buildroot-check
BR2_OUTPUT ?= build/buildroot
buildroot: dist models ## firmware with Buildroot: BUILDROOT=TREE, BR2_OUTPUT=build/buildroot, BR2_FRAGMENT=more settings
	@br2-external/utils/build '$(BUILDROOT)' '$(abspath $(BR2_OUTPUT))' $(or $(BR2_CONFIG),colibri_qemu_aarch64_defconfig) $(BR2_FRAGMENT)
buildroot-check: dist ## check-package, shellcheck, savedefconfig, show-info, legal-info: BUILDROOT=TREE
	@br2-external/utils/check '$(BUILDROOT)' '$(abspath $(BR2_OUTPUT))-check' '$(abspath $(BR2_OUTPUT))'

.PHONY: clean
clean: ## remove build/ except the Python environment (caches stay in ~/.cache/colibri)
	@find build -mindepth 1 -maxdepth 1 ! -name venv -exec rm -rf {} + 2>/dev/null || true
