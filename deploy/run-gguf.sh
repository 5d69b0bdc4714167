#!/usr/bin/env bash
# A real llama.cpp server with 4 slots, and the router in front of it. Ctrl-C ends both.
# GGUF_PORT (8081) and GGUF_SLOTS (4) may be set; LIFEBOAT_* variables are the router's, as always.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash deploy/install-gguf.sh

# Each child in a process group of its own: a Ctrl-C reaches this script alone, which passes it to the
# router, waits until that has drained, and only then ends the server behind it.
set -m

port=${GGUF_PORT:-8081}
slots=${GGUF_SLOTS:-4}
log=$(mktemp -t lifeboat-gguf.XXXXXX)
.venv-gguf/bin/python deploy/gguf_server.py --port "$port" --slots "$slots" >"$log" 2>&1 &
server=$!
stop() {
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    rm -f "$log"
}
trap stop EXIT

# It says so once it answers; 60 s is for a slow disk.
for _ in $(seq 300); do
    if grep -q '^listening on ' "$log"; then break; fi
    if ! kill -0 "$server" 2>/dev/null; then
        echo "the llama.cpp server did not start; it said:" >&2
        tail -n 20 "$log" >&2
        exit 1
    fi
    sleep 0.2
done
if ! grep -q '^listening on ' "$log"; then
    echo "the llama.cpp server did not answer within 60 s; it said:" >&2
    tail -n 20 "$log" >&2
    exit 1
fi
url=$(sed -n 's/^listening on //p' "$log")
echo "llama.cpp answers at $url with $slots slots (log: $log)" >&2

GGUF_URL=$url GGUF_SLOTS=$slots .venv/bin/lifeboat serve --config deploy/gguf.yaml "$@" &
router=$!
trap 'kill -INT "$router" 2>/dev/null || true' INT
trap 'kill -TERM "$router" 2>/dev/null || true' TERM
status=0
while kill -0 "$router" 2>/dev/null; do
    status=0
    wait "$router" || status=$?   # a signal ends the wait, not the router
done
exit "$status"
