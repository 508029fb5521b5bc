"""Adds `speculation_details` to the answer, or to the events, that another writer writes.

Each event has the tokens since the event before it. The last event of a choice has all of the
choice once more. Rounds are encoded as they come and kept as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence

from deployments.api.schemas.details import round_shape, token_shape
from deployments.api.schemas.logprobs import TokenNames
from deployments.api.writing.json_chunks import JsonItems, in_slices
from deployments.api.writing.writers import Writer, listed
from router.types import Delta, Finished, ShownToken, TokenOrigin

_BEFORE = b',"speculation_details":'


class _Record:
    """`ChoiceDetails` of one choice as JSON; it grows."""

    def __init__(self, index: int, names: TokenNames) -> None:
        self._index = index
        self._names = names
        self._rounds = JsonItems()
        self._tokens = JsonItems()

    async def add(self, delta: Delta) -> None:
        """Add the round that a delta brings, and the tokens that it shows."""
        details = delta.details
        if details is None:
            return
        self._rounds.append(round_shape(details.round, self._name))
        await in_slices(list(zip(delta.shown, details.origins, strict=True)), self._add_token)

    @property
    def chunks(self) -> list[bytes]:
        """The JSON text."""
        head = f'{{"index":{self._index},"rounds":['.encode()
        return [head, *self._rounds.chunks, b'],"tokens":[', *self._tokens.chunks, b"]}"]

    def _add_token(self, pair: tuple[ShownToken, TokenOrigin]) -> None:
        self._tokens.append(token_shape(*pair, self._name))

    def _name(self, token_id: int) -> str:
        return self._names.of(token_id).text


class DetailsWriter(Writer):
    """Writes what another writer does, with the details.

    Args:
        inner: writes JSON objects, which get one more member.
    """

    def __init__(self, inner: Writer) -> None:
        super().__init__(inner.head)
        self._inner = inner
        self._names = TokenNames(inner.head.tokenizer)
        choices = range(inner.head.num_choices)
        self._whole = [self._new(index) for index in choices]
        self._unsent = [self._new(index) for index in choices]  # only for a stream

    async def add(self, index: int, delta: Delta) -> None:
        """See `Writer`."""
        await self._inner.add(index, delta)
        await self._whole[index].add(delta)

    def whole(self, ends: Sequence[Finished]) -> list[bytes]:
        """See `Writer`."""
        *chunks, last = self._inner.whole(ends)
        return [*chunks, *_with(last, self._whole)]

    def opening(self) -> list[bytes]:
        """See `Writer`."""
        return self._inner.opening()

    async def delta(self, index: int, delta: Delta) -> list[bytes]:
        """See `Writer`. A round whose text is held back goes out with the next event."""
        await self._whole[index].add(delta)
        await self._unsent[index].add(delta)
        bodies = await self._inner.delta(index, delta)
        if not bodies:
            return []
        unsent, self._unsent[index] = self._unsent[index], self._new(index)
        return [*bodies[:-1], b"".join(_with(bodies[-1], [unsent]))]

    def closing(self, index: int, finished: Finished) -> list[bytes]:
        """See `Writer`."""
        *bodies, last = self._inner.closing(index, finished)
        return [*bodies, b"".join(_with(last, [self._whole[index]]))]

    def trailing(self, ends: Sequence[Finished]) -> list[bytes]:
        """See `Writer`."""
        return self._inner.trailing(ends)

    def _new(self, index: int) -> _Record:
        return _Record(index, self._names)


def _with(body: bytes, records: Sequence[_Record]) -> list[bytes]:
    """Add the member to a JSON object, in chunks."""
    return [body[:-1] + _BEFORE, *listed([record.chunks for record in records]), b"}"]
