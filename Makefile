# make demo    from raw text to a pretrained, fine-tuned, loadable encoder (4 to 9 minutes on 2 cores)
# make gpu     kernels, speed and memory on a CUDA device, into docs/gpu_results.md; system Python, no network
# make test    lint, types and the tests (10 minutes on 2 newer cores, 12 on older ones); make test-slow: the deeper ones
# make faults  the deep fault suite, whose figures go into docs/reliability.md (11 minutes on 2 newer cores, an hour on older ones)
# make release BOOKS=DIR   the model in release/, from the books' text (over three hours; resumable)
# make docs    the documentation as a site, in build/site
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Set up anew when a requirement changes: torch, with what users install, or with what tests and docs take.
TORCH := $(VENV)/.torch
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready

# Where Python is told to keep nothing of what it compiles, each program here would compile torch and transformers anew.
ifdef PYTHONDONTWRITEBYTECODE
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/bytecode
endif

.PHONY: demo test test-slow faults docs doors lint types bench gpu release clean

# --no-compile: Python compiles what it imports, a small part of all this, by itself.
$(TORCH): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "clozebert needs Python 3.10 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt torch
	touch $(TORCH)

$(INSTALLED): $(TORCH)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --use-pep517 -c constraints.txt -e '.[all]'
	touch $(INSTALLED)

$(READY): $(TORCH)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --use-pep517 -c constraints.txt -e '.[dev]'
	touch $(READY)

demo: $(INSTALLED)
	$(BIN)/clozebert demo --output_dir runs/demo --overwrite_output_dir

test: lint types
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not slow and not faults'

test-slow: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow

FIGURES := $(CURDIR)/build/faults.jsonl
faults: $(READY)
	mkdir -p build && rm -f $(FIGURES)
	CLOZEBERT_FAULT_FIGURES=$(FIGURES) $(BIN)/python -m pytest -n 2 --dist load tests/faults; status=$$?; \
	$(BIN)/python tests/faults/render.py $(FIGURES) docs/reliability.md && exit $$status

# Other people's programs on our models, their current versions from the package index: about half an hour and 10 GB.
doors: $(READY)
	$(BIN)/python tests/doors/run.py --into docs/serving.md

# NO_MKDOCS_2_WARNING: the theme's note on its successor is no news of this project.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Alone on the machine, about half an hour.
bench: $(READY)
	$(BIN)/python benchmarks/speed.py --output benchmarks/results/speed-cpu.json
	$(BIN)/python benchmarks/speed.py --render benchmarks/results/speed-cpu.json --into docs/speed.md

# BOOKS: the folder that holds the files named in release/books.tsv.
release: $(READY)
	PYTHON=$(CURDIR)/$(BIN)/python release/make.sh $(BOOKS)

# Without .venv: torch 2.11 or newer with CUDA comes from the system. In blocks of at most ten minutes.
gpu:
	$(PYTHON) benchmarks/gpu.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy does not follow an editable install, so it is shown the package under its name.
types: $(READY)
	mkdir -p $(VENV)/types
	ln -sfn ../.. $(VENV)/types/clozebert
	MYPYPATH=$(VENV)/types $(BIN)/python -m mypy

clean:
	rm -rf $(VENV) build dist runs *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
