"""A drafter is one file and one line of the registry: it plans, drafts and is counted by name."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from router.drafters.registry import DRAFTERS
from router.types import Finished, SpeculationSettings
from tests.fakes.oracle_drafter import ORACLE
from tests.fakes.pools import ScriptedPool
from tests.fakes.router import continuation
from tests.fakes.sessions import NO_LOOKUP, PROMPT, Front, asked

NUM_TOKENS = 60


@pytest.fixture(autouse=True)
def _with_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DRAFTERS, ORACLE.name, ORACLE)


def front_of(draft: ScriptedPool | None = None) -> Front:
    return Front(ScriptedPool(), draft, speculation=NO_LOOKUP)


async def run(
    front: Front, drafter: str | None, k: int | None = None
) -> tuple[list[int], Finished]:
    speculation = SpeculationSettings(drafter=drafter, num_speculative_tokens=k)
    return await front.run(asked(max_tokens=NUM_TOKENS, speculation=speculation), num_turns=1)


@pytest.mark.parametrize("k", [1, 4, None], ids=["k1", "k4", "adaptive"])
async def test_it_drafts_is_counted_by_name_and_changes_no_text(k: int | None) -> None:
    ids, finished = await run(front_of(), ORACLE.name, k)
    assert ids == continuation(PROMPT, NUM_TOKENS)
    stats = finished.speculation
    assert stats.num_drafted_by == {ORACLE.name: stats.num_draft_tokens}
    assert stats.num_accepted_draft_tokens > 0


async def test_its_costs_and_acceptance_are_learnt_by_name() -> None:
    front = front_of()
    await run(front, ORACLE.name)
    shared = front.services
    costs = shared.planner.costs
    assert costs.is_known(ORACLE.traits)
    assert costs.step_ms(ORACLE.name, 1) == pytest.approx(0.1)
    assert not costs.is_known(DRAFTERS["draft_model"].traits)
    assert list(shared.acceptance) == [(ORACLE.name, "free")]
    pool = shared.acceptance[ORACLE.name, "free"]
    assert pool.acceptances()[2] < pool.acceptances()[1], "each third token is wrong"
    assert sum(k * n for k, n in shared.planner.stats.lengths.items()) > 0


async def test_it_comes_after_those_before_it_unless_it_is_asked_for() -> None:
    _, finished = await run(front_of(ScriptedPool()), None, k=3)
    assert ORACLE.name not in finished.speculation.num_drafted_by


async def test_two_drafters_stand_side_by_side_in_one_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The text outgrows the draft model; who fills in drafts the rest, each under its own name."""

    class ShortDraft(ScriptedPool):
        async def lease(self, session_id: str, *, timeout_s: float):  # type: ignore[no-untyped-def]
            lease = await super().lease(session_id, timeout_s=timeout_s)
            lease.grant = msgspec.structs.replace(lease.grant, max_model_len=40)
            return lease

    monkeypatch.setitem(DRAFTERS, ORACLE.name, dataclasses.replace(ORACLE, fills_in=True))
    ids, finished = await run(front_of(ShortDraft()), None, k=3)
    assert ids == continuation(PROMPT, NUM_TOKENS)
    drafted_by = finished.speculation.num_drafted_by
    assert set(drafted_by) == {"draft_model", ORACLE.name}
    assert min(drafted_by.values()) > 3
    assert sum(drafted_by.values()) == finished.speculation.num_draft_tokens
