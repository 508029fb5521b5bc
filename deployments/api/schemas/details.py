"""The rounds of an answer one by one (`speculation.details`), and what of its schemas was loosened.

Shapes are plain dicts, encoded round by round as they come (`api/writing/details_writer.py`). Times
in milliseconds, probabilities as natural logarithms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from typing_extensions import TypedDict

from models.protocol.grammars import Loosened
from models.protocol.parts import DraftTest
from router.types import DraftedSegment, Explanation, RoundDetails, ShownToken, TokenOrigin

_DECIMALS = 3  # a microsecond
_MAX_LOOSENED = 64  # parts of schemas that are named
_LOWEST = -9999.0  # JSON has no -inf


class Reasons(TypedDict):
    """Why the planner chose a round's k.

    `reason` is a word or two. `mode` tells if the sessions on the target replica draft or do not;
    it is empty if k is fixed. `survival` has the probabilities that at least 1, 2, ... draft tokens
    are accepted. A token is worth its row if it has at least `min_survival`, which follows from the
    other sessions. `depth` and `num_sessions` are of the common plan. The last four are expected
    costs and gains; 0: not known.
    """

    reason: str
    mode: str
    survival: list[float]
    min_survival: float
    depth: int
    num_sessions: int
    drafting_tokens_per_ms: float
    plain_tokens_per_ms: float
    pass_ms: float
    step_ms: float


class Tested(TypedDict):
    """A draft token as the target tested it. Copied text that was rejected is left out.

    `p` is the target's probability of it, `q` the draft's, and `ratio` min(1, p / q). The ratio is
    the chance that `rejection` accepts it, which it does if the draw `u` is below. `q`, `ratio` and
    `u` are null under `coupled`, where the target's own draw decides, and in greedy decoding.
    `accepted` is null behind the first rejection, where nobody looked. `allowed` counts the tokens
    that a grammar allows at its place; null: there is none.
    """

    token: str
    p: float
    q: float | None
    ratio: float | None
    u: float | None
    accepted: bool | None
    allowed: int | None


class RoundTime(TypedDict):
    """The durations of a round, by the names of `metrics.rounds`; `round_ms` is their total."""

    round_ms: float
    draft_ms: float
    verify_ms: float
    mask_ms: float
    queue_ms: float
    link_ms: float
    grammar_ms: float
    loop_ms: float


class DetailedRound(TypedDict):
    """A verdict of the target. `why` is null where the target went on alone by the last plan.

    `last` is the kind of the last of its `num_tokens` tokens. It is `recovered` after a rejection,
    `bonus` after an accepted whole draft, and `plain` without a draft. `rejected` names the tokens
    that a model drafted in vain. Copied text is never named, because it may be another answer's.
    """

    round: int
    k: int | None
    why: Reasons | None
    drafted: tuple[DraftedSegment, ...]
    tests: list[Tested]
    rejected: list[str]
    last: Literal["recovered", "bonus", "plain"]
    num_tokens: int
    time: RoundTime


class DetailedToken(TypedDict):
    """A token of the text.

    It has the beginning of its text (characters), its name, its writer and round, and the target's
    logprob. `allowed` is the number of tokens that a grammar allowed there (null: none).
    """

    offset: int
    token: str
    origin: str
    round: int
    logprob: float
    allowed: int | None


class ChoiceDetails(TypedDict):
    """Rounds and tokens of one choice: all of them, or those that an event of a stream brings."""

    index: int
    rounds: list[DetailedRound]
    tokens: list[DetailedToken]


class LoosenedPart(msgspec.Struct):
    """A part of a schema that was not enforced: where it is, and why.

    `field`: of the request; `place`: in the schema, a JSON path.
    """

    field: str
    place: str
    reason: str


def loosened_parts(loosened: Sequence[Loosened]) -> list[LoosenedPart]:
    """Return the first of the parts that were not enforced."""
    return [
        LoosenedPart(field=one.field, place=one.path, reason=one.reason)
        for one in loosened[:_MAX_LOOSENED]
    ]


def round_shape(details: RoundDetails, name_of: Callable[[int], str]) -> DetailedRound:
    """Shape a round for JSON.

    `name_of` names a token by its id.
    """
    why = details.why
    return {
        "round": details.number,
        "k": None if why is None else why.num_draft_tokens,
        "why": None if why is None else _reasons(why),
        "drafted": details.segments,
        "tests": [_tested(test, name_of) for test in details.tests],
        "rejected": [name_of(token_id) for token_id in details.rejected_ids],
        "last": details.last,
        "num_tokens": details.num_tokens,
        "time": _time(details),
    }


def token_shape(
    shown: ShownToken, origin: TokenOrigin, name_of: Callable[[int], str]
) -> DetailedToken:
    """Shape a shown token for JSON."""
    return {
        "offset": shown.offset,
        "token": name_of(shown.logprobs.token),
        "origin": origin.source,
        "round": origin.round_number,
        "logprob": max(shown.logprobs.logprob, _LOWEST),
        "allowed": origin.num_allowed,
    }


def _tested(test: DraftTest, name_of: Callable[[int], str]) -> Tested:
    p, q = test.target_prob, test.draft_prob
    return {
        "token": name_of(test.token),
        "p": p,
        "q": q,
        "ratio": min(1.0, p / q) if q else None,
        "u": test.noise,
        "accepted": test.is_accepted,
        "allowed": test.num_allowed,
    }


def _reasons(why: Explanation) -> Reasons:
    return {
        "reason": why.reason,
        "mode": why.mode,
        "survival": [round(alive, _DECIMALS) for alive in why.survival],
        "min_survival": round(why.min_survival, _DECIMALS),
        "depth": why.depth,
        "num_sessions": why.num_sessions,
        "drafting_tokens_per_ms": round(why.drafting_per_ms, 6),
        "plain_tokens_per_ms": round(why.plain_per_ms, 6),
        "pass_ms": round(why.pass_ms, _DECIMALS),
        "step_ms": round(why.step_ms, _DECIMALS),
    }


def _time(details: RoundDetails) -> RoundTime:
    time = details.time
    whole_ms = time.draft_ms + time.verify_ms + time.mask_ms + time.queue_ms
    whole_ms += time.link_ms + time.grammar_ms + time.loop_ms  # emit_ms is of the round before
    return {
        "round_ms": round(whole_ms, _DECIMALS),
        "draft_ms": round(time.draft_ms, _DECIMALS),
        "verify_ms": round(time.verify_ms, _DECIMALS),
        "mask_ms": round(time.mask_ms, _DECIMALS),
        "queue_ms": round(time.queue_ms, _DECIMALS),
        "link_ms": round(time.link_ms, _DECIMALS),
        "grammar_ms": round(time.grammar_ms, _DECIMALS),
        "loop_ms": round(time.loop_ms, _DECIMALS),
    }
