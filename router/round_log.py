"""Tells a session's rounds one by one, for a client that asks for them; off it does nothing.

A round goes out with the delta that it brings. The sources of its tokens wait, like their logprobs,
until their text is shown. Text that may begin a stop string is held back.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Literal

from models.protocol.messages import Inspection, Verdict
from models.protocol.parts import DraftTest
from router.rounds import HEADS, Round, Segment
from router.stats import RoundStats, TimeSplit
from router.stops import StopResult
from router.types import DeltaDetails, DraftedSegment, Explanation, RoundDetails, TokenOrigin

TARGET = "target"  # where a token that nobody drafted comes from


class RoundLog:
    """The rounds of one session.

    Args:
        stats: where the time of the session is measured; None: nobody wants to know.
    """

    def __init__(self, stats: RoundStats | None = None) -> None:
        self._stats = stats
        self._num_rounds = 0
        self._past = TimeSplit()  # the time of the rounds before
        self._waiting: deque[TokenOrigin] = deque()  # origins of tokens that are not shown yet

    @property
    def is_on(self) -> bool:
        """True if somebody wants to know."""
        return self._stats is not None

    def of(self, asked: Round, verdict: Verdict, taken: StopResult) -> DeltaDetails | None:
        """Return the details for the delta of a verdict, of whose tokens `taken` were taken."""
        if self._stats is None:
            return None
        number, self._num_rounds = self._num_rounds, self._num_rounds + 1
        now = self._stats.time()
        past, self._past = self._past, now
        segments = asked.segments if verdict.part == 0 else ()
        num_accepted = verdict.num_accepted
        if verdict.num_own_drafted:
            segments = (Segment(HEADS, verdict.num_own_drafted),)
            num_accepted = len(verdict.own)
        counted = tuple(_counted(segments, num_accepted))
        sources = [segment.drafter for segment in counted for _ in range(segment.num_accepted)]
        sources += [TARGET] * (1 + num_accepted - len(sources))  # more where it drew a whole text
        seen = verdict.inspection or Inspection()
        allowed = chain(seen.num_allowed, repeat(None))
        self._waiting.extend(
            TokenOrigin(source, number, num)
            for source, num in zip(sources[: taken.num_tokens], allowed, strict=False)
        )
        return DeltaDetails(
            RoundDetails(
                number=number,
                why=_why(asked) if verdict.part == 0 else None,
                segments=counted,
                rejected_ids=tuple(_rejected(segments, asked.draft, verdict.num_accepted)),
                last=_last(sum(each.num_tokens for each in counted), num_accepted),
                num_tokens=taken.num_tokens,
                time=_difference(now, past),
                tests=tuple(_named(seen.tests, segments)),
            ),
            tuple(self._waiting.popleft() for _ in taken.offsets),
        )


def _why(asked: Round) -> Explanation | None:
    """Return the explanation of the plan that counts; it is another one if no draft came."""
    if asked.why is None:
        return None
    plan = asked.plan
    return dataclasses.replace(
        asked.why, num_draft_tokens=plan.num_draft_tokens, reason=plan.reason
    )


def _counted(segments: Sequence[Segment], num_accepted: int) -> Iterator[DraftedSegment]:
    for segment in segments:
        num_right = min(segment.num_tokens, num_accepted)
        yield DraftedSegment(segment.drafter.name, segment.num_tokens, num_right)
        num_accepted -= num_right


def _rejected(
    segments: Sequence[Segment], draft: Sequence[int], num_accepted: int
) -> Iterator[int]:
    """Tokens behind the accepted ones that a drafter with steps of its own has drafted."""
    start = 0
    for segment in segments:
        end = start + segment.num_tokens
        if not segment.drafter.is_free:
            yield from draft[max(start, num_accepted) : end]
        start = end


def _named(tests: Sequence[DraftTest], segments: Sequence[Segment]) -> Iterator[DraftTest]:
    """Tests of tokens that are in the text, or that a model drafted in vain."""
    drafters = [segment.drafter for segment in segments for _ in range(segment.num_tokens)]
    for test, drafter in zip(tests, drafters, strict=False):
        if test.is_accepted or not drafter.is_free or drafter is HEADS:
            yield test


def _last(num_drafted: int, num_accepted: int) -> Literal["recovered", "bonus", "plain"]:
    if num_drafted == 0:
        return "plain"
    return "bonus" if num_accepted == num_drafted else "recovered"


def _difference(now: TimeSplit, past: TimeSplit) -> TimeSplit:
    return TimeSplit(
        **{
            field.name: getattr(now, field.name) - getattr(past, field.name)
            for field in dataclasses.fields(TimeSplit)
        }
    )
