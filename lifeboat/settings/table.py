"""The settings table: one row per setting, and nothing else knows a setting's spelling or range.

Flags, environment, file, JSON schema, `docs/reference/settings.md` and the tests read it.
Source: the contract's section 3; the probe rows are ours. Held by tests/settings/test_table.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lifeboat.core.modes import Mode
from lifeboat.core.rejections import REJECT_STATUSES
from lifeboat.settings.quantities import Duration, Integer, IntegerChoice, Number, Size
from lifeboat.settings.texts import FilePath, Host, HostPort, Key, Keys, Origins
from lifeboat.settings.values import Boolean, Choice, ModeName, ValueType


class Group(StrEnum):
    """The headings under which settings are documented, in this order."""

    LISTEN = "Listening"
    ROUTING = "Routing and the queue"
    LIMITS = "Limits"
    FAILOVER = "When a backend fails"
    ESTIMATE = "Estimates"
    MEMORY = "Bodies in memory"
    UPSTREAM = "Timeouts towards backends"
    CLIENT = "Timeouts towards clients"
    PROBES = "Probes"
    LIFECYCLE = "Start, state and shutdown"
    ACCESS = "Access"
    LOG = "Log"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row.

    name: the attribute of Settings. default: None = unset. env, yaml, flag: where it may be set;
        yaml is a path of keys. doc: one sentence. unit: of a plain number.
    secret: its value is never shown, and it has no flag, since command lines can be read.
    from_file: it may also be read from a file: env + `_FILE`, YAML key + `_file`, a flag `-file`.
    """

    name: str
    kind: ValueType
    default: object
    env: str
    yaml: tuple[str, ...] | None
    flag: str | None
    group: Group
    doc: str
    unit: str = ""
    secret: bool = False
    from_file: bool = False

    @property
    def is_boolean(self) -> bool:
        """Tell whether the flag is a pair, --x and --no-x."""
        return isinstance(self.kind, Boolean)

    @property
    def file_env(self) -> str:
        """Return the variable that names a file with the value."""
        return f"{self.env}_FILE"

    @property
    def file_yaml(self) -> tuple[str, ...]:
        """Return the YAML path that names a file with the value."""
        assert self.yaml is not None
        return (*self.yaml[:-1], f"{self.yaml[-1]}_file")

    @property
    def file_flag(self) -> str:
        """Return the flag that names a file with the value."""
        return f"--{self.name.replace('_', '-')}-file"


_WEEK_S = 604_800
"""No wait or timeout here is meant to last longer than a week: more is a slip of the unit."""

_MOST = 1_000_000
"""An upper bound for counts that no real pool reaches: more is a slip."""


def _seconds(
    name: str, default: float, env: str, yaml: str, group: Group, doc: str, *, zero: bool = False
) -> Setting:
    """Return a row for a duration; its flag follows from its YAML path."""
    kind = Duration(0, _WEEK_S, above=not zero)
    path = tuple(yaml.split("."))
    flag = "--" + "-".join(path).replace("_", "-")
    return Setting(name, kind, default, env, path, flag, group, doc, unit="s")


def _switch(name: str, default: bool, env: str, yaml: str, group: Group, doc: str) -> Setting:
    """Return a row for a boolean; its flag follows from its YAML path."""
    path = tuple(yaml.split("."))
    flag = "--" + "-".join(path).replace("_", "-")
    return Setting(name, Boolean(), default, env, path, flag, group, doc)


_LB = "LIFEBOAT_LB_"

SETTINGS: tuple[Setting, ...] = (
    # ---- listening
    Setting(
        "config", FilePath(), None, "LIFEBOAT_CONFIG", None, "--config", Group.LISTEN,
        "The configuration file; without one, `backends.yaml` in the working directory if present.",
    ),
    Setting(
        "host", Host(), "127.0.0.1", "LIFEBOAT_HOST", ("host",), "--host", Group.LISTEN,
        "The address to listen on; `0.0.0.0` is every one.",
    ),
    Setting(
        "port", Integer(0, 65535), 8400, "LIFEBOAT_PORT", ("port",), "--port", Group.LISTEN,
        "The port to listen on; 0 takes any free one.",
    ),
    Setting(
        "admin_addr", HostPort(), None, "LIFEBOAT_ADMIN_ADDR", ("admin_addr",), "--admin-addr",
        Group.LISTEN,
        "A second listener, HOST:PORT, for `/api/lb/*`, the dashboard and `/metrics`, which are "
        "then absent from the first.",
    ),
    # ---- routing and the queue
    Setting(
        "mode", ModeName(), Mode.DEFAULT, _LB + "MODE", ("mode",), "--mode", Group.ROUTING,
        "The routing mode.",
    ),
    _switch(
        "queue_enabled", False, _LB + "QUEUE_ENABLED", "queue.enabled", Group.ROUTING,
        "Whether requests park in modes other than queue-all, which always does.",
    ),
    _seconds(
        "queue_ttl_s", 30.0, _LB + "QUEUE_TTL_SEC", "queue.ttl", Group.ROUTING,
        "How long a request may be parked before it gets 504 `queue_timeout`.",
    ),
    Setting(
        "queue_depth_multiplier", Number(0, _MOST), 4, _LB + "QUEUE_MAX_DEPTH_MULTIPLIER",
        ("queue", "depth_multiplier"), "--queue-depth-multiplier", Group.ROUTING,
        "The ceiling of parked requests per pool, as a multiple of the pool's concurrency.",
    ),
    Setting(
        "queue_max_depth", Integer(0, 10 * _MOST), None, _LB + "QUEUE_MAX_DEPTH",
        ("queue", "max_depth"), "--queue-max-depth", Group.ROUTING,
        "An absolute ceiling of parked requests per pool, in every mode, in place of the multiple; "
        "0 parks nothing.", unit="requests",
    ),
    _seconds(
        "boost_s", 10.0, _LB + "QUEUE_DEADLINE_BOOST_SEC", "queue.boost", Group.ROUTING,
        "A request parked for this long goes before every fresher one.", zero=True,
    ),
    _switch(
        "early_refusal", False, _LB + "EARLY_REFUSAL", "queue.early_refusal", Group.ROUTING,
        "Whether a request that would be parked longer than its TTL, or than its "
        "`X-Lifeboat-Deadline-ms`, is refused at once; one in a hundred still parks.",
    ),
    _seconds(
        "queue_all_ttl_s", 600.0, _LB + "QUEUE_ALL_TTL_SEC", "queue_all.ttl", Group.ROUTING,
        "The TTL under queue-all.",
    ),
    Setting(
        "queue_all_depth_multiplier", Number(0, _MOST), 1000, _LB + "QUEUE_ALL_DEPTH_MULTIPLIER",
        ("queue_all", "depth_multiplier"), "--queue-all-depth-multiplier", Group.ROUTING,
        "The ceiling's multiple under queue-all.",
    ),
    # ---- limits
    Setting(
        "superfast_cap", Integer(1, _MOST), 4, _LB + "SUPERFAST_CAP", ("superfast_cap",),
        "--superfast-cap", Group.LIMITS,
        "The most requests in flight per backend in superfast mode.", unit="requests",
    ),
    Setting(
        "share", Number(0, 1, above=True), 1, _LB + "SHARE", ("share",), "--share", Group.LIMITS,
        "The share of every limit and ceiling that this process may use, e.g. 0.5 where two "
        "routers stand before the same backends.",
    ),
    Setting(
        "default_max_concurrency", Integer(1, _MOST), 32, _LB + "DEFAULT_MAX_CONCURRENCY",
        ("default_max_concurrency",), "--default-max-concurrency", Group.LIMITS,
        "max_concurrency of backends that set none.", unit="requests",
    ),
    Setting(
        "gguf_default_max_concurrency", Integer(1, _MOST), 16,
        _LB + "GGUF_DEFAULT_MAX_CONCURRENCY", ("gguf_default_max_concurrency",),
        "--gguf-default-max-concurrency", Group.LIMITS,
        "The same for gguf backends that set none and whose slots are unknown.", unit="requests",
    ),
    Setting(
        "reject_status", IntegerChoice(REJECT_STATUSES), 503, _LB + "REJECT_STATUS",
        ("reject_status",), "--reject-status", Group.LIMITS,
        "The status of the gate and queue_full refusals: some clients adapt their concurrency "
        "only on 529, and a hosted endpoint would say 429.",
    ),
    # ---- failover
    _switch(
        "redispatch", True, _LB + "REDISPATCH", "redispatch", Group.FAILOVER,
        "Whether a request whose connection was lost before its answer began is sent once more, "
        "to another backend.",
    ),
    _switch(
        "hold_when_down", False, _LB + "HOLD_WHEN_DOWN", "hold_when_down", Group.FAILOVER,
        "Whether requests park while a known model has no live backend; queue-all always does.",
    ),
    # ---- estimates
    Setting(
        "tokenizer", Choice(("cl100k_base", "o200k_base", "quick")), "cl100k_base",
        _LB + "TOKENIZER", ("estimate", "tokenizer"), "--tokenizer", Group.ESTIMATE,
        "The encoding of exact counts; `quick` is the quick figure alone, without a tokenizer.",
    ),
    Setting(
        "image_tokens", Integer(0, _MOST), 2048, _LB + "IMAGE_TOKENS",
        ("estimate", "image_tokens"), "--image-tokens", Group.ESTIMATE,
        "What one image part counts.", unit="tokens",
    ),
    Setting(
        "audio_bytes_per_token", Integer(1, _MOST), 640, _LB + "AUDIO_BYTES_PER_TOKEN",
        ("estimate", "audio_bytes_per_token"), "--audio-bytes-per-token", Group.ESTIMATE,
        "Bytes of an audio upload that count as one token.", unit="bytes",
    ),
    # ---- memory
    Setting(
        "max_body_bytes", Size(1, 1 << 40), 67_108_864, "LIFEBOAT_MAX_BODY_BYTES",
        ("max_body_bytes",), "--max-body-bytes", Group.MEMORY,
        "The largest request body.", unit="bytes",
    ),
    Setting(
        "max_parked_bytes", Size(1, 1 << 50), 1_073_741_824, _LB + "MAX_PARKED_BYTES",
        ("max_parked_bytes",), "--max-parked-bytes", Group.MEMORY,
        "Request bodies held in memory, being read, parked, or sent and not yet answered; at the "
        "bound only pools over their equal share are refused.", unit="bytes",
    ),
    # ---- upstream
    _seconds(
        "connect_timeout_s", 5.0, "LIFEBOAT_UPSTREAM_CONNECT_TIMEOUT_SEC",
        "upstream.connect_timeout", Group.UPSTREAM,
        "Longest time to connect to a backend; also per backend, as the next two.",
    ),
    _seconds(
        "first_byte_timeout_s", 1800.0, "LIFEBOAT_UPSTREAM_FIRST_BYTE_TIMEOUT_SEC",
        "upstream.first_byte_timeout", Group.UPSTREAM,
        "Longest wait for the first byte of an answer.",
    ),
    _seconds(
        "idle_timeout_s", 600.0, "LIFEBOAT_UPSTREAM_IDLE_TIMEOUT_SEC",
        "upstream.idle_timeout", Group.UPSTREAM,
        "Longest silence within an answer. There is no total timeout.",
    ),
    # ---- clients
    _seconds(
        "client_head_timeout_s", 30.0, "LIFEBOAT_CLIENT_HEAD_TIMEOUT_SEC",
        "client.head_timeout", Group.CLIENT, "Longest time for a request head to arrive.",
    ),
    _seconds(
        "client_body_timeout_s", 60.0, "LIFEBOAT_CLIENT_BODY_TIMEOUT_SEC",
        "client.body_timeout", Group.CLIENT,
        "Longest silence while a client sends its body; after this time the body must also keep "
        "240 bytes a second on average.",
    ),
    _seconds(
        "client_write_timeout_s", 60.0, "LIFEBOAT_CLIENT_WRITE_TIMEOUT_SEC",
        "client.write_timeout", Group.CLIENT,
        "Longest time in which a client takes no byte of a waiting answer; then the upstream is "
        "aborted and the slot freed.",
    ),
    _seconds(
        "client_keepalive_s", 75.0, "LIFEBOAT_CLIENT_KEEPALIVE_SEC",
        "client.keepalive", Group.CLIENT, "How long an idle connection of a client stays open.",
    ),
    # ---- probes
    _seconds(
        "probe_interval_s", 5.0, "LIFEBOAT_PROBE_INTERVAL_SEC", "probe.interval", Group.PROBES,
        "Pause between two probes of a backend that answers.",
    ),
    _seconds(
        "probe_timeout_s", 5.0, "LIFEBOAT_PROBE_TIMEOUT_SEC", "probe.timeout", Group.PROBES,
        "Longest time for a probe's answer.",
    ),
    Setting(
        "probe_failures", Integer(1, 1000), 3, "LIFEBOAT_PROBE_FAILURES",
        ("probe", "failures"), "--probe-failures", Group.PROBES,
        "Failed probes in a row that make a backend down; a refused connection does at once.",
        unit="probes",
    ),
    _seconds(
        "models_interval_s", 30.0, "LIFEBOAT_PROBE_MODELS_INTERVAL_SEC", "probe.models_interval",
        Group.PROBES, "Pause between two readings of a backend's model list.",
    ),
    _switch(
        "fast_lane", True, "LIFEBOAT_FAST_LANE", "fast_lane", Group.LISTEN,
        "Whether plain requests are served straight off the connection, which costs less CPU; "
        "all others go through aiohttp either way.",
    ),
    # ---- lifecycle
    _switch(
        "ready_needs_backend", False, "LIFEBOAT_READY_NEEDS_BACKEND", "ready_needs_backend",
        Group.LIFECYCLE, "Whether `/ready` also needs a live backend.",
    ),
    Setting(
        "state_file", FilePath(), None, "LIFEBOAT_STATE_FILE", ("state_file",), "--state-file",
        Group.LIFECYCLE, "Where registered backends are kept, so that they survive a restart.",
    ),
    _seconds(
        "shutdown_grace_s", 120.0, "LIFEBOAT_SHUTDOWN_GRACE_SEC", "shutdown.grace",
        Group.LIFECYCLE, "How long open requests may go on after SIGTERM.", zero=True,
    ),
    _switch(
        "shutdown_serve_parked", False, "LIFEBOAT_SHUTDOWN_SERVE_PARKED",
        "shutdown.serve_parked", Group.LIFECYCLE,
        "Whether parked requests are still served in that time, instead of refused.",
    ),
    # ---- access
    Setting(
        "api_keys", Keys(), (), "LIFEBOAT_API_KEYS", ("api_keys",), None, Group.ACCESS,
        "Keys for every proxied path, as `Authorization: Bearer` or `x-api-key`; unset: open. A "
        "router key is never sent upstream.", secret=True, from_file=True,
    ),
    Setting(
        "admin_token", Key(), None, "LIFEBOAT_ADMIN_TOKEN", ("admin_token",), None, Group.ACCESS,
        "Needed for every changing `/api/lb/*` call and for explain; unset: those work from "
        "loopback only.", secret=True, from_file=True,
    ),
    Setting(
        "cors_origins", Origins(), (), "LIFEBOAT_CORS_ORIGINS", ("cors_origins",),
        "--cors-origins", Group.ACCESS,
        "Web pages whose scripts may use the proxied paths and `/v1/models`; unset: what a backend "
        "says of the matter passes as it is, and a preflight is a 405.",
    ),
    # ---- log
    Setting(
        "log_format", Choice(("auto", "json", "text")), "auto", "LIFEBOAT_LOG_FORMAT",
        ("log", "format"), "--log-format", Group.LOG, "Its form; auto is text on a terminal.",
    ),
    Setting(
        "log_level", Choice(("debug", "info", "warning", "error")), "info", "LIFEBOAT_LOG_LEVEL",
        ("log", "level"), "--log-level", Group.LOG, "The least grave lines that are written.",
    ),
)  # fmt: skip
"""The rows, by group."""

TOP_LEVEL_KEYS = ("backends", "models")
"""Keys of the file that are lists of their own, not settings."""


def environment_names() -> frozenset[str]:
    """Return every variable that Lifeboat reads, `_FILE` variants included."""
    names = {row.env for row in SETTINGS}
    return frozenset(names | {row.file_env for row in SETTINGS if row.from_file})
