"""Another draft model takes over while sessions run: no text changes, and no stream is lost.

Real engines in threads; the swap is the one of a replica (`deployments.engine.swap`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deployments.config.live_draft import WantedDraft
from deployments.config.sections.models import ModelConfig
from deployments.engine.swap import DraftSwap
from deployments.local.pool import LocalEnginePool
from models.engine.draft import DraftEngine
from models.engine.drafting.ended_texts import EndedText
from models.engine.runner import ModelRunner
from models.grammar.masks import NoMaskSource
from router.ports import EngineLease, EnginePool
from tests.harness.local import LocalService, local_service, make_request
from tests.harness.waiting import wait_until

NUM_STREAMS = 16
NUM_TOKENS = 48
PROMPTS = [[3 + i, 1, 4, 1, 5, 9, 2 + i, 6] for i in range(NUM_STREAMS)]


class LocalDraft:
    """Implements `swap.DraftModel` over an engine in a thread."""

    def __init__(self, model: ModelConfig) -> None:
        runner = ModelRunner(model)
        self.engine = DraftEngine(runner, NoMaskSource(), epoch=1)
        self.engine_pool = LocalEnginePool(self.engine, epoch=1, max_model_len=runner.max_model_len)
        self.path = model.model_path
        self.lost = ""
        self.is_ended = False

    @property
    def pool(self) -> EnginePool:
        return self.engine_pool

    @property
    def num_served(self) -> int:
        """Leases that it ever gave."""
        return self.engine_pool.stats().num_leases

    async def emptied(self) -> None:
        await wait_until(lambda: bool(self.lost) or self.engine_pool.stats().num_sessions == 0)

    async def keep_texts(self, *, is_on: bool) -> None:
        self.engine.ended_texts.keep(is_on=is_on)

    async def take_texts(self) -> list[EndedText]:
        return self.engine.ended_texts.take()

    def die(self) -> None:
        """As its process would."""
        self.lost = "killed"
        self.engine_pool.fail(self.lost)

    def end(self) -> None:
        self.is_ended = True
        self.engine_pool.fail("freed")


@dataclass
class LocalDrafts:
    """What a router leases: whichever model serves. `made` are all that there ever were."""

    swap: DraftSwap[LocalDraft]
    made: list[LocalDraft] = field(default_factory=list)

    async def lease(self, session_id: str, *, timeout_s: float) -> EngineLease:
        return await self.swap.serving.pool.lease(session_id, timeout_s=timeout_s)

    async def until(self, *phases: str) -> None:
        """Wait until a swap is in one of these."""
        await wait_until(lambda: self.swap.state.phase in phases)

    async def settled(self) -> str:
        """The phase that a swap ends in, once it has, and the other model is freed."""
        await self.until("promoted", "dropped")
        await wait_until(lambda: len(self.swap.models) == 1)
        return self.swap.state.phase


def model_at(path: str | Path) -> ModelConfig:
    return ModelConfig(model_path=str(path), max_model_len=512, kv_cache_tokens=16384)


@asynccontextmanager
async def local_drafts(first: str | Path, *later: str | Path) -> AsyncIterator[LocalDrafts]:
    """`first` serves until another is wanted.

    Models at `later` are loaded now and handed out when they are wanted: transformers changes
    torch's dtype for the whole process while it loads, under the passes of other threads. In a
    replica it is another process.
    """
    made = [LocalDraft(model_at(first))]
    ready = [LocalDraft(model_at(path)) for path in later]

    async def load(wanted: WantedDraft) -> LocalDraft:
        await asyncio.sleep(0.02)
        found = [draft for draft in ready if draft.path == wanted.model.model_path]
        draft = found[0] if found else LocalDraft(wanted.model)
        if found:
            ready.remove(draft)
        made.append(draft)
        return draft

    drafts = LocalDrafts(DraftSwap(made[0], load, (ValueError, OSError)), made)
    try:
        yield drafts
    finally:
        for draft in (*made, *ready):
            await draft.engine_pool.close()


@asynccontextmanager
async def serving(
    target: str, first: str | Path, *later: str | Path
) -> AsyncIterator[tuple[LocalService, LocalDrafts]]:
    async with (
        local_drafts(first, *later) as drafts,
        local_service(
            Path(target),
            Path(first),
            link_to=lambda name, pool: drafts if name == "draft" else pool,
        ) as service,
    ):
        yield service, drafts


async def answer(service: LocalService, stream: int, turn: int, temperature: float) -> list[int]:
    request = make_request(
        f"s{stream}-{turn}",
        PROMPTS[stream],
        k=4,
        max_tokens=NUM_TOKENS,
        temperature=temperature,
        seed=100 * turn + stream,
    )
    ids, _, _ = await service.generate(request)
    return ids


async def answers(service: LocalService, turn: int = 0) -> list[list[int]]:
    one_each = [answer(service, stream, turn, 1.0) for stream in range(NUM_STREAMS)]
    return list(await asyncio.gather(*one_each))


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "seeded"])
async def test_a_swap_under_16_streams_changes_no_text(
    tiny_target: str, tiny_draft: str, good_draft: Path, temperature: float
) -> None:
    """Streams that run stay with the old model to their end, later ones have the new one."""
    async with local_service(Path(tiny_target), None) as service:
        plain = [
            await asyncio.gather(
                *(answer(service, stream, turn, temperature) for stream in range(NUM_STREAMS))
            )
            for turn in range(3)
        ]

    async with serving(tiny_target, tiny_draft, good_draft) as (service, drafts):
        [old] = drafts.made

        async def stream(number: int) -> list[list[int]]:
            texts = []
            for turn in range(3):
                if (number, turn) == (0, 1):  # one is over, the others are on their way
                    drafts.swap.want(WantedDraft(model=model_at(good_draft)))
                if turn == 2:
                    await drafts.until("promoted")
                    assert drafts.swap.serving is not old
                texts.append(await answer(service, number, turn, temperature))
            return texts

        streams = [asyncio.create_task(stream(number)) for number in range(NUM_STREAMS)]
        found = await asyncio.gather(*streams)
        assert [list(turn) for turn in zip(*found, strict=True)] == plain
        assert await drafts.settled() == "promoted"
        _, new = drafts.made
        assert drafts.swap.models == [new]
        assert old.is_ended
        assert old.num_served >= NUM_STREAMS
        assert new.num_served >= NUM_STREAMS
        assert await service.freed()


async def test_a_session_keeps_its_model_until_it_ends(
    tiny_target: str, tiny_draft: str, good_draft: Path
) -> None:
    async with serving(tiny_target, tiny_draft, good_draft) as (service, drafts):
        [old] = drafts.made
        held = await old.pool.lease("long", timeout_s=5.0)
        drafts.swap.want(WantedDraft(model=model_at(good_draft)))
        await drafts.until("promoted")
        await answers(service)
        assert drafts.swap.models == [drafts.made[1], old]
        assert not old.is_ended
        await held.release()
        assert await drafts.settled() == "promoted"
        assert old.is_ended


@pytest.mark.parametrize("is_better", [True, False], ids=["better", "worse"])
async def test_what_both_say_of_texts_that_end_decides(
    tiny_target: str, tiny_draft: str, good_draft: Path, is_better: bool
) -> None:
    first, other = (tiny_draft, good_draft) if is_better else (good_draft, tiny_draft)
    async with serving(tiny_target, first, other) as (service, drafts):
        expected = await answers(service)
        drafts.swap.want(
            WantedDraft(model=model_at(other), promote="better", compare_answers=NUM_STREAMS)
        )
        await drafts.until("comparing")
        assert await answers(service) == expected
        assert await drafts.settled() == ("promoted" if is_better else "dropped")
        old, new = drafts.swap.state.old, drafts.swap.state.new
        # Of each answer the draft model has heard all but the last round.
        assert NUM_STREAMS * (NUM_TOKENS - 6) < old.num_tokens == new.num_tokens
        assert (new.num_matched > 2 * old.num_matched) is is_better
        assert old.num_matched != new.num_matched
        assert drafts.swap.serving.path == str(other if is_better else first)
        assert [draft.is_ended for draft in drafts.made] == [is_better, not is_better]
        assert await answers(service) == expected
        await drafts.swap.serving.keep_texts(is_on=False)
        assert await drafts.swap.serving.take_texts() == []


async def test_what_cannot_be_loaded_leaves_the_old_one_serving(
    tiny_target: str, tiny_draft: str, tmp_path: Path
) -> None:
    async with serving(tiny_target, tiny_draft) as (service, drafts):
        expected = await answers(service)
        drafts.swap.want(WantedDraft(model=model_at(tmp_path)))
        assert await drafts.settled() == "dropped"
        assert await answers(service) == expected
        assert len(drafts.made) == 1
        assert not drafts.made[0].is_ended


async def test_one_that_dies_while_it_is_compared_is_dropped(
    tiny_target: str, tiny_draft: str, good_draft: Path
) -> None:
    async with serving(tiny_target, tiny_draft, good_draft) as (service, drafts):
        drafts.swap.want(WantedDraft(model=model_at(good_draft), promote="better"))
        await drafts.until("comparing")
        drafts.made[1].die()
        assert await drafts.settled() == "dropped"
        await answers(service)
        assert drafts.swap.models == [drafts.made[0]]


async def test_without_traffic_it_is_dropped_in_time(
    tiny_target: str,
    tiny_draft: str,
    good_draft: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("ray"), "propagate", True)
    async with serving(tiny_target, tiny_draft, good_draft) as (_, drafts):
        wanted = WantedDraft(
            model=model_at(good_draft), promote="better", compare_answers=3, compare_timeout_s=0.2
        )
        drafts.swap.want(wanted)
        assert await drafts.settled() == "dropped"
        assert drafts.swap.models == [drafts.made[0]]
    assert "0 of 3 answers were compared in compare_timeout_s, 0.2 s" in caplog.text


async def test_a_newer_wish_ends_the_older_and_the_first_model_may_come_back(
    tiny_target: str, tiny_draft: str, good_draft: Path
) -> None:
    async with serving(tiny_target, tiny_draft, good_draft, good_draft, tiny_draft) as (
        service,
        drafts,
    ):
        drafts.swap.want(WantedDraft(model=model_at(good_draft), promote="better"))
        await drafts.until("comparing")
        drafts.swap.want(WantedDraft(model=model_at(good_draft)))
        await drafts.until("promoted")
        assert await drafts.settled() == "promoted"
        assert [draft.is_ended for draft in drafts.made] == [True, True, False]
        drafts.swap.want(WantedDraft(model=model_at(tiny_draft)))
        await drafts.until("loading")
        assert await drafts.settled() == "promoted"
        assert drafts.swap.serving.path == tiny_draft
        await answers(service)


async def test_the_model_that_serves_is_not_loaded_again(tiny_target: str, tiny_draft: str) -> None:
    async with serving(tiny_target, tiny_draft) as (_, drafts):
        drafts.swap.want(WantedDraft(model=model_at(tiny_draft)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert drafts.swap.state.phase == "none"
        assert len(drafts.made) == 1
