#!/usr/bin/env bash
# A real vLLM server on the CPU with a tiny random model, and the router in front of it. Ctrl-C ends
# both. VLLM_PORT (8082), VLLM_SEATS (2) and VLLM_ARGS (more arguments of the server, such as
# "--max-num-queued-reqs 1") may be set; LIFEBOAT_* variables are the router's, as always.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=deploy/parts.sh
. deploy/parts.sh

bash deploy/install-vllm.sh

url=http://127.0.0.1:${VLLM_PORT:-8082}
seats=${VLLM_SEATS:-2}
# shellcheck disable=SC2086 # VLLM_ARGS is a list of words
begin_server vllm env VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_CPU_KVCACHE_SPACE=1 \
    VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 \
    .venv-vllm/bin/python -m vllm.entrypoints.openai.api_server \
    --model .venv-vllm/tiny --served-model-name tiny --host 127.0.0.1 --port "${url##*:}" \
    --max-num-seqs "$seats" --enforce-eager ${VLLM_ARGS:-}
echo "vLLM starts, which takes about a minute (log: $log)" >&2
await_server vLLM 'Application startup complete' 300
echo "vLLM answers at $url with $seats seats" >&2

export VLLM_URL=$url VLLM_SEATS=$seats
run_router --config deploy/vllm.yaml "$@"
