# SPDX-License-Identifier: MIT
# Every recipe calls a script or a tool that can be called by hand. `make` prints this list.

PYTHON ?= $(shell for p in /usr/bin/python3 python3.14 python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := build/venv/bin
SUPPORT := tests/support
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
export PYTHONDONTWRITEBYTECODE := 1

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
engine: setup-build ## library and colibrictl; takes CROSS_COMPILE CC CFLAGS LDFLAGS USE_BUILTIN_MEMCPY
	@$(VENV)/python $(SUPPORT)/engine.py --cross-compile='$(CROSS_COMPILE)' --cc='$(GIVEN_CC)' \
		--cflags='$(CFLAGS)' --ldflags='$(LDFLAGS)' --builtin-memcpy='$(USE_BUILTIN_MEMCPY)'

.PHONY: clean
clean: ## remove build/ except the Python environment (caches stay in ~/.cache/colibri)
	@find build -mindepth 1 -maxdepth 1 ! -name venv -exec rm -rf {} + 2>/dev/null || true
