# What to do with Tatami's sources. `make` alone lists it.
# Everything that is missing is installed from Debian and crates.io.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help quickstart quickstart-cluster quickstart-remote check test test-libraries test-upgrade fuzz soak bench predict bench-hosts bench-remote bench-mpi lint install deb tools packages fmt

# The compiler is pinned (rust-toolchain.toml). Where rustup has not got it yet, it is fetched; where
# it cannot be fetched, the default compiler does, and a word says so.
ifneq ($(shell command -v rustup),)
ifeq ($(shell rustc --version 2>/dev/null),)
$(shell rustup toolchain install >&2 2>/dev/null)
ifeq ($(shell rustc --version 2>/dev/null),)
$(warning the pinned compiler cannot be had; using the default one)
export RUSTUP_TOOLCHAIN := $(firstword $(shell rustup toolchain list))
endif
endif
endif

PREFIX ?= /usr/local
# How much more than `make test` the long forms do.
SCALE ?= 20
TOOLS := target/tools/bin

help: ## list what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' Makefile

quickstart: ## start four nodes on this machine, run LAMMPS and PnetCDF on them
	@scripts/quickstart.sh

quickstart-cluster: ## the same on four hosts of namespaces, by ssh and under Slurm; as root
	@scripts/quickstart-cluster.sh

quickstart-remote: ## programs of Open MPI and MPICH on one host write files on another, by ssh; as root
	@scripts/quickstart-remote.sh

check: ## format, clippy and unit tests: no root, no packages, two minutes when built
	@scripts/check.sh

test: packages tools ## format, clippy, unit, property and end-to-end tests
	@scripts/test.sh

test-libraries: packages ## tests of PnetCDF, HDF5, netCDF-C, mpi4py, h5py, MPICH and ROMIO, natively and through the MPI-IO layer
	@scripts/test-libraries.sh

test-upgrade: packages ## an upgrade one daemon after the other from the release before, which is built from the history
	@scripts/test-upgrade.sh

fuzz: ## inputs that nobody thought of, for every decoder, SECONDS_EACH (60) seconds each
	@scripts/fuzz.sh

sanitize: packages ## the tests of the crates with `unsafe` blocks, and of MPI datatypes, with AddressSanitizer
	@scripts/sanitize.sh

mutants: packages $(TOOLS)/cargo-mutants target/tools/python/bin/mutate ## faults planted in transactions, layouts and datatypes: do the tests find them?
	@scripts/mutants.sh

soak: packages tools lint ## the end-to-end tests, SCALE (20) times as much of each, and all of the above
	@TATAMI_TEST_SCALE=$(SCALE) scripts/test.sh
	@scripts/fuzz.sh
	@scripts/test-libraries.sh
	@scripts/test-upgrade.sh
	@$(MAKE) --silent sanitize mutants

bench: packages $(TOOLS)/fsstress ## measure Tatami and the plain disk side by side
	@scripts/packages.sh bench
	cargo build --quiet --locked --release --bin tatami --bin tatami-bench
	cargo build --quiet --locked --release -p tatami-preload
	PATH=$(CURDIR)/$(TOOLS):$$PATH target/release/tatami bench suite

predict: packages ## predict the rates of up to 1,024 servers from what things take here
	cargo build --quiet --locked --release --bin tatami --bin tatami-bench
	target/release/tatami bench predict

bench-mpi: ## measure shared files of MPI programs, with the layer and without
	@scripts/packages.sh build mpi
	cargo build --quiet --locked --release -p tatami-cli -p tatami-bench -p tatami-capi
	$(MAKE) --silent -C mpi IO=../target/release BUILD=../target/release/mpi
	$(MAKE) --silent -C mpi-bench
	target/release/tatami bench mpi

bench-hosts: ## measure a volume on 4 and on 16 hosts of namespaces: start, stop, bytes and names
	@scripts/packages.sh build hosts
	cargo build --quiet --locked --release --bin tatami --bin measure-hosts
	cargo build --quiet --locked --release -p tatami-preload
	TATAMI_BIN=target/release/tatami target/release/measure-hosts

bench-remote: ## measure files on another site: two hosts of namespaces, beside TCP, scp and sshfs
	@scripts/packages.sh build mpi hosts sites
	cargo build --quiet --locked --release -p tatami-cli -p tatami-capi -p tatami-preload
	cargo build --quiet --locked --release -p tatami-tests --bin measure-remote
	$(MAKE) --silent -C mpi IO=../target/release BUILD=../target/release/mpi
	mpicc.openmpi -O2 mpi-bench/remote.c -lpnetcdf -o target/release/remote_bench
	TATAMI_BIN=target/release/tatami target/release/measure-remote

lint: packages $(TOOLS)/cargo-deny ## format, clippy, licences and origin of dependencies
	@scripts/lint.sh
	$(TOOLS)/cargo-deny --log-level error check licenses bans sources

install: ## build and install tatami, its man page and completions below PREFIX (/usr/local)
	@scripts/install.sh $(PREFIX)

deb: ## build the Debian packages tatami, tatami-mpi and those of their symbols into target/deb
	@scripts/packages.sh build mpi deb
	@scripts/deb.sh

packages:
	@scripts/packages.sh build test

tools: $(TOOLS)/pjdfstest $(TOOLS)/fsx $(TOOLS)/fsstress

# Versions are fixed: a test that becomes stricter by itself tells nothing.
# Built without optimisation: they spend their time in the kernel.
$(TOOLS)/pjdfstest: CRATE := pjdfstest@0.2.2
$(TOOLS)/fsx: CRATE := fsx@0.3.2
$(TOOLS)/cargo-deny: CRATE := cargo-deny@0.20.2
$(TOOLS)/cargo-mutants: CRATE := cargo-mutants@27.1.0
$(TOOLS)/%:
	CARGO_TARGET_DIR=target/tools/build cargo install --quiet --debug --locked --root target/tools $(CRATE)

# Without Debian's source packages its test is skipped.
$(TOOLS)/fsstress:
	@scripts/fsstress.sh $@ || echo "fsstress: its source package cannot be fetched" >&2

# For faults in C.
target/tools/python/bin/mutate:
	python3 -m venv target/tools/python
	target/tools/python/bin/pip install --quiet universalmutator==1.14.1
