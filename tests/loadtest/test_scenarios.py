"""The experiments of scenarios vary every axis, over pairs that can be grown."""

from __future__ import annotations

from loadtest.experiments.ahead import AHEAD
from loadtest.experiments.scenarios import SCENARIOS
from loadtest.grow.presets import PRESETS
from loadtest.grow.source import Source, check_size

CELLS = [cell for one in SCENARIOS.values() for cell in one.cells]


def test_every_axis_is_varied() -> None:
    assert len(CELLS) == 85
    assert all(len(one.cells) == len(set(one.cells)) for one in SCENARIOS.values())
    assert {batch for _, _, batch in CELLS} == {1, 4, 8, 16}
    assert {stage for stage, _, _ in CELLS} == {"engine", "link", "http"}
    words = {word for _, workload, _ in CELLS for word in workload.split()}
    assert words == {
        *("story", "code", "extraction", "turning", "mixed"),
        *("T=0.7", "T=1.3", "n=8", "n=200"),
    }
    pairs = {one.pair for one in SCENARIOS.values()}
    others = {"67m-9m", *(one.pair for one in AHEAD.values())} - {"a80-c15"}
    assert pairs == {"demo", "smollm2", "a95to30-c5", *PRESETS} - others


def test_mixed_traffic_has_an_aim_of_its_own() -> None:
    for one in SCENARIOS.values():
        for _, workload, _ in one.cells:
            aims = {
                goal.at_least
                for goal in one.goals
                if goal.by == "ratio to best" and workload in goal.only["workload"]
            }
            assert aims == {1.0 if workload == "mixed" else 0.95}


def test_the_sources_of_presets_can_be_grown_to_their_sizes() -> None:
    for preset in PRESETS.values():
        source = Source.load(preset.source)
        for size in (preset.target, preset.draft):
            check_size(source, size)
    assert PRESETS["a95-c1"].draft == Source.load(PRESETS["a95-c1"].source).size
