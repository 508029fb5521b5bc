"""What metrics say of a swap of the draft model, and whether there is room for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.config.sections.models import ModelConfig
from deployments.engine.room import free_of_group, free_of_node, refuse_without_room
from deployments.engine.swap import SwapState
from deployments.engine.swap_meters import SwapMeters
from deployments.serve.instruments import Meters
from router.stats import DraftReplay
from tests.harness.metric_pages import samples

LABELS = {"model_name": "tiny", "engine": "draft"}


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
