"""What questions to rewards share: no fork where time is bounded, one for several where not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from deployments.constraint.reward_workers import RewardWorkers
from models.protocol.messages import ConstraintReply
from models.protocol.rewards import RewardRefused, RewardScored
from models.rewards.registry import Rewards
from tests.cases.rewards.plugin import write_plugin
from tests.harness.rewards.workers import ask, serving_rewards

TIGHT = {"reward_cpu_s": 0.5, "reward_timeout_s": 5.0}
BOUNDED: list[dict[str, Any]] = [
    {"kind": "concepts", "concepts": ["dog", "happy"]},
    {"kind": "words", "required": ["cat"], "forbidden": ["dog"]},
    {"kind": "length", "unit": "sentences", "min": 2, "max": 5},
    {"kind": "readability", "max_grade": 3.0},
    {"kind": "weighted", "parts": [{"reward": {"kind": "length", "min": 3}}]},
]
EVIL = {"kind": "pattern", "pattern": "(a|aa)+$", "match": "whole"}
WILD = "a" * 200 + "b"


def pattern(word: str) -> dict[str, Any]:
    return {"kind": "pattern", "pattern": f"{word}.*end"}


def forked(workers: RewardWorkers) -> int:
    """Page faults of all forks that have ended: each has some, and a process without forks none."""
    text = Path(f"/proc/{workers.pid}/stat").read_text(encoding="utf-8")
    return int(text.rpartition(")")[2].split()[8])


def scores(answer: ConstraintReply) -> list[float]:
    assert isinstance(answer, RewardScored), answer
    return [score.score for score in answer.scores]


async def test_rewards_whose_time_is_bounded_take_no_fork() -> None:
    text, ahead = "A dog ran. ", ["It was happy. The end.", "No cat"]
    async with serving_rewards() as workers:
        await ask(workers, BOUNDED[0])
        for reward in BOUNDED:
            made = Rewards().make(reward)
            expected = [made.score(text, one, is_end=False).score for one in ahead]
            assert scores(await ask(workers, reward, text, ahead)) == expected
        wrong = await ask(workers, {"kind": "words"})
        assert isinstance(wrong, RewardRefused)
        assert wrong.is_client_error
        assert forked(workers) == 0
        # A text of which that would take long goes to a fork, for the same scores.
        assert scores(await ask(workers, BOUNDED[0], "dog " * 4000, ["happy", "sad"])) == [1.0, 0.5]
        assert forked(workers) > 0


async def test_questions_of_several_sessions_share_a_fork() -> None:
    words = [f"w{number}" for number in range(8)]
    async with serving_rewards() as workers:
        for word in words:  # each alone, before it is known to take little
            await ask(workers, pattern(word))

        async def faults(*groups: list[str]) -> int:
            before = forked(workers)
            for group in groups:
                answers = await asyncio.gather(
                    *(ask(workers, pattern(word), "w3 ", ["end", "w5 end"]) for word in group)
                )
                found = [scores(answer) for answer in answers]
                wanted = {"w3": [1.0, 1.0], "w5": [0.5, 1.0]}
                assert found == [wanted.get(word, [0.5, 0.5]) for word in group]
            return forked(workers) - before

        apart = await faults(*([word] for word in words))
        assert await faults(words) < 0.4 * apart


async def test_a_pattern_that_runs_wild_among_others_harms_its_own_session_alone() -> None:
    words = ["one", "two", "three"]
    async with serving_rewards(**TIGHT) as workers:
        for reward in [EVIL, *map(pattern, words)]:  # harmless at first
            scores(await ask(workers, reward, "a"))
        pid = workers.pid
        for _ in range(2):
            evil, *others = await asyncio.gather(
                ask(workers, EVIL, WILD),
                *(ask(workers, pattern(word), "one end two") for word in words),
            )
            assert isinstance(evil, RewardRefused)
            assert evil.is_client_error
            assert "more than 0.5 s of CPU time (reward_cpu_s)" in evil.message
            assert [scores(answer) for answer in others] == [[1.0], [0.5], [0.5]]
        assert workers.pid == pid


async def test_a_pattern_that_is_slow_within_its_limits_is_not_joined_again() -> None:
    slow = {"kind": "pattern", "pattern": "(a|aa)+$", "match": "whole"}
    text = "a" * 26 + "b"  # takes some 0.1 s or more, below what it may take
    async with serving_rewards(reward_cpu_s=20.0, reward_timeout_s=40.0) as workers:
        for reward in (slow, pattern("one")):
            await ask(workers, reward, "a")
        for _ in range(3):
            late, quick = await asyncio.gather(
                ask(workers, slow, text), ask(workers, pattern("one"), "one end")
            )
            assert scores(late) == [0.0]
            assert scores(quick) == [1.0]


async def test_code_of_a_package_shares_no_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plugin(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    note = tmp_path / "pids"
    theirs = {"kind": "harm", "deed": "note"}
    within = {"kind": "weighted", "parts": [{"reward": theirs}, {"reward": BOUNDED[0]}]}
    async with serving_rewards() as workers:
        for _ in range(3):
            asked = [ask(workers, reward, str(note)) for reward in (theirs, within) * 3]
            for answer in await asyncio.gather(*asked):
                scores(answer)
        assert workers.pid is not None
        pids = note.read_text(encoding="utf-8").split()
        assert len(pids) == len(set(pids)) == 18
        assert str(workers.pid) not in pids
