"""How each proxy of the comparison is started, over one backend.

HAProxy comes from the system (Debian: `apt install haproxy`). The others are PyPI packages in
`.venv-peers`, which is made on first use and kept; git ignores it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.peers.processes import Server, free_port

_ROOT = Path(__file__).resolve().parents[2]
_VENV = _ROOT / ".venv-peers"
_PACKAGES = ("vllm-router", "sglang-router", "litellm[proxy]")
_STAMP = _VENV / ".bench-peers"

HAPROXY_FRAME = """\
global
  # Below the limit of descriptors, or it does not start.
  maxconn 4000
  nbthread 1
defaults
  mode http
  option abortonclose
  http-reuse always
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  timeout queue 30s
"""


@dataclass(frozen=True, slots=True)
class Contestant:
    """name: as in the table. start: (backend port, directory for files) -> a started server."""

    name: str
    start: Callable[[int, Path], Server]


def peers_bin(program: str) -> str:
    """Return the path of a program of the peers' environment, built on first use."""
    if not _STAMP.exists():
        print(f"installing {', '.join(_PACKAGES)} into {_VENV.name} (once)", flush=True)
        if not (_VENV / "bin/python").exists():
            subprocess.run([sys.executable, "-m", "venv", str(_VENV)], check=True)
        pip = [str(_VENV / "bin/python"), "-m", "pip", "install", "--quiet", *_PACKAGES]
        subprocess.run(pip, check=True)
        _STAMP.write_text("\n".join(_PACKAGES))
    return str(_VENV / "bin" / program)


def versions() -> str:
    """Return the versions of what is compared, in one line."""
    python = peers_bin("python")
    code = (
        "from importlib.metadata import version as v;"
        "print(*(f'{n} {v(n)}' for n in ('vllm-router','sglang-router','litellm')), sep=', ')"
    )
    ours = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    shown = subprocess.run([haproxy(), "-v"], capture_output=True, text=True, check=True)
    return f"HAProxy {shown.stdout.split()[2]}, {ours.stdout.strip()}"


def haproxy() -> str:
    """Return the path of HAProxy; raises RuntimeError where there is none."""
    found = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        raise RuntimeError("HAProxy is not installed (Debian: apt install haproxy)")
    return found


def start_haproxy(configuration: str, port: int, directory: Path) -> Server:
    """Start HAProxy on a configuration that listens on this port."""
    path = directory / f"haproxy-{port}.cfg"
    path.write_text(configuration)
    return Server([haproxy(), "-f", str(path)], port, directory / "haproxy.log")


def _haproxy(backend: int, directory: Path) -> Server:
    port = free_port()
    # A queue in force, as the router's: a slot for each connection of the load, and some.
    listen = f"listen lb\n  bind 127.0.0.1:{port}\n  server a 127.0.0.1:{backend} maxconn 64\n"
    return start_haproxy(HAPROXY_FRAME + listen, port, directory)


def _rust(program: str, *arguments: str) -> Callable[[int, Path], Server]:
    def start(backend: int, directory: Path) -> Server:
        port = free_port()
        command = [
            peers_bin(program), *arguments, "--host", "127.0.0.1", "--port", str(port),
            "--worker-urls", f"http://127.0.0.1:{backend}", "--policy", "round_robin",
            "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()),
            "--log-level", "error",
        ]  # fmt: skip
        return Server(command, port, directory / f"{program}.log")

    return start


def _plain(backend: int, directory: Path) -> Server:
    port = free_port()
    module = [sys.executable, "-m", "bench.peers.plain_proxy"]
    url = f"http://127.0.0.1:{backend}"
    return Server([*module, str(port), url], port, directory / "plain.log", _PATH)


def start_lifeboat(arguments: list[str], directory: Path) -> Server:
    """Start Lifeboat with these arguments of `serve`, its log at warning."""
    port = free_port()
    command = [sys.executable, "-m", "lifeboat", "serve", "--port", str(port), *arguments]
    # A directory without a backends.yaml of its own.
    empty = Path(tempfile.mkdtemp(dir=directory))
    environ = {**_PATH, "LIFEBOAT_LOG_LEVEL": "warning", "LIFEBOAT_CONFIG": ""}
    if "--config" not in arguments:
        (empty / "backends.yaml").write_text("{}\n")
        environ["LIFEBOAT_CONFIG"] = str(empty / "backends.yaml")
    return Server(command, port, directory / "lifeboat.log", environ)


def _lifeboat(backend: int, directory: Path) -> Server:
    url = f"a=vllm+http://127.0.0.1:{backend}"
    return start_lifeboat(
        ["--queue-enabled", "--default-max-concurrency", "64", "--backend", url], directory
    )


_PATH = {"PYTHONPATH": str(_ROOT)}

CONTESTANTS = (
    Contestant("HAProxy", _haproxy),
    Contestant("vllm-router", _rust("vllm-router")),
    Contestant("sglang-router", _rust("sglang-router", "launch")),
    Contestant("plain aiohttp proxy", _plain),
    Contestant("Lifeboat", _lifeboat),
)
