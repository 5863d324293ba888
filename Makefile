# make tables | figures | smoke | test | docs | site | lint: each makes the environment .venv first where it is missing or out of date.
PYTHON ?= python3
CORES ?= 2
# MB that the jobs running at one time may have declared together
MEMORY ?= 8192
BIN := .venv/bin
# For the long targets; profiles/default says why
JOB_RATE := --max-jobs-per-timespan 100/20s
# A first result to read while the rest is made
FIRST := --prioritize results/tables/first_checkpoint.csv

.PHONY: tables figures smoke test docs site quoted quoted-update lint
tables: .venv/ready
	$(BIN)/snakemake --cores $(CORES) --resources mem_mb=$(MEMORY) $(JOB_RATE) $(FIRST) -- all_tables

figures: .venv/ready
	$(BIN)/snakemake --cores $(CORES) --resources mem_mb=$(MEMORY) $(JOB_RATE) -- all_figures

smoke: .venv/ready
	$(BIN)/snakemake --cores $(CORES) --resources mem_mb=$(MEMORY) -- smoke

test: .venv/ready
	THP_MEM_ALLOC_ENABLE=1 OMP_WAIT_POLICY=PASSIVE OPENBLAS_THREAD_TIMEOUT=4 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

docs: .venv/ready
	PYTHONPATH=workflow $(BIN)/python -m normgauge.schemas > docs/data.md

# build/site/index.html: tutorials and notebooks are run first; mkdocs has an environment of its own
site: .venv/ready .venv-site/ready
	rm -rf build/pages
	$(BIN)/python docs/tools/reference.py build/pages
	$(BIN)/python docs/tools/notebooks.py build/pages
	NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --strict

.venv-site/ready: envs/site.txt
	test -x .venv-site/bin/python || $(PYTHON) -m venv .venv-site
	.venv-site/bin/python -m pip install --quiet --no-deps --requirement envs/site.txt
	touch $@

# Figures in README.md and docs/ against the tables of the last run, and the same written into the text
quoted: .venv/ready
	PYTHONPATH=workflow $(BIN)/python -m normgauge.render.quoted

quoted-update: .venv/ready
	PYTHONPATH=workflow $(BIN)/python -m normgauge.render.quoted --update

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow/rules
	$(BIN)/mypy
	$(BIN)/snakemake --lint

# The command `normgauge` runs this folder's code
.venv/ready: envs/requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --requirement envs/requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@
