#!/usr/bin/env bash
# A real llama.cpp server with 4 slots, and the router in front of it. Ctrl-C ends both.
# GGUF_PORT (8081) and GGUF_SLOTS (4) may be set; LIFEBOAT_* variables are the router's, as always.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=deploy/parts.sh
. deploy/parts.sh

bash deploy/install-gguf.sh

slots=${GGUF_SLOTS:-4}
begin_server gguf .venv-gguf/bin/python deploy/gguf_server.py \
    --port "${GGUF_PORT:-8081}" --slots "$slots"
await_server llama.cpp '^listening on ' 60   # so long for a slow disk
url=$(sed -n 's/^listening on //p' "$log")
echo "llama.cpp answers at $url with $slots slots (log: $log)" >&2

export GGUF_URL=$url GGUF_SLOTS=$slots
run_router --config deploy/gguf.yaml "$@"
