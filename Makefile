# Two commands set up everything on a fresh machine: `make demo` and `make test`.
# PYTHON: 3.11 or 3.12 for the bundled job (its wheels exist for these); diag itself runs on 3.10-3.13.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
# Five suites, three workers each: without their bytecode pytest rewrites 800 modules of tests fifteen times (four minutes).
export PYTHONDONTWRITEBYTECODE :=
PYTEST := $(BIN)/python -m pytest
WORKERS ?= 2
CLUSTER ?= tests/cluster

.PHONY: accuracy help demo test test-faces test-hardening fuzz harm properties soak audit test-vm vm-packages test-cluster cluster-packages dashboards screenshots docs docs-serve matrix gauntlet forecast bench mutants goldens lint types check system-packages package onefile clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 18

# pip's own cache makes a second environment quick. torch comes first and pinned: the newest drags CUDA packages along.
$(VENV)/.diag: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@

$(VENV)/.job: $(VENV)/.diag requirements/job.txt
	$(BIN)/python -m pip install --quiet -r requirements/job.txt
	@touch $@

# Prometheus and Alertmanager are what the live tests scrape and route with; ip and nft make the two machines of the preflight
# tests; the page is looked at in Chromium, diag top in tmux. What is there is left alone. A mirror may refuse for a while: each
# try waits longer. Without root the tests say that they were skipped, and why.
system-packages:
	@missing=""; PATH="$$PATH:/usr/sbin:/sbin"; \
	for tool in prometheus:prometheus amtool:prometheus-alertmanager gcc:gcc nft:nftables ip:iproute2 tmux:tmux rg:ripgrep \
	  chromium:chromium; do \
	  command -v "$${tool%%:*}" >/dev/null 2>&1 || missing="$$missing $${tool#*:}"; done; \
	case "$$missing" in *gcc*) missing="$$missing libc6-dev";; esac; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	  for pause in 5 20 60 0; do \
	    if apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	    then break; elif [ $$pause = 0 ]; then echo "note: apt-get has no$$missing: tests that use them will be skipped"; \
	    else sleep $$pause; fi; done; \
	else echo "note: not installed (needs root and apt-get):$$missing: live tests that use them will be skipped"; fi

# CASE=oom, ib or nan: on recorded evidence, which needs neither the job's packages nor a minute.
demo: $(VENV)/$(if $(filter-out hang,$(CASE)),.diag,.job) ## the real megatron rlhf job hangs, diag says which rank and why; CASE=oom|ib|nan: other troubles, recorded
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m diag_job.demo $(CASE)

test: $(VENV)/.job system-packages lint types ## all but the suites below, which have targets of their own; under 15 minutes on 2 cores
	$(PYTEST) -m "not matrix and not vm and not cluster and not faces and not hardening" --doctest-modules diag diag_job tests -n $(WORKERS) --dist loadgroup

test-faces: $(VENV)/.job system-packages ## the page in Chromium, diag top, the terminal, documentation and its commands (some 6 minutes)
	$(PYTEST) -m faces tests -n $(WORKERS) --dist loadgroup

test-hardening: $(VENV)/.job system-packages ## what is done to diag itself, in short: faults, hostile input, secrets, a soak (some 12 minutes)
	$(PYTEST) -m hardening tests -n $(WORKERS) --dist loadgroup

properties: $(VENV)/.job ## the tests that draw their examples, with new ones in each run: every submission tries the same
	EXAMPLES=new $(PYTEST) $$(grep -rl --include='test_*.py' '@given' tests) -n $(WORKERS) --dist loadgroup

# The kernel and its Debian go into build/ only. Without root the tests say that they were skipped, and why.
vm-packages:
	@command -v qemu-system-x86_64 >/dev/null 2>&1 && command -v debootstrap >/dev/null 2>&1 && command -v cpio >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	      qemu-system-x86 debootstrap cpio >/dev/null; \
	  else echo "note: qemu-system-x86, debootstrap and cpio are not installed (needs root and apt-get)"; fi; }

# faketime gives a node another clock; Slurm is Debian's, and the tests start daemons of their own; node's modules go into build/
# only. What is there is left alone.
cluster-packages: $(VENV)/.diag system-packages
	@$(BIN)/python -m pip install --quiet -r requirements/cluster.txt
	@if command -v npm >/dev/null 2>&1; then \
	  npm install --silent --no-audit --no-fund --prefix build/npm @kubernetes-models/prometheus-operator@6 2>/dev/null || true; \
	else echo "note: npm is not installed: PodMonitor and PrometheusRule will not be checked"; fi
	@command -v kubectl >/dev/null 2>&1 || echo "note: kubectl is not installed: tests of deploy/kubernetes will be skipped"
	@missing=""; PATH="$$PATH:/usr/sbin:/sbin"; \
	for tool in ip:iproute2 nft:nftables nsenter:util-linux faketime:faketime slurmd:slurmd slurmctld:slurmctld \
	  sbatch:slurm-client munged:munge mpirun:openmpi-bin mpiexec.hydra:mpich podman:podman runc:runc catatonit:catatonit \
	  debootstrap:debootstrap; do \
	  command -v "$${tool%%:*}" >/dev/null 2>&1 || missing="$$missing $${tool#*:}"; done; \
	case "$$missing" in *gcc*) missing="$$missing libc6-dev";; esac; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	else echo "note: not installed (needs root and apt-get):$$missing: cluster tests that use them will be skipped"; fi

# CLUSTER=tests/cluster/slurm runs a part of it.
test-cluster: $(VENV)/.job cluster-packages ## several nodes on one machine, and what a thousand of them cost (under 20 minutes)
	$(PYTEST) -m cluster $(CLUSTER) -n $(WORKERS) --dist loadgroup

test-vm: $(VENV)/.diag vm-packages ## RDMA (soft-RoCE) and memory troubles (cgroup v2) in a virtual machine (some 8 minutes, the first time 10)
	$(PYTEST) -m vm tests/vm -s

dashboards: cluster-packages ## write dashboards/*.json (and zh/) anew, and draw their panels over recorded jobs
	$(BIN)/python -m tests.dashboards.build
	$(BIN)/python -m tests.dashboards.draw

screenshots: $(VENV)/.diag system-packages ## take the pictures of the page in docs/images anew, by the browser tests
	PICTURES=1 $(PYTEST) tests/browser/test_pictures.py

# MkDocs 1 and mkdocs-material 9 are pinned by range in pyproject.toml; the variable silences their word about successors.
docs: $(VENV)/.diag ## build the documentation into build/site, strict: a broken link or a page outside of nav fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: $(VENV)/.diag ## the same on http://127.0.0.1:8000, anew at each change
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --strict

# MATRIX="sigstop or healthy" runs a part of it.
matrix: $(VENV)/.job ## every fault on the bundled job with default settings, as a table (about 20 minutes)
	$(PYTEST) -m matrix tests/matrix tests/job -n $(WORKERS) $(if $(MATRIX),-k "$(MATRIX)")

# Longer runs of what `make test-hardening` does in short; each writes its table or pictures into build/.
# Goes on where it was cut off; rm build/harm.jsonl begins anew.
harm: $(VENV)/.job ## hundreds of faults done to diag itself at random moments of a job, by seed, as a table
	@mkdir -p build
	$(BIN)/python -m tests.labs.harm --workers $(WORKERS) --seeds 20 --results build/harm.jsonl --resume --keep build/harm

fuzz: $(VENV)/.diag ## hostile input for every reader, and for the HTTP API, for half an hour
	$(BIN)/python -m tests.labs.fuzz --seconds 1800

soak: $(VENV)/.diag ## an hour of a busy simulated node, and a day on a told clock: memory, files, threads, disk
	$(BIN)/python -m tests.labs.soak

audit: $(VENV)/.diag ## known faults of the packages that diag needs (asks a public database)
	$(BIN)/python -m tests.security.audit

# Goes on where it was cut off; rm build/gauntlet.jsonl begins anew. NVRX: a folder with nvidia_resiliency_ext (docs/gauntlet.md).
gauntlet: $(VENV)/.job ## faults x seeds on the bundled job, beside what torchfrtrace (and NVRX=DIR) say of the same hangs (over an hour)
	$(BIN)/python -m tests.labs.gauntlet --workers $(WORKERS) --resume $(if $(NVRX),--nvrx $(NVRX))

# Seeds 1-20, saves that fit and that do not; goes on where it was cut off: rm build/forecast.jsonl begins anew. Needs root.
forecast: $(VENV)/.job ## saves that will not fit into a real memory cgroup: how many diag tells in time (20 minutes)
	$(BIN)/python -m tests.labs.forecast --workers $(WORKERS) --resume

# Needs a network: the logs are other people's, and only pointers to them are kept.
accuracy: $(VENV)/.diag ## what diag names in public logs, against what readers saw in them, whole and in the pieces that people paste (10 minutes)
	mkdir -p build/public_logs
	for batch in 1 2 3; do $(BIN)/python -m tests.labs.public_logs --batch $$batch; $(BIN)/python -m tests.labs.public_logs.windows --batch $$batch; done

bench: $(VENV)/.job system-packages ## what diag costs and how quick it is, beside what people use instead; appends to docs/benchmarks.md (20 minutes)
	$(BIN)/python -m tests.labs.bench

# The same 150 each time, by the seed; goes on where it was cut off: rm build/mutants.jsonl begins anew.
mutants: $(VENV)/.diag ## small changes to the code that judges hangs: a test has to fail for each (a quarter of an hour)
	@$(BIN)/python -m pip install --quiet 'cosmic-ray>=8.7,<9'
	@mkdir -p build
	$(BIN)/python -m tests.labs.mutation --workers $(WORKERS)

goldens: $(VENV)/.diag ## write anew what is kept of every capture (tests/goldens), and print what changed (half a minute)
	$(BIN)/python -m tests.goldens

lint: $(VENV)/.diag ## ruff: rules, complexity, format
	$(BIN)/ruff check diag diag_job tests docs
	$(BIN)/ruff format --check --quiet diag diag_job tests docs

types: $(VENV)/.diag ## mypy --strict
	$(BIN)/mypy

check: lint types

package: $(VENV)/.diag ## wheel and sdist in dist/, checked as the index does
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*.whl dist/*.tar.gz

onefile: package ## dist/diag.pyz: diag and all that it needs in one file, for machines that have only Python (4 minutes)
	$(BIN)/python deploy/onefile/build.py dist/diag-*.whl

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
