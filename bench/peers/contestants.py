"""How each proxy of the comparison is started, over one backend.

HAProxy comes from the system. The others are PyPI packages in `.venv-peers`, which `make
bench-peers` builds (bench/peers/install.py); git ignores it. What is not there is told with its
remedy.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.peers.processes import Server, free_port

_ROOT = Path(__file__).resolve().parents[2]
VENV = _ROOT / ".venv-peers"
PACKAGES = ("vllm-router", "sglang-router", "litellm[proxy]")

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


class MissingPeerError(RuntimeError):
    """A program is not there; the text names it and says how to install it."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """name: as in the table. start: (backend port, directory for files) -> a started server.

    program: returns the path of what it runs; raises MissingPeerError.
    """

    name: str
    start: Callable[[int, Path], Server]
    program: Callable[[], str]


def peers_bin(program: str) -> str:
    """Return the path of a program of the peers' environment. Raises MissingPeerError."""
    path = VENV / "bin" / program
    if not path.exists():
        raise MissingPeerError(f"{program} is not in {VENV.name}: run `make bench-peers`")
    return str(path)


def haproxy() -> str:
    """Return the path of HAProxy. Raises MissingPeerError."""
    found = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        raise MissingPeerError(
            "haproxy is not installed: run `apt-get install haproxy` (Debian, Ubuntu), or install "
            "your system's package of that name"
        )
    return found


def own_python() -> str:
    """Return what our own proxies run on."""
    return sys.executable


def missing(programs: Iterable[Callable[[], str]]) -> list[str]:
    """Return what is not there, each with its remedy."""
    said: list[str] = []
    for program in programs:
        try:
            program()
        except MissingPeerError as error:
            said.append(str(error))
    return list(dict.fromkeys(said))


def versions() -> str:
    """Return the versions of the peers that are there, in one line."""
    found: list[str] = []
    with contextlib.suppress(MissingPeerError):
        shown = subprocess.run([haproxy(), "-v"], capture_output=True, text=True, check=True)
        found.append(f"HAProxy {shown.stdout.split()[2]}")
    with contextlib.suppress(MissingPeerError):
        names = [package.partition("[")[0] for package in PACKAGES]
        code = (
            "from importlib.metadata import version as v;"
            f"print(*(f'{{n}} {{v(n)}}' for n in {names}), sep=', ')"
        )
        command = [peers_bin("python"), "-c", code]
        found.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return ", ".join(found).strip()


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
    Contestant("HAProxy", _haproxy, haproxy),
    Contestant("vllm-router", _rust("vllm-router"), partial(peers_bin, "vllm-router")),
    Contestant(
        "sglang-router", _rust("sglang-router", "launch"), partial(peers_bin, "sglang-router")
    ),
    Contestant("plain aiohttp proxy", _plain, own_python),
    Contestant("Lifeboat", _lifeboat, own_python),
)
