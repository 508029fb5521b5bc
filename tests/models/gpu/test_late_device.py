"""A device that computes while the host goes on: a pass's time is known when it was waited for."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

import models.device
import models.engine.sampler
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import Sampling
from tests.cases.messages import opening, verifying
from tests.fakes.engines import EPOCH, make_runner

ROW_S = 0.01


class LateDevice:
    """A clock, and a device that is busy until some time on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, runner: ModelRunner) -> None:
        self.now_s = self.busy_until_s = 0.0
        compute = runner._compute

        def launched(sequences: Any, drawn_ids: Tensor | None = None) -> Tensor:
            num_rows = sum(len(rows.token_ids) for rows in sequences)
            self.busy_until_s = max(self.now_s, self.busy_until_s) + ROW_S * num_rows
            return compute(sequences, drawn_ids)

        def fetched(tensor: Tensor) -> list[Any]:
            self.wait()
            return models.device.fetch(tensor)

        monkeypatch.setattr(runner, "_compute", launched)
        monkeypatch.setattr(runner, "wait", self.wait)
        monkeypatch.setattr(models.engine.sampler, "fetch", fetched)

    def __call__(self) -> float:
        return self.now_s

    def wait(self) -> None:
        self.now_s = max(self.now_s, self.busy_until_s)


def test_a_chunk_of_a_prompt_is_timed_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It draws nothing, so nothing is fetched: launching it takes no time, computing it does."""
    runner = make_runner()
    device = LateDevice(monkeypatch, runner)
    engine = TargetEngine(runner, NoMaskSource(), EPOCH, clock=device)
    engine.submit(opening("s", Sampling(temperature=0.0), 150), "r")
    engine.submit(verifying("s", 1, list(range(1, 151)), [], run_on=2), "r")
    durations: list[float] = []
    while engine.has_work and len(durations) < 10:
        before = engine.load().passes_s
        engine.step()
        durations.append(engine.load().passes_s - before)
    chunks = [64, 64, 22, 1, 1]
    assert durations[: len(chunks)] == pytest.approx([ROW_S * rows for rows in chunks])
