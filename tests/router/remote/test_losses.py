"""What a router notes of its sessions' losses."""

from __future__ import annotations

import random
from functools import partial

import pytest

from models.protocol.errors import LinkLost, ReplicasLost
from models.protocol.grammars import GrammarCheck, GrammarChecked
from models.protocol.messages import ConstraintRequest, EngineReply, EngineRequest, Grammar, Open
from models.protocol.rewards import RewardScore, RewardScored, TextScore
from models.protocol.token_sequence import TokenSequence
from router.remote.check import check_grammar
from router.remote.engine import EngineClient
from router.remote.losses import Losses, PartLosses
from router.remote.rewards import RemoteScorer
from router.remote.target import RemoteVerifier
from router.types import Finished, SpeculationSettings
from tests.fakes.pools import Fault, Faults, ScriptedPool
from tests.fakes.router import ScriptedEngine
from tests.fakes.sessions import OPENING, PROMPT, Front, asked
from tests.router.remote.test_recovery import LIMITS


class ScoringProcess:
    """Scores every look-ahead alike; takes every text for one of its grammar."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def handle(self, message: ConstraintRequest) -> list[RewardScored | GrammarChecked]:
        if isinstance(message, GrammarCheck):
            return [GrammarChecked(session_id=message.session_id, num_bytes=1, may_end=True)]
        assert isinstance(message, RewardScore)
        scores = [TextScore(0.5, False, True) for _ in message.lookaheads]
        return [RewardScored(session_id=message.session_id, seq=message.seq, scores=scores)]


@pytest.mark.parametrize("part", ["target", "constraint"])
@pytest.mark.parametrize(("kind", "reason"), [("crash", "gone"), ("stop", "no_answer")])
async def test_a_lost_replica_is_told_and_its_replacement_noted(
    kind: Fault, reason: str, part: str
) -> None:
    losses, told = Losses(), list[str]()
    losses.on_lost = told.append
    serving = losses.follow("s")
    target, constraint = ScriptedPool(), ScriptedPool(ScoringProcess, name="constraint")
    client = EngineClient(target, OPENING, LIMITS, losses=losses.target)
    session, committed = RemoteVerifier(client, LIMITS), TokenSequence(PROMPT)
    scorer = RemoteScorer(constraint, "s", "{}", LIMITS, losses.constraint)
    for number in range(3):
        if number == 1:
            {"target": target, "constraint": constraint}[part].fail(kind)
        async for verdict in session.verify(committed, [], 0):
            committed.extend([verdict.token])
        assert len(await scorer.score("a", ["b", "c"], [False, True])) == 2
    assert told == [f"{part}-1"]
    lost = losses.by_part()[part]
    assert lost.num_lost == {reason: 1}
    [pause_s] = lost.new_pauses
    assert 0.0 <= pause_s < 5.0
    assert serving == {each: f"{each}-{1 + (each == part)}" for each in ("target", "constraint")}


@pytest.mark.parametrize(("kind", "reason"), [("crash", "gone"), ("stop", "no_answer")])
async def test_a_check_goes_on_on_another_replica(kind: Fault, reason: str) -> None:
    losses, told = Losses(), list[str]()
    losses.on_lost = told.append
    faults = Faults({2}, kind)  # as the question is sent
    pool = ScriptedPool(ScoringProcess, name="constraint", faults=faults, num_refusals=2)
    found = await check_grammar(
        pool, Grammar(kind="regex", text="a"), "a", LIMITS, losses.constraint
    )
    assert (found.num_bytes, told) == (1, ["constraint-1"])
    assert losses.constraint.num_lost == {reason: 1}
    assert [lease.is_released for lease in pool.leases] == [True, True]


def test_a_replica_that_ends_a_lease_is_not_avoided() -> None:
    losses, told = Losses(), list[str]()
    losses.on_lost = told.append
    losses.of(is_target=False).note("a", LinkLost("idle", "ended"))
    losses.constraint.note("b", LinkLost("silent", "silent"))
    assert told == ["b"]
    assert losses.draft.num_lost == {"ended": 1}


def test_clients_are_told_when_a_lost_part_is_usually_back() -> None:
    now_s = 100.0
    losses = PartLosses(clock=lambda: now_s, chance=lambda: 0.5)
    assert losses.retry_after_s() == 1.0  # nothing is known
    now_s += 8.0
    assert losses.retry_after_s() == 8.0, "an unknown wait may last as long again"
    now_s += 12.0
    losses.note_answer()  # after 20 s
    now_s += 500.0
    losses.note("a", LinkLost("crashed"))
    now_s += 5.0
    losses.note("b", LinkLost("crashed"))
    assert losses.retry_after_s() == 15.0
    now_s += 195.0
    assert losses.retry_after_s() == 60.0, "nobody is sent away for longer"


def test_clients_that_are_sent_away_together_come_back_apart() -> None:
    chance = random.Random(3).random
    losses = PartLosses(clock=iter([0.0, *[20.0] * 100]).__next__, chance=chance)
    losses.note("a", LinkLost("crashed"))
    told_s = [losses.retry_after_s() for _ in range(100)]
    assert 16.0 <= min(told_s) < 17.0
    assert 23.0 < max(told_s) <= 24.0


async def generated(pools: dict[str, ScriptedPool], adapter: str = "") -> Finished:
    speculation = SpeculationSettings(num_speculative_tokens=2)
    wanted = asked(max_tokens=12, adapter=adapter, speculation=speculation)
    front = Front(pools["target"], pools["draft"], limits=LIMITS)
    _, end = await front.run(wanted, num_turns=20)
    assert front.services.losses.follow("s") == {}, "nobody is followed for ever"
    return end


def scripted(faults: Faults) -> dict[str, ScriptedPool]:
    return {name: ScriptedPool(name=name, faults=faults) for name in ("target", "draft")}


async def test_the_replacement_of_a_target_is_told_the_adapter_and_no_draft_is() -> None:
    opened: dict[str, list[str]] = {"target": [], "draft": []}

    class Noted(ScriptedEngine):
        def __init__(self, name: str, epoch: int) -> None:
            super().__init__(epoch)
            self.name = name

        def handle(self, message: EngineRequest) -> list[EngineReply]:
            if isinstance(message, Open):
                opened[self.name].append(message.adapter)
            return super().handle(message)

    faults = Faults({6}, "crash", ("target",))
    pools = {name: ScriptedPool(partial(Noted, name), name=name, faults=faults) for name in opened}
    end = await generated(pools, adapter="lora")
    assert end.replicas["target"] == "target-2"
    assert opened["target"].count("lora") == len(opened["target"]) >= 2
    assert set(opened["draft"]) == {""}


async def test_the_end_of_a_request_names_the_replicas_that_served_it_last() -> None:
    end = await generated(scripted(Faults()))
    assert end.replicas == {"target": "target-1", "draft": "draft-1"}
    end = await generated(scripted(Faults({6}, "crash", ("target",))))
    assert end.replicas["target"] == "target-2"


async def test_an_error_names_the_replicas_as_well() -> None:
    with pytest.raises(ReplicasLost) as caught:
        await generated(scripted(Faults(range(3, 10**6), "crash", ("target",))))
    assert caught.value.replicas["target"].startswith("target-")
