"""Lets a client whose stream broke go on with it, at any router of the service.

Each event of a stream ends with an id. It says which answer this is, its seed, and how much of each
choice the client has by then. A client that comes back sends the same body, with the last id in the
header `Last-Event-ID`. A text is a function of its seed, so the text is made again from its start.
The writer is shown all of it, and the client gets only what it lacks. A checksum of the tokens
tells a text that has parted, such as one of another model. A client that has the tokens too, by
`return_token_ids`, sends them back as `resume_token_ids`. Then only the last few are made again.
"""

from __future__ import annotations

import re
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from deployments.api.sampling_terms import check_ids
from deployments.api.schemas.requests import StreamParted
from deployments.api.schemas.strict_fields import shown, wrong_field
from deployments.api.writing.writers import AnswerHead
from models.protocol.errors import InvalidRequest
from router.types import Delta

HEADER = "last-event-id"
_RESUMED_IDS = "resume_token_ids"
_PLACE = r"\d{1,9}-\d{1,9}-\d{1,9}-[0-9a-f]{1,8}"
_FORM = re.compile(rf"([\w-]{{1,64}})/(\d{{1,12}})/(\d{{1,20}})/({_PLACE}(?:,{_PLACE})*)", re.ASCII)
_MAX_CHARS = 65_536


class Place(NamedTuple):
    """A place in a choice: tokens, characters, tokens with logprobs before it; the tokens' CRC."""

    num_tokens: int = 0
    num_chars: int = 0
    num_shown: int = 0
    checksum: int = 0

    def after(self, delta: Delta) -> Place:
        """Return the place behind a delta."""
        return Place(
            self.num_tokens + len(delta.token_ids),
            self.num_chars + len(delta.text),
            self.num_shown + len(delta.shown),
            _checksum(delta.token_ids, self.checksum),
        )


@dataclass(frozen=True, slots=True)
class Begun:
    """A stream as far as its client has it.

    Attributes:
        id, created, seed: of the answer.
        places: of its choices.
    """

    id: str
    created: int
    seed: int
    places: tuple[Place, ...]

    @classmethod
    def read(cls, event_id: str) -> Begun:
        """Read what a client sent as `Last-Event-ID`.

        Raises:
            InvalidRequest: it is no id of ours.
        """
        found = _FORM.fullmatch(event_id) if len(event_id) <= _MAX_CHARS else None
        if found is None:
            raise wrong_field(
                "Last-Event-ID", f"must be the id of an event of the stream (got {shown(event_id)})"
            )
        answer_id, created, seed, listed = found.groups()
        places = []
        for one in listed.split(","):
            num_tokens, num_chars, num_shown, checksum = one.split("-")
            counts = int(num_tokens), int(num_chars), int(num_shown)
            places.append(Place(*counts, int(checksum, 16)))
        return cls(answer_id, int(created), int(seed), tuple(places))

    def __str__(self) -> str:
        """Return the id of the event that has brought the client so far."""
        places = ",".join(f"{p[0]}-{p[1]}-{p[2]}-{p[3]:x}" for p in self.places)
        return f"{self.id}/{self.created}/{self.seed}/{places}"

    def known_ids(self, sent: Sequence[Sequence[int]], vocab_size: int) -> list[tuple[int, ...]]:
        """Return the tokens of each choice that its client has, as it sends them back.

        Raises:
            InvalidRequest: they are not those of the stream.
        """
        if len(sent) > len(self.places):
            raise _wrong_ids("", f"at most {len(self.places)} lists, one for a choice", len(sent))
        known = [
            tuple(sent[index]) if index < len(sent) else () for index in range(len(self.places))
        ]
        for index, (ids, place) in enumerate(zip(known, self.places, strict=True)):
            at = f"[{index}]"
            if len(ids) != place.num_tokens:
                raise _wrong_ids(at, f"the choice's {place.num_tokens} tokens so far", len(ids))
            check_ids(_RESUMED_IDS, ids, vocab_size)
            if (found := _checksum(ids)) != place.checksum:
                due = f"the stream's tokens, with checksum {place.checksum:x}"
                raise _wrong_ids(at, due, f"{found:x}")
        return known

    def check_seed(self, seed: int | None) -> None:
        """Check that a body asks for the same answer.

        Raises:
            InvalidRequest: it names another seed.
        """
        if seed is not None and seed % 2**64 != self.seed:
            raise wrong_field(
                "seed", f"must be {self.seed}, that of the stream that goes on (got {seed})"
            )


class Marks:
    """The places of a stream's choices, and those that the client has from an earlier stream.

    Args:
        head: of the answer.
        begun: what the client has; None: nothing.

    Raises:
        InvalidRequest: the client has another number of choices than it asks for.
    """

    def __init__(self, head: AnswerHead, begun: Begun | None) -> None:
        self._head = head
        self._places = [Place()] * head.num_choices
        self._goals: Sequence[Place] = self._places.copy() if begun is None else begun.places
        if len(self._goals) != head.num_choices:
            raise wrong_field(
                "Last-Event-ID",
                f"is of a stream with {len(self._goals)} choices, but the request "
                f"asks for {head.num_choices}",
            )

    @property
    def has_begun(self) -> bool:
        """True if the client has events already."""
        return any(goal.num_tokens for goal in self._goals)

    def parts(self, index: int, delta: Delta) -> Iterator[tuple[Delta, bool]]:
        """Yield a delta of a choice, in two where the client has its beginning.

        Each comes with whether it is new to the client.

        Raises:
            StreamParted: the text is not the one that was begun.
        """
        place, goal = self._places[index], self._goals[index]
        missing = goal.num_tokens - place.num_tokens
        if missing <= 0:
            self._places[index] = place.after(delta)
            yield delta, True
            return
        if len(delta.token_ids) < missing:
            self._places[index] = place.after(delta)
            yield delta, False
            return
        old, new = _split(delta, place, goal)
        if place.after(old) != goal:
            raise _parted(goal)
        self._places[index] = goal.after(new)
        yield old, False
        if new.token_ids or new.finish_reason is not None:
            yield new, True

    def check_end(self, index: int) -> None:
        """Check at the end of a choice that it is as long as what the client has of it.

        Raises:
            StreamParted: it is shorter.
        """
        goal = self._goals[index]
        if self._places[index].num_tokens < goal.num_tokens:
            raise _parted(goal)

    def marked(self, events: bytes) -> bytes:
        """Return events, the last of them with its id."""
        head = self._head
        # A choice that is behind what the client has of it is sent nothing yet.
        sent = tuple(map(max, self._places, self._goals))
        event_id = Begun(head.id, head.created, head.seed, sent)
        return events.removesuffix(b"\n") + f"id: {event_id}\n\n".encode()


def _split(delta: Delta, place: Place, goal: Place) -> tuple[Delta, Delta]:
    """Return a delta behind `place` as one up to `goal` and the rest; both tell its round."""
    num_shown = max(0, goal.num_shown - place.num_shown)
    num_tokens = goal.num_tokens - place.num_tokens
    text = delta.text[: max(0, goal.num_chars - place.num_chars)]
    told, rest = delta.details, delta.details
    if told is not None:
        told, rest = (
            replace(told, origins=told.origins[:num_shown]),
            replace(told, origins=told.origins[num_shown:]),
        )
    old = replace(
        delta,
        text=text,
        token_ids=delta.token_ids[:num_tokens],
        shown=delta.shown[:num_shown],
        finish_reason=None,
        details=told,
    )
    new = replace(
        delta,
        text=delta.text[len(text) :],
        token_ids=delta.token_ids[num_tokens:],
        shown=delta.shown[num_shown:],
        prompt_logprobs=None,
        choice_logprobs=(),
        details=rest,
    )
    return old, new


def _checksum(ids: Sequence[int], before: int = 0) -> int:
    return zlib.crc32(array("q", ids).tobytes(), before)


def _wrong_ids(at: str, due: str, got: object) -> InvalidRequest:
    return InvalidRequest(f"{_RESUMED_IDS}{at}: must be {due} (got {got})", param=_RESUMED_IDS)


def _parted(goal: Place) -> StreamParted:
    return StreamParted(
        f"Last-Event-ID: the text that this request writes parts from the stream within its first "
        f"{goal.num_tokens} tokens; the model, its device or the request has changed, or its "
        "verification is 'rejection': ask without Last-Event-ID",
        param="Last-Event-ID",
    )
