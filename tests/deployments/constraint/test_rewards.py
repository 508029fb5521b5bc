"""Rewards in their processes: what they answer, and what is left of those that do harm."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from models.protocol.rewards import RewardRefused, RewardScored
from tests.cases.rewards.plugin import write_plugin
from tests.harness.rewards.workers import ask, serving_rewards
from tests.harness.waiting import wait_until

CAT: dict[str, Any] = {"kind": "words", "required": ["cat"]}
TIGHT = {"reward_cpu_s": 0.3, "reward_memory_mb": 64, "reward_timeout_s": 2.0}


@pytest.fixture
def _plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_plugin(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def harm(deed: str) -> dict[str, str]:
    return {"kind": "harm", "deed": deed}


def children_of(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")
    return [int(child) for child in listed.split()]


async def test_texts_are_scored_in_their_order() -> None:
    async with serving_rewards() as workers:
        answer = await ask(workers, CAT, "a ", ["dog ", "cat ", "cat"])
        assert isinstance(answer, RewardScored)
        assert [score.score for score in answer.scores] == [0.0, 1.0, 0.0]
        ended = await ask(workers, CAT, "a ", ["cat", "dog"], is_end=True)
        assert isinstance(ended, RewardScored)
        assert [(score.is_met, score.can_be_met) for score in ended.scores] == [
            (True, True),
            (False, False),
        ]
        assert [score.value for score in ended.scores] == [1.0, 0.0]


async def test_a_question_that_comes_again_is_answered_once_to_the_newest() -> None:
    async with serving_rewards() as workers:
        first = asyncio.ensure_future(ask(workers, CAT, "cat ", seq=10_000))
        await asyncio.sleep(0)
        second = await ask(workers, CAT, "cat ", seq=10_000)
        assert isinstance(second, RewardScored)
        assert not first.done(), "a doubled question was computed twice"
        first.cancel()
        third = await ask(workers, CAT, "cat ", seq=10_000)  # its answer was lost
        assert third == second


async def test_a_wrong_reward_is_the_clients_error() -> None:
    async with serving_rewards() as workers:
        answer = await ask(workers, {"kind": "words"})
        assert isinstance(answer, RewardRefused)
        assert answer.is_client_error
        assert answer.message.startswith("required: must have a word")
        assert workers.num_refused == 1


@pytest.mark.usefixtures("_plugged")
@pytest.mark.parametrize(
    ("deed", "reason"),
    [
        ("spin", r"more than 0.3 s of CPU time \(reward_cpu_s\)"),
        ("sleep", r"within 2 s \(reward_timeout_s\)"),
        ("deaf", r"within 2 s \(reward_timeout_s\)"),
        ("memory", r"more memory than 64 MB \(reward_memory_mb\)"),
        ("crash", r"ended the process it was computed in \(status -11\)"),
        ("leave", r"ended the process it was computed in \(status 0\)"),
        ("close", r"ended the process|within 2 s"),
        ("raise", "IndexError: list index out of range"),
        ("too much", "within 0..1, got 2.0"),
        ("not a number", "within 0..1, got nan"),
        ("nothing like a score", "AttributeError"),
    ],
)
async def test_harm_ends_its_own_question(deed: str, reason: str) -> None:
    async with serving_rewards(**TIGHT) as workers:
        first = await ask(workers, CAT, "cat ")
        assert isinstance(first, RewardScored)
        pid = workers.pid
        assert pid is not None
        began_s = time.monotonic()
        harmed, spared = await asyncio.gather(
            ask(workers, harm(deed)), ask(workers, CAT, "cat ", ["", "dog"])
        )
        assert isinstance(harmed, RewardRefused)
        assert harmed.is_client_error
        with pytest.raises(ValueError, match=reason):
            raise ValueError(harmed.message)
        assert time.monotonic() - began_s < 10.0
        assert isinstance(spared, RewardScored), "a neighbour was hurt"
        assert workers.pid == pid, "the process of all rewards was hurt"
        await wait_until(lambda: not children_of(pid))  # nothing is left


@pytest.mark.usefixtures("_plugged")
async def test_a_neighbour_does_not_wait_for_a_slow_reward() -> None:
    async with serving_rewards(**TIGHT) as workers:
        await ask(workers, CAT)
        sleeping = asyncio.ensure_future(ask(workers, harm("sleep")))
        for _ in range(5):
            assert isinstance(await ask(workers, CAT, "cat "), RewardScored)
        assert not sleeping.done()
        assert isinstance(await sleeping, RewardRefused)


@pytest.mark.usefixtures("_plugged")
async def test_a_costly_reward_is_refused_at_once_the_next_time() -> None:
    async with serving_rewards(**TIGHT) as workers:
        first = await ask(workers, harm("sleep"))
        began_s = time.monotonic()
        second = await ask(workers, harm("sleep"))
        assert time.monotonic() - began_s < 1.5
        assert isinstance(first, RewardRefused)
        assert isinstance(second, RewardRefused)
        assert second.message == first.message
        assert isinstance(await ask(workers, {"kind": "vowels", "least": 1}, "a"), RewardScored)


@pytest.mark.usefixtures("_plugged")
async def test_what_a_reward_has_started_ends_with_it(tmp_path: Path) -> None:
    async with serving_rewards() as workers:
        note = tmp_path / "pid"
        assert isinstance(await ask(workers, harm("child"), str(note)), RewardScored)
        pid = int(note.read_text())
        await wait_until(lambda: not _runs(pid))


@pytest.mark.usefixtures("_plugged")
async def test_rewards_come_back_when_their_process_was_ended() -> None:
    async with serving_rewards() as workers:
        await ask(workers, CAT)
        before = workers.pid
        answer = await ask(workers, harm("end all"))
        assert isinstance(answer, RewardRefused)
        assert not answer.is_client_error, "the sender may ask again"
        assert isinstance(await ask(workers, CAT, "cat "), RewardScored)
        assert workers.pid != before


async def test_a_process_that_is_stopped_is_replaced() -> None:
    async with serving_rewards(mask_timeout_s=1.0) as workers:
        await ask(workers, CAT)
        assert workers.pid is not None
        os.kill(workers.pid, signal.SIGSTOP)
        answer = await ask(workers, CAT)
        assert isinstance(answer, RewardRefused)
        assert not answer.is_client_error
        assert isinstance(await ask(workers, CAT), RewardScored)


async def test_nothing_is_left_after_the_end() -> None:
    async with serving_rewards() as workers:
        await ask(workers, CAT)
        pid = workers.pid
        assert pid is not None
    assert not _runs(pid)
    answer = await ask(workers, CAT)
    assert isinstance(answer, RewardRefused)
    assert answer.message == "the service stops"


def _runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
