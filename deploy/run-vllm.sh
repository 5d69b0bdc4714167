#!/usr/bin/env bash
# A real vLLM server on the CPU with a tiny random model, and the router in front of it. Ctrl-C ends
# both. VLLM_PORT (8082), VLLM_SEATS (2) and VLLM_ARGS (more arguments of the server, such as
# "--max-num-queued-reqs 1") may be set; LIFEBOAT_* variables are the router's, as always.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash deploy/install-vllm.sh

# Each child in a process group of its own: a Ctrl-C reaches this script alone, which passes it to the
# router, waits until that has drained, and only then ends the server behind it.
set -m

port=${VLLM_PORT:-8082}
seats=${VLLM_SEATS:-2}
log=$(mktemp -t lifeboat-vllm.XXXXXX)
# shellcheck disable=SC2086 # VLLM_ARGS is a list of words
VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 \
    .venv-vllm/bin/python -m vllm.entrypoints.openai.api_server \
    --model .venv-vllm/tiny --served-model-name tiny --host 127.0.0.1 --port "$port" \
    --max-num-seqs "$seats" --enforce-eager ${VLLM_ARGS:-} >"$log" 2>&1 &
server=$!
stop() {
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    rm -f "$log"
}
trap stop EXIT

echo "vLLM starts, which takes about a minute (log: $log)" >&2
for _ in $(seq 600); do
    if grep -q 'Application startup complete' "$log"; then break; fi
    if ! kill -0 "$server" 2>/dev/null; then
        echo "the vLLM server did not start; it said:" >&2
        tail -n 20 "$log" >&2
        exit 1
    fi
    sleep 0.5
done
if ! grep -q 'Application startup complete' "$log"; then
    echo "the vLLM server did not answer within 300 s; it said:" >&2
    tail -n 20 "$log" >&2
    exit 1
fi
echo "vLLM answers at http://127.0.0.1:$port with $seats seats" >&2

VLLM_URL=http://127.0.0.1:$port VLLM_SEATS=$seats \
    .venv/bin/lifeboat serve --config deploy/vllm.yaml "$@" &
router=$!
trap 'kill -INT "$router" 2>/dev/null || true' INT
trap 'kill -TERM "$router" 2>/dev/null || true' TERM
status=0
while kill -0 "$router" 2>/dev/null; do
    status=0
    wait "$router" || status=$?   # a signal ends the wait, not the router
done
exit "$status"
