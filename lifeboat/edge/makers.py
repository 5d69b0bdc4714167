"""Which backend made which id: jobs and stored responses live only where they were made.

The id is read off the first bytes of an answer as they pass; nothing is held back. Memory is
bounded: the oldest ids are forgotten. Held by tests/edge/test_makers.py.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from lifeboat.wire.answer_head import ResponseHead
from lifeboat.wire.upstream import Answer, Straight

IDS_KEPT = 100_000
"""Some 25 MB at the most; a forgotten id is a 404."""
LONGEST_ID = 256
LOOKED_AT_BYTES = 64 * 1024
"""An object's own id stands near its start; a `response.created` event may repeat instructions."""

_OBJECT_ID = re.compile(rb'"id"\s*:\s*"((?:resp|video)[A-Za-z0-9_\-.:]*|[A-Za-z0-9_\-.:]+)"')


@dataclass(frozen=True, slots=True)
class Maker:
    """Where an id lives."""

    backend: str
    model: str


class Makers:
    """The newest ids and their makers."""

    def __init__(self, most: int = IDS_KEPT) -> None:
        self._makers: OrderedDict[str, Maker] = OrderedDict()
        self._most = most

    def remember(self, object_id: str, maker: Maker) -> None:
        """Note who made an id, forgetting the oldest when there are too many."""
        self._makers[object_id] = maker
        self._makers.move_to_end(object_id)
        if len(self._makers) > self._most:
            self._makers.popitem(last=False)

    def find(self, object_id: str) -> Maker | None:
        """Return who made an id, None when nobody is known to have."""
        return self._makers.get(object_id)


class IdWatch:
    """An answer whose first id is noted as its bytes pass; afterwards it only passes them on."""

    def __init__(self, answer: Answer, found: Callable[[str], None], first: bytes = b"") -> None:
        """first: body bytes that were read before and will be relayed from elsewhere."""
        self._answer = answer
        self._found = found
        self._seen = b""
        self._looking = True
        self._look(first)

    @property
    def status(self) -> int:
        """As the answer's."""
        return self._answer.status

    @property
    def reason(self) -> bytes:
        """As the answer's."""
        return self._answer.reason

    @property
    def head(self) -> ResponseHead:
        """As the answer's."""
        return self._answer.head

    @property
    def fresh_retry(self) -> bool:
        """As the answer's."""
        return self._answer.fresh_retry

    @property
    def ended(self) -> bool:
        """As the answer's."""
        return self._answer.ended

    def when_ended(self, callback: Callable[[], None]) -> None:
        """As the answer's."""
        self._answer.when_ended(callback)

    def take_ready(self) -> bytes:
        """As the answer's, looked at."""
        piece = self._answer.take_ready()
        self._look(piece)
        return piece

    async def read(self, straight: Straight | None = None) -> bytes:
        """As the answer's, looked at."""
        piece = await self._answer.read(None if self._looking else straight)
        self._look(piece)
        return piece

    def abort(self) -> None:
        """As the answer's."""
        self._answer.abort()

    def release(self) -> None:
        """As the answer's."""
        self._answer.release()

    def _look(self, piece: bytes) -> None:
        if not self._looking:
            return
        self._seen += piece
        found = _OBJECT_ID.search(self._seen)
        if found is not None and len(found.group(1)) <= LONGEST_ID:
            self._found(found.group(1).decode("ascii"))
        if found is not None or len(self._seen) > LOOKED_AT_BYTES:
            self._looking = False
            self._seen = b""
