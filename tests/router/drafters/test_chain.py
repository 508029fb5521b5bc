"""Chains of drafters: what goes into a round, and what each is credited with."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from models.protocol.messages import Proposal
from models.protocol.token_sequence import TokenSequence
from router.drafters.chain import ChainTerms, NamedFree
from router.drafters.draft_model import DRAFT_MODEL
from router.drafters.ngram import NGRAM
from router.drafters.side_by_side import SessionDrafters
from router.loop import run_session
from router.planning.fixed import FixedPlanner
from router.planning.round_plan import Mode, RoundPlan
from router.ports import DraftCost, DrafterTraits, FreeDraft
from router.session import Session
from tests.fakes.router import ScriptedDrafter, ScriptedVerifier, continuation
from tests.fakes.sessions import PROMPT, scripted_session

FRONT = DrafterTraits(name="front", cost=DraftCost.FREE, prior_acceptance={})


class Sure:
    """Knows `num_known` tokens of what follows, of which each survives with `keeps`."""

    best = 1.0  # survival of each token in the best case

    def __init__(self, num_known: int, keeps: float = 1.0, wrong_from: int | None = None) -> None:
        self.num_known = num_known
        self.keeps = keeps
        self.wrong_from = wrong_from
        self.texts: list[list[int]] = []

    def look(self, text: TokenSequence, num_tokens: int) -> FreeDraft:
        self.texts.append(list(text.ids))
        tokens = continuation(text.ids, min(self.num_known, num_tokens))
        if self.wrong_from is not None and self.wrong_from < len(tokens):
            tokens[self.wrong_from] = 0 if tokens[self.wrong_from] else 1
        return FreeDraft(tokens, [self.keeps ** (j + 1) for j in range(len(tokens))])

    def best_case(self, text: TokenSequence, num_tokens: int) -> list[float]:
        return [self.best] * min(self.num_known, num_tokens)


class SureDrafter(ScriptedDrafter, Sure):
    """The same as one of the session's drafters, which fills in as well."""

    def __init__(self, num_known: int, keeps: float = 1.0) -> None:
        ScriptedDrafter.__init__(self, [None])
        Sure.__init__(self, num_known, keeps)


class Planned(FixedPlanner):
    """Plans k, and says what a free token must bring."""

    def __init__(self, k: int, min_survival: float = 0.0, run_on: int = 0) -> None:
        super().__init__(k, run_on)
        self.min_survival = min_survival
        self.seen: list[tuple[str, int, int]] = []

    def plan(
        self, drafter: DrafterTraits | None, max_draft_tokens: int, *, is_ready: bool = True
    ) -> RoundPlan:
        k = 0 if drafter is None else min(self._num_draft_tokens, max_draft_tokens)
        return RoundPlan(k, self._run_on, min_survival=self.min_survival)

    def observe(self, drafter: DrafterTraits, num_drafted: int, num_accepted: int) -> None:
        self.seen.append((drafter.name, num_drafted, num_accepted))


class Together(Planned):
    """Plans as for sessions that draft together, where k is chosen live."""

    def plan(
        self, drafter: DrafterTraits | None, max_draft_tokens: int, *, is_ready: bool = True
    ) -> RoundPlan:
        plan = super().plan(drafter, max_draft_tokens, is_ready=is_ready)
        return msgspec.structs.replace(plan, mode=Mode.DRAFTING)


def session(
    planner: Planned,
    *,
    front: Sure | None = None,
    model: ScriptedDrafter | None = None,
    behind: SureDrafter | None = None,
    verifier: ScriptedVerifier | None = None,
    max_tokens: int = 40,
    **terms: object,
) -> Session:
    places: list[tuple[DrafterTraits, object]] = []
    if model is not None:
        places.append((DRAFT_MODEL.traits, lambda: model))
    if behind is not None:
        places.append((NGRAM.traits, lambda: behind))
    named = () if front is None else (NamedFree(FRONT, front),)
    return scripted_session(
        planner,
        drafters=SessionDrafters(places, continues=True),  # type: ignore[arg-type]
        terms=ChainTerms(front=named, **{"max_free_tokens": 8, **terms}),  # type: ignore[arg-type]
        verifier=verifier,
        max_tokens=max_tokens,
    )


async def text_of(parts: Session) -> list[int]:
    ids: list[int] = []
    async for delta in run_session(parts):
        ids.extend(delta.token_ids)
    return ids


async def first_round(parts: Session, remaining: int = 40) -> list[tuple[str, int]]:
    asked = await parts.drafting.next_round(remaining)
    assert asked.draft == continuation(PROMPT, len(asked.draft))
    assert len(asked.draft) == sum(segment.num_tokens for segment in asked.segments)
    return [(segment.drafter.name, segment.num_tokens) for segment in asked.segments]


async def test_a_draft_is_text_that_is_certain_then_a_drafters_then_what_repeats() -> None:
    model, behind = ScriptedDrafter([None]), SureDrafter(2)
    parts = session(Planned(3), front=Sure(2), model=model, behind=behind)
    assert await first_round(parts) == [("front", 2), ("draft_model", 3), ("ngram", 2)]
    assert behind.texts == [[*PROMPT, *continuation(PROMPT, 5)]]
    assert parts.committed.ids == list(PROMPT), "nothing is committed by a draft"


@pytest.mark.parametrize(
    ("keeps", "min_survival", "expected"),
    [(0.9, 0.0, 6), (0.9, 0.8, 2), (0.9, 0.95, 0), (1.0, 1.0, 6), (1.0, 1.1, 0), (0.9, 0.1, 6)],
)
async def test_a_free_token_goes_in_while_it_is_worth_its_row(
    keeps: float, min_survival: float, expected: int
) -> None:
    parts = session(
        Planned(1, min_survival), model=ScriptedDrafter([None]), behind=SureDrafter(6, keeps)
    )
    segments = await first_round(parts)
    assert sum(count for name, count in segments if name == "ngram") == expected


async def test_the_drafts_before_it_count_in_what_a_free_token_survives_with() -> None:
    parts = session(
        Planned(2, 0.3),
        model=ScriptedDrafter([None]),
        behind=SureDrafter(6, 0.9),
        survival=lambda drafter, num: [0.6 ** (j + 1) for j in range(num)],
    )
    # 0.36 after the model's two; 0.324 and 0.29 with one and two more.
    assert await first_round(parts) == [("draft_model", 2), ("ngram", 1)]


@pytest.mark.parametrize(
    ("max_tokens", "free", "remaining", "expected"),
    [
        (5, 8, 40, [("front", 2), ("draft_model", 3)]),
        (1, 8, 40, [("front", 1)]),
        (0, 8, 40, []),
        (64, 3, 40, [("front", 2), ("draft_model", 4), ("ngram", 1)]),
        (64, 0, 40, [("draft_model", 4)]),
        (64, 8, 4, [("front", 2), ("draft_model", 1)]),
        (64, 8, 1, []),
    ],
    ids=["k", "k1", "k0", "few-free", "none-free", "end", "last"],
)
async def test_a_chain_keeps_within_every_limit(
    max_tokens: int, free: int, remaining: int, expected: Sequence[tuple[str, int]]
) -> None:
    parts = session(
        Planned(4),
        front=Sure(2),
        model=ScriptedDrafter([None]),
        behind=SureDrafter(4),
        max_tokens=40,
    )
    parts.drafting._terms = ChainTerms(  # type: ignore[misc]
        front=parts.drafting._terms.front, max_tokens=max_tokens, max_free_tokens=free
    )
    assert await first_round(parts, remaining) == expected


async def test_free_drafts_stand_in_where_no_steps_are_planned() -> None:
    verifier = ScriptedVerifier()
    parts = session(
        Planned(0, run_on=3),
        model=ScriptedDrafter([None]),
        behind=SureDrafter(4),
        verifier=verifier,
        max_tokens=20,
    )
    assert await text_of(parts) == continuation(PROMPT, 20)
    assert verifier.rounds[0] == (4, 3)
    assert parts.watch.stats.snapshot().num_drafted_by["ngram"] > 0


async def test_they_stand_in_for_a_model_that_is_lost() -> None:
    model = ScriptedDrafter([None], fails_at=range(99))
    parts = session(Planned(3), front=Sure(2), model=model, behind=SureDrafter(4))
    assert await first_round(parts) == [("front", 2), ("ngram", 4)]


async def test_nothing_follows_an_eos() -> None:
    class EndsThere(ScriptedDrafter):
        async def propose(self, committed: TokenSequence, num_draft_tokens: int) -> Proposal:
            proposal = await super().propose(committed, num_draft_tokens)
            return msgspec.structs.replace(proposal, cut="eos")

    parts = session(Planned(2), model=EndsThere([None]), behind=SureDrafter(4))
    assert await first_round(parts) == [("draft_model", 2)]


@pytest.mark.parametrize(
    ("wrong", "seen", "accepted"),
    [
        (("front", 1), [], {"front": 1, "draft_model": 0, "ngram": 0}),
        (("model", 0), [("draft_model", 3, 0)], {"front": 2, "draft_model": 0, "ngram": 0}),
        (("model", 2), [("draft_model", 3, 2)], {"front": 2, "draft_model": 2, "ngram": 0}),
        (("none", 0), [("draft_model", 3, 3)], {"front": 2, "draft_model": 3, "ngram": 2}),
    ],
    ids=["front", "model-first", "model-last", "none"],
)
async def test_each_is_credited_with_what_was_looked_at(
    wrong: tuple[str, int], seen: list[tuple[str, int, int]], accepted: dict[str, int]
) -> None:
    who, at = wrong
    planner = Planned(3)
    parts = session(
        planner,
        front=Sure(2, wrong_from=at if who == "front" else None),
        model=ScriptedDrafter([at if who == "model" else None]),
        behind=SureDrafter(2),
    )
    asked = await parts.drafting.next_round(40)
    async for verdict in parts.verifier.verify(parts.committed, asked.draft, 0):
        parts.watch.note_asked()
        parts.watch.note_verdict(asked, verdict)
    stats = parts.watch.stats.snapshot()
    assert planner.seen == seen
    assert stats.num_drafted_by == {"front": 2, "draft_model": 3, "ngram": 2}
    assert stats.num_accepted_by == accepted
    assert stats.per_step_drafted == (7,)
    assert stats.per_step_accepted == (sum(accepted.values()),)


class KnowsAfterOdd(Sure):
    """Knows nothing after an even number of generated tokens."""

    def look(self, text: TokenSequence, num_tokens: int) -> FreeDraft:
        is_odd = (len(text) - len(PROMPT)) % 2
        return super().look(text, num_tokens) if is_odd else FreeDraft()


@pytest.mark.parametrize(("run_on", "second"), [(1, (0, 1)), (2, (3, 2))])
async def test_the_last_step_of_a_run_is_not_interrupted(
    run_on: int, second: tuple[int, int]
) -> None:
    """Of one step beside the first nothing is left to be saved: the next look sees more."""
    verifier = ScriptedVerifier()
    parts = session(Planned(0, run_on=run_on), front=KnowsAfterOdd(3), verifier=verifier)
    assert await text_of(parts) == continuation(PROMPT, 40)
    assert verifier.rounds[:2] == [(0, run_on), second]


@pytest.mark.parametrize(("rows_ms", "is_stopped"), [(21.0, True), (23.0, False)])
async def test_a_run_goes_on_where_the_draft_that_came_up_is_not_worth_its_rows(
    rows_ms: float, *, is_stopped: bool
) -> None:
    """The 3 known tokens bring 2.7. A pass of one row takes 10 ms, one of four rows 21 or 23."""
    verifier = ScriptedVerifier()
    parts = session(Planned(0, run_on=9), front=KnowsAfterOdd(3, keeps=0.95), verifier=verifier)
    for num_rows, pass_ms in ((1, 10.0), (4, rows_ms)):  # they gain 1.41 or 1.61, at least 1.5
        parts.watch.costs.observe_pass(num_rows, pass_ms)
    assert await text_of(parts) == continuation(PROMPT, 40)
    assert verifier.rounds[:2] == [(0, 9), (3, 9) if is_stopped else (0, 9)]


async def test_beside_others_a_draft_must_gain_a_token_more_to_stop_a_run() -> None:
    """The 3 known tokens gain 1.95, at least 1.5 alone and 2.5 beside another."""
    parts = session(Planned(0, run_on=9), front=Sure(3, keeps=0.8))
    await parts.drafting.next_round(40)
    assert parts.drafting.is_awaited
    parts.watch.load = (1, 2)
    assert not parts.drafting.is_awaited


async def test_nothing_is_looked_up_where_no_draft_could_be_worth_its_rows() -> None:
    front, verifier = Sure(8), ScriptedVerifier()
    parts = session(Together(0, run_on=8), front=front, verifier=verifier)
    for num_rows in (1, 9):  # eight more rows cost as much as eight plain steps
        parts.watch.costs.observe_pass(num_rows, 10.0 * num_rows)
    assert await text_of(parts) == continuation(PROMPT, 40)
    assert len(front.texts) == len(verifier.rounds) < 10  # one look of each round


@pytest.mark.parametrize(("best", "is_looked_up"), [(0.49, False), (0.51, True)])
async def test_beside_others_nothing_is_looked_up_whose_best_case_is_not_worth_it(
    best: float, *, is_looked_up: bool
) -> None:
    """Five tokens, of which 2.5 must be gained."""
    front = Sure(5)
    front.best = best
    parts = session(Planned(0, run_on=9), front=front)
    await parts.drafting.next_round(40)
    parts.watch.load = (1, 2)
    front.texts.clear()
    assert parts.drafting.is_awaited == is_looked_up == bool(front.texts)


@pytest.mark.parametrize("front", [None, 0, 1, 2])
@pytest.mark.parametrize("model", [None, 0, 2])
async def test_no_chain_changes_the_text(front: int | None, model: int | None) -> None:
    parts = session(
        Planned(3),
        front=Sure(2, wrong_from=front),
        model=ScriptedDrafter([model, None], fails_at=[3]),
        behind=SureDrafter(3),
    )
    assert await text_of(parts) == continuation(PROMPT, 40)


@pytest.mark.parametrize(("num_own", "is_sent"), [(0, True), (1, True), (2, False)])
async def test_a_free_draft_that_was_planned_must_promise_more_too(
    num_own: int, is_sent: bool
) -> None:
    """Of 2 known tokens 1.4 survive. The plan is that of sessions together, not a fixed k."""
    parts = session(Together(2), behind=SureDrafter(2, keeps=0.8))
    parts.watch.num_own_tokens = float(num_own)
    asked = await parts.drafting.next_round(40)
    assert (len(asked.draft), asked.plan.is_missed) == ((2, False) if is_sent else (0, True))
    fixed = session(Planned(2), behind=SureDrafter(2, keeps=0.8))
    fixed.watch.num_own_tokens = float(num_own)
    assert len((await fixed.drafting.next_round(40)).draft) == 2


@pytest.mark.parametrize(
    ("rows_ms", "num_sent"), [(26.0, 5), (27.0, 4), (38.0, 2), (49.0, 1), (51.0, 0)]
)
async def test_the_beginning_of_a_free_draft_is_sent_that_is_worth_its_rows(
    rows_ms: float, num_sent: int
) -> None:
    """The 5 tokens survive with 0.8, 0.64, 0.51, 0.41, 0.33; a pass of one row takes 10 ms."""
    parts = session(Together(5), behind=SureDrafter(5, keeps=0.8))
    for num_rows, pass_ms in ((1, 10.0), (6, rows_ms)):
        parts.watch.costs.observe_pass(num_rows, pass_ms)
    asked = await parts.drafting.next_round(40)
    assert (len(asked.draft), asked.plan.is_missed) == (num_sent, num_sent == 0)


async def test_a_wrong_draft_counts_as_a_miss() -> None:
    """The target goes on for longer after each, as where no draft came."""
    parts = session(Together(1), behind=SureDrafter(0))
    runs = [(await parts.drafting.next_round(40)).plan.run_on for _ in range(3)]
    parts.watch.num_accepted = 0  # a draft that was wrong
    runs.append((await parts.drafting.next_round(40)).plan.run_on)
    parts.watch.num_accepted = 1
    runs.append((await parts.drafting.next_round(40)).plan.run_on)
    assert runs == [1, 1, 2, 2, 1]


@pytest.mark.parametrize(("num_known", "is_sent"), [(2, False), (5, True)])
async def test_a_free_draft_is_sent_where_it_promises_more_than_the_targets_own(
    num_known: int, is_sent: bool
) -> None:
    """Of 2 known tokens 1.4 survive, of 5 2.7; the target's own drafts bring 2 a step."""
    verifier = ScriptedVerifier(num_own=2)
    parts = session(
        Planned(0, run_on=8),
        behind=SureDrafter(num_known, keeps=0.8),
        verifier=verifier,
        max_tokens=60,
    )
    assert await text_of(parts) == continuation(PROMPT, 60)
    first, *later = [num_drafted for num_drafted, _ in verifier.rounds]
    assert first == num_known  # nothing is known of the target's own yet
    assert later == [num_known if is_sent else 0] * len(later) != []
