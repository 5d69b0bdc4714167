#!/usr/bin/env bash
# Installs a real vLLM server that runs on the CPU into .venv-vllm (2.5 GB), and makes a tiny model.
# Its torch is the CPU build: where pip's index has none, name one that has in PIP_EXTRA_INDEX_URL.
# The lock holds all that a text model needs, and neither vision nor audio.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=deploy/parts.sh
. deploy/parts.sh

install_locked vllm "a vLLM server for the CPU (this takes minutes)"
if [ ! -e .venv-vllm/tiny/model.safetensors ]; then
    .venv-vllm/bin/python deploy/tiny_model.py .venv-vllm/tiny >/dev/null 2>&1
fi
