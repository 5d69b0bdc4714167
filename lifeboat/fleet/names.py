"""Model names: which pool a name means, what to take where none is given, what to list.

Names are opaque text, compared exactly (BUG-108). In this order: a name that a backend lists; an
alias of `models:`; **the one rule for `:latest`**: a name that nobody lists means the same name
with `:latest` at its end, or without it, if that is listed (BUG-106). Nothing else is folded, split
or guessed; near matches appear in messages only. Pure; rebuilt when a list changes, so that a
request pays two look-ups. Held by tests/fleet/test_names.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lifeboat.core.vocabulary import Capability
from lifeboat.fleet.known import Known
from lifeboat.settings.shapes import ModelConfig

LATEST = ":latest"


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a requested name means.

    model: names the pool. rewrite: what to put into the body in its place; None = leave it.
    """

    model: str
    rewrite: str | None = None


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """No model can be taken for granted. choices: those with the capability, maybe none."""

    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One entry of `GET /v1/models`.

    created: epoch seconds. max_model_len: the largest input any of its backends takes, None where
    nobody told. alias_of: the model it stands for. backends: those that serve it, live or not.
    """

    id: str
    created: int
    owned_by: str
    capabilities: tuple[Capability, ...]
    max_model_len: int | None
    backends: tuple[str, ...]
    alias_of: str | None = None


@dataclass(slots=True)
class _Pool:
    members: list[Known] = field(default_factory=list[Known])


class Names:
    """Every name that is known at one moment."""

    def __init__(
        self, backends: Iterable[Known] = (), models: Sequence[ModelConfig] = (), created: int = 0
    ) -> None:
        """created: epoch seconds shown for models whose server tells none."""
        self._created = created
        self._pools: dict[str, _Pool] = {}
        for known in backends:
            for model in known.models or ():
                self._pools.setdefault(model, _Pool()).members.append(known)
        self._aliases = {one.name: one.alias_of for one in models if one.alias_of is not None}
        self._defaults = tuple(one.name for one in models if one.default)
        self._exact = {model: Resolved(model) for model in self._pools}
        self._twins: dict[str, Resolved] = {}
        for model in self._pools:
            twin = model.removesuffix(LATEST) if model.endswith(LATEST) else model + LATEST
            if twin:
                self._twins[twin] = Resolved(model, model)
        self._entries: list[ModelEntry] | None = None

    def resolve(self, model: str) -> Resolved:
        """Return what a requested name means; an unknown one means itself."""
        exact = self._exact.get(model)
        if exact is not None:
            return exact
        target = self._aliases.get(model)
        if target is None:
            return self._twins.get(model) or Resolved(model)
        aimed = model if target == model else target
        twin = None if aimed in self._pools else self._twins.get(aimed)
        return twin or Resolved(aimed, aimed)

    def default_model(self, capability: Capability) -> str | Ambiguous:
        """Return the model meant where a request names none."""
        able = [model for model in self._pools if self._serves(model, capability)]
        if len(able) == 1:
            return able[0]
        marked = [self.resolve(name).model for name in self._defaults]
        for model in marked:
            if model in able or not able:
                return model
        return Ambiguous(tuple(sorted(able)))

    def members(self, model: str) -> Sequence[Known]:
        """Return the backends that serve a model, live or not."""
        pool = self._pools.get(model)
        return () if pool is None else pool.members

    @property
    def hidden_aliases(self) -> tuple[str, ...]:
        """Aliases without effect, because a backend lists a model of that name."""
        return tuple(alias for alias in self._aliases if alias in self._pools)

    def listing(self) -> list[ModelEntry]:
        """Return every name that can be asked for, by name: what backends list, and aliases.

        A model stays listed while its backends are down.
        """
        if self._entries is None:
            entries = [self._entry(model, None) for model in self._pools]
            for alias in self._aliases:
                aimed = self.resolve(alias).model
                if alias not in self._pools and aimed in self._pools:
                    entries.append(self._entry(aimed, alias))
            self._entries = sorted(entries, key=lambda entry: entry.id)
        return list(self._entries)

    def _serves(self, model: str, capability: Capability) -> bool:
        return any(capability in known.member.serves for known in self._pools[model].members)

    def _entry(self, model: str, alias: str | None) -> ModelEntry:
        members = self._pools[model].members
        served = {capability for known in members for capability in known.member.serves}
        told = [
            listed
            for known in members
            if known.listing is not None
            for listed in known.listing.models
            if listed.id == model
        ]
        lengths = [listed.max_model_len for listed in told if listed.max_model_len]
        if not lengths:
            readings = [known.reading for known in members if known.reading is not None]
            lengths = [one.max_input_tokens for one in readings if one.max_input_tokens]
        return ModelEntry(
            id=alias or model,
            created=next((one.created for one in told if one.created), self._created),
            owned_by=next((one.owned_by for one in told if one.owned_by), "lifeboat"),
            capabilities=tuple(one for one in Capability if one in served),
            max_model_len=max(lengths, default=None),
            backends=tuple(known.member.name for known in members),
            alias_of=None if alias is None else model,
        )
