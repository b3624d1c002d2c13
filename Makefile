PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help quickstart test test-all lint docs format bench measures chaos experiments experiments-pfa experiments-sample experiments-retrieval clean

help:
	@echo "make quickstart   reader and retrieval on the embedded sample, ending in a report"
	@echo "make test         all tests that CI runs"
	@echo "make test-all     also the long ones"
	@echo "make lint         ruff and mypy"
	@echo "make docs         the documentation as a site, in build/docs; its links checked"
	@echo "make bench        comparisons with peers (long); DATA=folder"
	@echo "make measures     sizes of modules, cycles, and how far a reader of the code walks"
	@echo "make chaos        faults and random kills against a small run, ending in a table (an hour; interrupted, it goes on)"
	@echo "make experiments  what the objectives do on real data (hours; interrupted, it goes on); DATA=folder"
	@echo "make experiments-pfa  which alignment of PFA is best on a development set of another domain"
	@echo "make experiments-sample, make experiments-retrieval    the same on the sample; what mining does on real data"

$(VENV)/.runtime: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info < (3, 13), f"Python 3.11 or 3.12 is needed, this is {sys.version}"'
	$(PYTHON) -m venv $(VENV)
	@echo "installing what constraints.txt pins (a few minutes the first time)"
	$(PIP) -e ".[cpu]"
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(PIP) -e ".[cpu,dev]"
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) -e ".[cpu,dev,bench]"
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(PIP) -e ".[cpu,dev,docs]"
	@touch $@

quickstart: $(VENV)/.runtime
	$(BIN)/raydist run quickstart
	$(BIN)/raydist run retrieval cross_encoder.model.name=runs/quickstart/model
	$(BIN)/raydist report runs/quickstart runs/retrieval --out runs/report.html

# Two processes of one thread: the tests that share a Ray cluster, which mostly wait, and the others.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --no-loadscope-reorder

test: $(VENV)/.dev
	$(PYTEST) -m "not slow and not gpu"

test-all: $(VENV)/.dev
	$(PYTEST) -m "not gpu"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -b html -W --keep-going -n -q docs build/docs
	@echo "build/docs/index.html"

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

DATA ?= ../shared/data

experiments: $(VENV)/.runtime
	$(BIN)/python benchmarks/experiments.py real --seeds 0 1 2 data.root=$(DATA)

experiments-pfa: $(VENV)/.runtime
	$(BIN)/python benchmarks/experiments.py pfa/choice --seeds 0 1 2 data.root=$(DATA)

experiments-sample: $(VENV)/.runtime
	$(BIN)/python benchmarks/experiments.py sample --seeds 0 1 2

experiments-retrieval: $(VENV)/.runtime
	$(BIN)/python benchmarks/experiments.py retrieval --only reqa reqa_new --seeds 0 1 2 data.root=$(DATA)
	$(BIN)/python benchmarks/experiments.py retrieval --only squad_documents reqa_10k --seeds 0 data.root=$(DATA)
	test -f runs/data/scifact/queries.jsonl || $(BIN)/python benchmarks/scifact.py $(DATA)/scifact/scifact.zip runs/data/scifact
	$(BIN)/python benchmarks/experiments.py retrieval --only scifact --seeds 0 data.root=runs/data

BENCHMARKS := nbest training bm25 scoring encoding mining
OWN_BENCHMARKS := ray_overhead scaling sweep objectives dense_search

bench: $(VENV)/.bench
	@missed=; \
	for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py --data-dir $(DATA) || missed="$$missed $$name"; done; \
	for name in $(OWN_BENCHMARKS); do $(BIN)/python benchmarks/$$name.py || missed="$$missed $$name"; done; \
	test -z "$$missed" || { echo "failed, or missed a target:$$missed"; exit 1; }

measures: $(VENV)/.runtime
	$(BIN)/python benchmarks/measures.py

chaos: $(VENV)/.dev
	$(BIN)/python benchmarks/chaos.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
