"""A session's rounds as they are told: who drafted, what became of it, where tokens are from."""

from __future__ import annotations

import dataclasses

import pytest

from models.protocol.messages import Inspection, Verdict
from models.protocol.parts import DraftTest
from router.drafters.draft_model import DRAFT_MODEL
from router.drafters.forced import FORCED
from router.drafters.repeats.suffix import SUFFIX
from router.planning.round_plan import RoundPlan
from router.round_log import TARGET, RoundLog
from router.rounds import Round, Segment
from router.stats import RoundStats, TimeSplit
from router.stops import StopChecker, StopResult
from router.types import DeltaDetails, Explanation
from tests.fakes.router import TIMING, LetterDetokenizer
from tests.router.replies import verdict

CHAIN = (
    Segment(FORCED, 2),
    Segment(DRAFT_MODEL.traits, 3, is_planned=True),
    Segment(SUFFIX.traits, 2),
)
DRAFT = (10, 11, 20, 21, 22, 30, 31)


def asked(segments: tuple[Segment, ...] = CHAIN, reason: str = "depth") -> Round:
    num_tokens = sum(segment.num_tokens for segment in segments)
    return Round(
        plan=RoundPlan(3, 0, reason=reason),
        planned_at=0.0,
        draft=DRAFT[:num_tokens],
        segments=segments,
        why=Explanation(num_draft_tokens=5, reason="of the plan before", mode="drafting"),
    )


def taken(num_tokens: int) -> StopResult:
    """All tokens are shown, a character each."""
    return StopResult(num_tokens, "x" * num_tokens, None, tuple(range(num_tokens)))


def told(log: RoundLog, of: Round, said: Verdict, shown: StopResult) -> DeltaDetails:
    details = log.of(of, said, shown)
    assert details is not None
    return details


@pytest.mark.parametrize(
    ("num_accepted", "counts", "sources", "rejected", "last"),
    [
        (0, (0, 0, 0), [], (20, 21, 22), "recovered"),
        (1, (1, 0, 0), ["forced"], (20, 21, 22), "recovered"),
        (3, (2, 1, 0), ["forced"] * 2 + ["draft_model"], (21, 22), "recovered"),
        (6, (2, 3, 1), ["forced"] * 2 + ["draft_model"] * 3 + ["suffix"], (), "recovered"),
        (7, (2, 3, 2), ["forced"] * 2 + ["draft_model"] * 3 + ["suffix"] * 2, (), "bonus"),
    ],
)
def test_a_draft_is_told_by_who_drafted_it(num_accepted, counts, sources, rejected, last):
    """What was copied and rejected is not named: it may be of another client's answer."""
    details = told(RoundLog(RoundStats()), asked(), verdict(num_accepted), taken(num_accepted + 1))
    assert tuple(part.num_accepted for part in details.round.segments) == counts
    assert [part.num_tokens for part in details.round.segments] == [2, 3, 2]
    assert [origin.source for origin in details.origins] == [*sources, TARGET]
    assert details.round.rejected_ids == rejected
    assert (details.round.last, details.round.num_tokens) == (last, num_accepted + 1)
    assert details.round.why is not None
    assert (details.round.why.num_draft_tokens, details.round.why.reason) == (3, "depth")
    assert details.round.why.mode == "drafting"


def test_plain_steps_are_rounds_without_a_plan_of_their_own() -> None:
    log = RoundLog(RoundStats())
    rounds = [told(log, asked(), verdict(int(part == 0), part=part), taken(1)) for part in (0, 1)]
    assert [each.round.number for each in rounds] == [0, 1]
    assert rounds[1].round.why is None
    assert rounds[1].round.segments == ()
    assert rounds[1].round.last == "plain"


def test_tokens_that_nobody_drafted_are_the_targets() -> None:
    """Also where it takes several at once: a text that it drew whole."""
    details = told(RoundLog(RoundStats()), asked(()), verdict(3), taken(4))
    assert [origin.source for origin in details.origins] == [TARGET] * 4
    assert details.round.last == "plain"


def test_an_origin_waits_for_its_text_and_keeps_its_round() -> None:
    stops = StopChecker(LetterDetokenizer(), eos_ids=[0], stop=["cde"], max_tokens=9)
    log = RoundLog(RoundStats())
    one = (Segment(DRAFT_MODEL.traits, 1),)
    seen = []
    for tokens in ([1, 2], [3, 5], [6, 0]):
        details = told(log, asked(one), verdict(1), stops.take(tokens))
        seen.append([(origin.source, origin.round_number) for origin in details.origins])
    drafted, own = "draft_model", TARGET
    assert seen == [[(drafted, 0)], [(own, 0), (drafted, 1), (own, 1)], [(drafted, 2)]]


def test_tokens_behind_the_end_of_the_text_have_no_origin() -> None:
    stops = StopChecker(LetterDetokenizer(), eos_ids=[0], stop=[], max_tokens=9)
    details = told(RoundLog(RoundStats()), asked(), verdict(7), stops.take([1, 2, 0]))
    assert len(details.origins) == 2
    assert details.round.num_tokens == 3


def test_times_of_rounds_add_up_to_the_sessions() -> None:
    now = 0.0
    stats = RoundStats(lambda: now)
    log = RoundLog(stats)
    rounds = []
    for waited_s in (0.004, 0.002, 0.02):
        since, now = now, now + waited_s
        stats.add_verdict(since, TIMING)
        now += 0.001  # the loop's own
        rounds.append(told(log, asked(), verdict(0), taken(1)).round)
        since, now = now, now + 0.003
        stats.add_emit(since)
    for field in dataclasses.fields(TimeSplit):
        if field.name != "emit_ms":
            parts = sum(getattr(each.time, field.name) for each in rounds)
            assert parts == pytest.approx(getattr(stats.time(), field.name)), field.name
    assert all(each.time.verify_ms == pytest.approx(TIMING.pass_ms) for each in rounds)


def test_nobody_asks() -> None:
    assert RoundLog().of(asked(), verdict(2), taken(3)) is None


def test_a_test_is_told_of_what_may_be_named_and_a_token_of_what_its_grammar_allowed() -> None:
    """Copied text that was rejected is another client's, maybe; so are its probabilities."""
    tests = [
        DraftTest(token, 0.5, None, None, is_accepted=accepted, num_allowed=9)
        for token, accepted in zip(DRAFT, (True, True, True, False, None, None, None), strict=True)
    ]
    said = verdict(3, inspection=Inspection(tests=tests, num_allowed=[9, 8, 7, 6]))
    details = told(RoundLog(RoundStats()), asked(), said, taken(4))
    assert [test.token for test in details.round.tests] == [10, 11, 20, 21, 22]
    assert [origin.num_allowed for origin in details.origins] == [9, 8, 7, 6]
    free = told(RoundLog(RoundStats()), asked(), verdict(3), taken(4))
    assert free.round.tests == ()
    assert {origin.num_allowed for origin in free.origins} == {None}
