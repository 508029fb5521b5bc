"""The training loop: rates, and a run that was cut off."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from models.distill.batches import Batch
from models.distill.fit import Saves, Schedule, fit


def test_rates_follow_the_step() -> None:
    schedule = Schedule(num_steps=100, peak_lr=1.0, num_warmup_steps=10)
    rates = [schedule.lr(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1.0)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.05, abs=0.01)


def test_a_run_that_was_cut_off_ends_where_an_unbroken_one_does(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole.pt", [8])
    parts = trained(tmp_path / "parts.pt", [4, 8])
    assert torch.equal(whole, parts)


def trained(path: Path, stops: list[int]) -> Tensor:
    """Weights after runs that end at each of `stops`, of a schedule that is long for all."""
    for stop in stops:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)

        def loss_of(batch: Batch, model: nn.Linear = model, stop: int = stop) -> Tensor:
            if int(batch.input_ids) >= stop:
                raise InterruptedError
            return model(batch.weights).square().mean()

        def make_batch(step: int) -> Batch:
            torch.manual_seed(step)
            return Batch(torch.tensor([[step]]), torch.randn(3, 4))

        schedule = Schedule(10, peak_lr=1e-2, num_warmup_steps=1, save_every_steps=4)
        with pytest.raises(InterruptedError):
            fit(model, schedule, make_batch, loss_of, Saves(path=path, resume=True))
    return model.weight.detach()
