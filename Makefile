# Set-up and work in one command each. PYTHON=... picks the interpreter; else scripts/bootstrap.py finds the best one.
# ARGS="..." is handed on: make demo ARGS="--data DIR", make test ARGS="-k lanes".
#
#   make demo     the demonstration, on real text
#   make test     ruff, mypy and pytest (without the slow tests), on every interpreter found
#   make slow     the tests marked slow
#   make check    ruff and mypy alone
#   make soak     races and what creeps, for 20 minutes and more on each interpreter
#   make bench    the benchmarks
#   make clean    take away all that these commands made

PYTHON ?=
export PYTHON

# Any Python that is new enough and runs can start the scripts; a name on PATH may be a shim for nothing.
STARTERS = $(PYTHON) python3 python3.14t python3.14 python3.13 python3.12 python3.11 /usr/bin/python3
START = for python in $(STARTERS); do \
		"$$python" -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null && exec "$$python" scripts/tasks.py $@ $(ARGS); \
	done; \
	echo "no Python runs here: install Python 3.11 or newer, or say PYTHON=/path/to/python" >&2; exit 1

.PHONY: demo test slow soak check bench clean
demo test slow soak check bench clean:
	@$(START)
