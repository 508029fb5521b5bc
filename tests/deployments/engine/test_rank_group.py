"""What counts as a lost group. How processes are started and ended: tests/integration."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from deployments.config.sections.models import ModelConfig
from deployments.engine.loop import LoopStats
from deployments.engine.rank import weights_name
from deployments.engine.rank_group import rank_environment, stall_complaint
from models.layers.linear import can_pack

MODEL = ModelConfig(model_path="x", stall_timeout_s=10.0, step_timeout_s=120.0)


def stats(*, step_age_s: float | None, most_step_s: float = math.inf) -> LoopStats:
    return LoopStats(
        num_ticks=7,
        num_steps=3,
        num_sessions=1,
        num_used_blocks=1,
        is_stepping=step_age_s is not None,
        step_age_s=step_age_s or 0.0,
        most_step_s=most_step_s,
    )


@pytest.mark.parametrize(
    ("step_age_s", "still_s", "complaint"),
    [
        (None, 9.0, ""),
        (None, 11.0, "no turn of the engine loop for 11.0 s"),
        (110.0, 110.0, ""),
        (121.0, 121.0, "one pass takes 121.0 s"),
    ],
    ids=["idle", "stands_still", "long_prefill", "hangs"],
)
def test_a_long_pass_is_no_stall_until_its_own_limit(
    step_age_s: float | None, still_s: float, complaint: str
) -> None:
    found = stall_complaint(MODEL, stats(step_age_s=step_age_s), still_s)
    assert found.startswith(complaint)
    assert bool(found) == bool(complaint)


@pytest.mark.parametrize(
    ("most_step_s", "step_age_s", "is_lost"),
    [
        (0.2, 29.0, False),  # may compile a kernel
        (0.2, 31.0, True),
        (50.0, 49.0, False),  # 5 times what a long prompt takes here
        (50.0, 51.0, True),
        (1e9, 121.0, True),
    ],
)
def test_a_hang_is_a_loss_long_before_the_limit_of_passes_that_are_not_known(
    most_step_s: float, step_age_s: float, is_lost: bool
) -> None:
    found = stats(step_age_s=step_age_s, most_step_s=most_step_s)
    assert bool(stall_complaint(MODEL, found, step_age_s)) == is_lost


def test_an_early_loss_is_never_sooner_than_the_limit_of_silence() -> None:
    model = MODEL.model_copy(update={"step_timeout_s": 20.0})
    assert stall_complaint(model, stats(step_age_s=9.0, most_step_s=0.1), 9.0) == ""
    assert stall_complaint(model, stats(step_age_s=11.0, most_step_s=0.1), 11.0)


# Prints by how many MiB two layers make a process grow that see every row count up to 192.
_GROWTH = """
import psutil, torch
from models.layers.linear import PackedLinear
from models.layers.linear import can_pack

torch.set_num_threads(1)
layers = [PackedLinear(torch.ones(width, 256).bfloat16(), None) for width in (512, 1024)]
process = psutil.Process()
before = process.memory_info().rss
for num_rows in range(1, 193):
    for layer in layers:
        layer(torch.ones(num_rows, 256).bfloat16())
print((process.memory_info().rss - before) / 2**20)
"""


@pytest.mark.slow
def test_passes_of_many_sizes_do_not_make_a_rank_grow() -> None:
    """oneDNN's caches stay smaller than they are without the environment of a rank."""
    if not can_pack(torch.bfloat16):
        pytest.skip("this CPU or torch has no packed kernel for bfloat16")
    told = _growth_mib(rank_environment(MODEL))
    untold = _growth_mib({"OMP_NUM_THREADS": "1"})
    if untold < 50.0:
        pytest.skip(f"on this CPU the caches hold {untold:.0f} MiB only")
    assert told < untold * 2 / 3


def _growth_mib(environment: dict[str, str]) -> float:
    result = subprocess.run(
        [sys.executable, "-c", _GROWTH],
        env=os.environ | environment,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    return float(result.stdout)


def test_weights_of_one_config_and_checkpoint_have_one_name(tmp_path: Path) -> None:
    def name(rank: int = 0, **keys: Any) -> str:
        return weights_name(ModelConfig(model_path=str(tmp_path), **keys), rank)

    (tmp_path / "model.safetensors").write_bytes(b"1234")
    first = name()
    assert name() == first
    assert len({first, name(rank=1), name(dtype="float32")}) == 3
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    assert name() != first, "the checkpoint has changed"
