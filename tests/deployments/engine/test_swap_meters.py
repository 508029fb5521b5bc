"""Swaps of the draft model: who ends when, what metrics say, and whether there is room for one."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from deployments.config.live_draft import WantedDraft
from deployments.config.sections.models import LinkConfig, ModelConfig
from deployments.engine import loaded_model, swap
from deployments.engine.room import free_of_group, free_of_node, refuse_without_room
from deployments.engine.swap import DraftSwap, SwapState
from deployments.engine.swap_meters import SwapMeters
from deployments.serve.instruments import Meters
from models.protocol.errors import Unavailable
from router.stats import DraftReplay
from tests.harness.metric_pages import samples
from tests.harness.waiting import wait_until

LABELS = {"model_name": "tiny", "engine": "draft"}


class FakeDraft:
    """Implements `swap.DraftModel` without an engine; forgets texts once it may."""

    pool: Any = None
    lost = ""
    is_ended = False

    def __init__(self, path: str, late: str = "") -> None:
        self.path, self._late = path, late
        self.may_forget = asyncio.Event()

    async def emptied(self) -> None:
        pass

    async def keep_texts(self, *, is_on: bool) -> None:
        if self._late == "keep":
            raise TimeoutError
        if not is_on:
            await self.may_forget.wait()

    async def take_texts(self) -> list[Any]:
        if self._late == "take":
            self.may_forget.set()
            raise TimeoutError
        return []

    def end(self) -> None:
        self.is_ended = True


def wanted(path: str, **terms: Any) -> WantedDraft:
    return WantedDraft(model=ModelConfig(model_path=path), **terms)


async def drafts(model: object) -> None:
    """As `swap._check_answers`."""


async def test_a_wish_waits_for_all_that_were_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap, "_check_answers", drafts)
    made = [FakeDraft("a")]

    async def load(wanted: WantedDraft) -> FakeDraft:
        made.append(FakeDraft(wanted.model.model_path))
        return made[-1]

    swapped = DraftSwap(made[0], load, (TimeoutError,))
    swapped.want(wanted("b", promote="better"))
    await wait_until(lambda: swapped.state.phase == "comparing")
    for path in "cd":  # "b" cannot end yet, "c" never begins
        swapped.want(wanted(path))
        for _ in range(20):
            await asyncio.sleep(0)
    assert [model.path for model in made] == ["a", "b"]
    made[0].may_forget.set()
    await wait_until(lambda: swapped.serving.path == "d" and swapped.models == [made[2]])
    assert swapped.state.phase == "promoted"
    assert [model.is_ended for model in made] == [True, True, False]


@pytest.mark.parametrize("late", ["load", "keep", "take"])
async def test_what_is_late_is_named(
    late: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("ray"), "propagate", True)
    monkeypatch.setattr(swap, "_check_answers", drafts)

    async def load(wanted: WantedDraft) -> FakeDraft:
        if late == "load":
            raise TimeoutError
        return FakeDraft("b")

    swapped = DraftSwap(FakeDraft("a", late), load, (TimeoutError,))
    swapped.want(wanted("b", promote="better"))
    await wait_until(lambda: swapped.state.phase == "dropped")
    assert "dropped, a serves on: TimeoutError" in caplog.text


class SilentRanks:
    """Ranks whose leader never answers."""

    def __init__(self, *_: object, **__: object) -> None:
        self.leader = self.admit = self.keep_texts = self.take_texts = self

    async def remote(self, *_: object) -> None:
        await asyncio.Event().wait()

    def kill(self) -> None:
        pass


async def test_a_silent_leader_is_told_with_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_model, "RankGroup", SilentRanks)
    monkeypatch.setattr(loaded_model, "CONTROL_TIMEOUT_S", 0.0)
    config = ModelConfig(model_path="a")
    model = loaded_model.LoadedModel("draft", config, LinkConfig(), print, print)
    for call in (
        model.keep_texts(is_on=True),
        model.take_texts(),
        model.lease("s", timeout_s=0.0),
    ):
        with pytest.raises(Unavailable, match="leader has not answered within 0 s"):
            await call
    model.end()
    await asyncio.gather(*model.tasks)


def test_a_swap_is_seen_with_what_both_models_said() -> None:
    meters = Meters(LABELS)
    swaps = SwapMeters(meters)
    state = SwapState(phase="comparing")
    state.old.add(DraftReplay((True, False, False)))
    state.new.add(DraftReplay((True, True, False)))
    for _ in range(2):  # what was counted is not counted again
        swaps.publish(state)
    seen = samples(meters.text(), LABELS)
    assert seen["outrider:draft_swap:comparing"] == 1.0
    assert (
        sum(value for name, value in seen.items() if name.startswith("outrider:draft_swap:")) == 1
    )
    assert seen["outrider:draft_swap_tokens_total:old:yes"] == 1
    assert seen["outrider:draft_swap_tokens_total:old:no"] == 2
    assert seen["outrider:draft_swap_tokens_total:new:yes"] == 2
    later = SwapState(phase="dropped")
    later.new.add(DraftReplay((True,)))
    swaps.is_refused = True
    swaps.publish(later)
    seen = samples(meters.text(), LABELS)
    assert seen["outrider:draft_swap:dropped"] == 1.0
    assert seen["outrider:draft_swap_tokens_total:new:yes"] == 3
    assert seen["outrider:draft_swap_refused"] == 1.0


def test_a_model_that_has_no_room_is_refused(tiny_draft: str) -> None:
    model = ModelConfig(model_path=tiny_draft, max_model_len=256, kv_cache_tokens=1024)
    refuse_without_room(model)
    huge = model.model_copy(update={"kv_cache_tokens": 1 << 44})
    with pytest.raises(ValueError, match=r"takes .* MB of weights and KV beside the model that"):
        refuse_without_room(huge)


def test_free_memory_is_the_containers_where_it_has_a_limit(tmp_path: Path) -> None:
    assert free_of_group(tmp_path) is None
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert free_of_group(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    assert free_of_group(tmp_path) == 450
    assert free_of_node(tmp_path / "meminfo") is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    4 kB\n")
    assert free_of_node(tmp_path / "meminfo") == 4096
