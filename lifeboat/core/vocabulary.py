"""The words every ring of the house shares: small frozen facts and closed sets of names.

One word per thing, as in the outside contract: backend, pool, slot, lease, ticket, park, grant,
withdraw, in-flight, max concurrency, effective limit, ceiling, TTL, boost, drain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Capability(StrEnum):
    """What a backend can do for a model; an endpoint asks for exactly one."""

    GENERATE = "generate"
    EMBED = "embed"
    RERANK = "rerank"
    TRANSCRIBE = "transcribe"
    SPEECH = "speech"
    IMAGE = "image"
    VIDEO = "video"


class Kind(StrEnum):
    """What software a backend runs: decides probes, engine readings and defaults."""

    SIMULATED = "simulated"
    GGUF = "gguf"
    VLLM = "vllm"
    OPENAI = "openai"


class OperatorState(StrEnum):
    """What the operator wants of a backend, whatever its health."""

    READY = "ready"
    DRAIN = "drain"
    MAINT = "maint"


class Health(StrEnum):
    """What probes and requests say of a backend.

    `starting` (nothing known yet) and `suspect` (three failures without a success between) both
    count as live; `loading` and `down` do not.
    """

    STARTING = "starting"
    LOADING = "loading"
    UP = "up"
    SUSPECT = "suspect"
    DOWN = "down"


class Priority(StrEnum):
    """The class a client asks for with `X-Lifeboat-Priority`; `rank` is its place in the order."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def rank(self) -> int:
        """0 for high, 1 for normal, 2 for low: smaller goes first."""
        return _PRIORITY_RANKS[self]


_PRIORITY_RANKS = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}


class EstimateMethod(StrEnum):
    """Which stage produced an estimate: the answer to "why this figure?" in `explain`."""

    QUICK = "quick"
    """The linear, script-aware figure."""
    TOKENIZER = "tokenizer"
    """Counted by the configured encoding (possibly stopped early, above the largest cap)."""
    ENGINE = "engine"
    """Counted by a backend's own tokenizer, exact (`exact_border`)."""
    IDS = "ids"
    """Pre-tokenised input: one token an id, exact."""
    BYTES = "bytes"
    """An upload sized by its bytes."""
    NONE = "none"
    """Nothing to size: the request carries no input."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The size of a request in tokens.

    tokens: the longest sequence of the request: what an input cap must cover.
    total_tokens: the sum over a batch: what the smallest-first order compares.
    error: relative error of `tokens` against the tokenizer (0.0 when exact): the true figure is
        taken to lie within tokens * (1 +/- error).
    method: the stage that decided.
    """

    tokens: int
    total_tokens: int
    method: EstimateMethod = EstimateMethod.QUICK
    error: float = 0.0


UNKNOWN_POOL = "unknown"
"""The pool that requests for names nobody serves are counted under, so that a client cannot make
series or pools."""

NO_TOKENS = Estimate(0, 0, EstimateMethod.NONE)
"""The estimate of a request without input."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request wants of the gate.

    model: the model name after aliases were resolved; it names the pool.
    capability: what the endpoint needs.
    estimate: its size.
    priority: its class.
    body_bytes: bytes of its body held while it is parked (for the report; the ledger counts them).
    gated: False for proxied paths that do no inference and take no slot.
    backend: the one backend that may serve it (the maker of a job's id); None = any that fits.
    patience_s: how long its client waits for a slot, None where it did not say.
    """

    model: str
    capability: Capability
    estimate: Estimate = NO_TOKENS
    priority: Priority = Priority.NORMAL
    body_bytes: int = 0
    gated: bool = True
    backend: str | None = None
    patience_s: float | None = None


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """One model server as configured or registered: what the gate needs to know of it.

    max_concurrency: None where nothing is configured (a default applies); 0 disables the gate.
    max_input_tokens: 0 = no cap; an estimate equal to the cap fits.
    models: None until the backend has listed its models (only possible where none are configured).
    adaptive: whether its limit is learned below max_concurrency; None = as its pools say.
    server: the url of its server in one spelling, so that two names of one server are known as
        such; "" = not told, shared with nobody.
    """

    name: str
    kind: Kind
    serves: frozenset[Capability]
    models: frozenset[str] | None
    max_concurrency: int | None = None
    max_input_tokens: int = 0
    adaptive: bool | None = None
    server: str = ""


class Verdict(StrEnum):
    """How a lease ended: the closed set that health, saturation and counters understand."""

    ANSWERED = "answered"
    """A complete answer below 500 (4xx included: neither failure nor proof of health)."""
    SERVER_ERROR = "server_error"
    """A complete answer of 500 or above that was no overload: counts against health."""
    SATURATED = "saturated"
    """529 and its kin: no room in the engine; never a health failure."""
    LOADING = "loading"
    """503 while the server loads its model."""
    THROTTLED = "throttled"
    """429 earned by the backend's own configured key, with Retry-After: closed until then."""
    REFUSED = "refused"
    """Connection refused: down at once."""
    UNREACHABLE = "unreachable"
    """Could not connect in time, name not resolved, TLS failed: no byte was sent."""
    RESET = "reset"
    """The connection broke after the request was sent, before or within the answer."""
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    """No response head in time."""
    IDLE_TIMEOUT = "idle_timeout"
    """The answer went silent for too long."""
    CLIENT_GONE = "client_gone"
    """The client left or took no bytes for too long: says nothing about the backend."""
    ABANDONED = "abandoned"
    """We ended it ourselves (shutdown, or a fault of ours): says nothing about the backend."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a lease.

    status: the backend's HTTP status, None when no head arrived.
    retry_after_s: what the backend asked for, None when it asked for nothing.
    first_token_s: seconds from sending the request to the first byte of a streamed answer, None
        where that says nothing about the first token.
    """

    verdict: Verdict
    status: int | None = None
    retry_after_s: float | None = None
    first_token_s: float | None = None


class Reason(StrEnum):
    """Why Lifeboat itself refuses: one value per row of the rejection table.

    `GATE` is the row without a wire reason; it is spelled `gate` in metrics and state.
    """

    GATE = "gate"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    REQUEST_TOO_LARGE = "request_too_large"
    NO_BACKENDS = "no_backends"
    EMBEDDING_ONLY_POOL = "embedding_only_pool"
    NO_EMBEDDING_BACKEND = "no_embedding_backend"
    NO_DIFFUSION_BACKEND = "no_diffusion_backend"
    NO_RERANK_BACKEND = "no_rerank_backend"
    NO_AUDIO_BACKEND = "no_audio_backend"
    INVALID_REQUEST = "invalid_request"
    BODY_TOO_LARGE = "body_too_large"
    RATE_LIMITED = "rate_limited"
    UNAUTHORIZED = "unauthorized"
    SHUTTING_DOWN = "shutting_down"
    BACKEND_UNREACHABLE = "backend_unreachable"
    BACKEND_TIMEOUT = "backend_timeout"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A decision not to serve, with the facts its message names.

    message: the finished sentence: the limit, its value, and the knob that changes it.
    pool: the pool it is counted under; None before a pool is known.
    temporary: the same request may succeed later without anybody changing it (only `no_backends`
        may be either).
    effective_limits: per candidate backend, None = ungated, 0 = closed.
    wait_s: how long the request was parked in all.
    retry_after_s: from the pool's measured drain rate; None where it would be a guess.
    estimated_wait_s: how long one more request would be parked, by the same rate; only where one
        was to be. predicted: refused early, for that wait.
    advice: what to do, where that of the table is about something else; None = the table's.
    """

    reason: Reason
    message: str
    pool: str | None = None
    temporary: bool = False
    effective_limits: dict[str, int | None] = field(default_factory=dict[str, "int | None"])
    queue_depth: int | None = None
    queue_limit: int | None = None
    wait_s: float = 0.0
    retry_after_s: float | None = None
    estimated_wait_s: float | None = None
    predicted: bool = False
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class EngineReading:
    """What a model server last said of itself, read-only; None where it tells nothing.

    running, waiting: requests inside the engine, ours and others'. slots: parallel sequences it
    can run. max_input_tokens: the engine's own cap (context per slot, or max_model_len).
    read_at: clock seconds of the reading, so that its age can be shown.
    """

    running: int | None = None
    waiting: int | None = None
    slots: int | None = None
    max_input_tokens: int | None = None
    read_at: float = 0.0
