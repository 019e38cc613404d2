#!/bin/sh
# Makes .venv, if need be, and installs antiphon into it, editable, at the tested versions.
#
#   scripts/setup_env.sh [EXTRAS]     EXTRAS: a comma-separated list, such as dev or dev,docs
#
# It uses uv where it is installed, and venv and pip where it is not. Two variables steer it:
#   PYTHON   the interpreter for a new .venv (otherwise the first 3.11 or newer that is found)
#   UV       the uv to use; empty: use venv and pip even where uv is installed
set -eu
cd "$(dirname "$0")/.."

extras=${1:-}
uv=${UV-$(command -v uv || true)}
new_enough='import sys; sys.exit(sys.version_info < (3, 11))'

fail() {
  echo "error: $1" >&2
  exit 1
}

find_python() {
  if [ -n "${PYTHON:-}" ]; then
    "$PYTHON" -c "$new_enough" 2>/dev/null || fail "PYTHON=$PYTHON is not Python 3.11 or newer"
    python=$PYTHON
    return
  fi
  # A name on the PATH may be a stub that runs nothing, so each candidate is run.
  for python in python3 python3.13 python3.12 python3.11 python; do
    if "$python" -c "$new_enough" 2>/dev/null; then
      return
    fi
  done
  fail "no Python 3.11 or newer was found; install one, or name it: make PYTHON=/path/to/python3"
}

if ! .venv/bin/python -c "$new_enough" 2>/dev/null; then
  find_python
  echo "making .venv with $("$python" -c 'import sys; print(sys.executable, sys.version.split()[0])')"
  if [ -n "$uv" ]; then
    "$uv" venv --quiet --seed --clear --python "$python" .venv
  else
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
      fail "$python can't make environments; install its venv module (Debian and Ubuntu: apt install python3-venv)"
    "$python" -m venv --clear .venv
  fi
fi

echo "installing antiphon${extras:+ with $extras} into .venv (the first time, PyTorch makes this take minutes)"
if [ -n "$uv" ]; then
  "$uv" pip install --python .venv/bin/python --constraint constraints.txt --editable ".${extras:+[$extras]}"
else
  .venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip >/dev/null
  .venv/bin/python -m pip install --disable-pip-version-check --no-input \
    --constraint constraints.txt --editable ".${extras:+[$extras]}"
fi
