# A thin wrapper: every command stands in the README in plain pip and python as well.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?=
CHAPTER ?=

.PHONY: help book html test notebooks lab clean
help:
	@echo "make book       install, build the book and serve it on localhost (PORT=9000 to choose)"
	@echo "make html       install and build the book only, into _build/html"
	@echo "make test       install what the tests need and run all of them"
	@echo "make notebooks  execute the chapters again and store their outputs (CHAPTER=01 for one)"
	@echo "make lab        JupyterLab in chapters/"
	@echo "make clean      remove what was built (the environment in $(VENV) stays)"

# Each stamp is made anew when the requirements change, so that an environment never falls behind them.
$(BIN)/.reader: requirements.txt requirements-data.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps -r requirements-data.txt -e .
	@touch $@

$(BIN)/.developer: requirements-dev.txt $(BIN)/.reader
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements-dev.txt
	@touch $@

book: $(BIN)/.reader
	$(BIN)/python book/build.py --serve $(if $(PORT),--port $(PORT))

html: $(BIN)/.reader
	$(BIN)/python book/build.py

test: $(BIN)/.developer
	$(BIN)/python tests/run.py

notebooks: $(BIN)/.reader
	$(BIN)/python book/notebooks.py $(CHAPTER)

lab: $(BIN)/.reader
	cd chapters && ../$(BIN)/python -m jupyter lab

clean:
	$(PYTHON) -c "import shutil; shutil.rmtree('_build', ignore_errors=True)"
