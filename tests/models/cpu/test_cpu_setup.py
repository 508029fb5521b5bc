"""Where the compiled kernels are used, and what serves where they are not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from models.checkpoint.loader import load_checkpoint
from models.cpu import ops as cpu_kernels
from models.cpu import setup as cpu_setup
from models.cpu.batch import LaneStorage
from models.cpu.draw import draw_by_terms
from models.cpu.fused_decoder import FusedDecoder
from models.cpu.kernels.emit import NUM_LANES
from models.cpu.setup import pack, uses_kernels
from models.engine.runner import ModelRunner
from models.kv.storage import KVStorage
from models.layers.linear import can_pack
from tests.fakes.engines import text_logits, tiny_config

MakeCheckpoint = Callable[..., str]


def test_draws_are_the_kernels_where_the_passes_are(
    tiny_target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[object] = []
    monkeypatch.setattr(cpu_setup, "use_on_cpu", used.append)
    ModelRunner(tiny_config(tiny_target, attention="reference"))
    assert not used
    ModelRunner(tiny_config(tiny_target))
    assert used == [draw_by_terms]


def test_on_a_cpu_they_are_used() -> None:
    assert uses_kernels(tiny_config("m"), 64)
    assert uses_kernels(tiny_config("m", dtype="bfloat16", block_size=48, device="cpu:0"), 80)


@pytest.mark.parametrize(
    ("changes", "head_dim", "reason"),
    [
        ({"attention": "reference"}, 64, ""),
        ({"attention": "varlen"}, 64, ""),
        ({"dtype": "float16"}, 64, "dtype is float16, they are for bfloat16 and float32"),
        ({"block_size": 20}, 64, "block_size is 20, no multiple of 16"),
        ({}, 72, "the model's heads have 72 numbers, no multiple of 16"),
    ],
)
def test_what_they_cannot_do_is_said_and_left_to_torch(
    changes: dict[str, Any], head_dim: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert not uses_kernels(tiny_config("m", **changes), head_dim)
    assert reason in caplog.text


def test_without_numba_torch_serves(
    tiny_target: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_kernels = ModelRunner(tiny_config(tiny_target))
    monkeypatch.setitem(sys.modules, "numba", None)
    without = ModelRunner(tiny_config(tiny_target))
    assert "numba cannot be imported" in caplog.text
    assert isinstance(with_kernels.backend.storage, LaneStorage)
    assert isinstance(without.backend.storage, KVStorage)
    assert without.batch_invariant
    torch.testing.assert_close(
        text_logits(without, range(40)), text_logits(with_kernels, range(40)), rtol=1e-4, atol=1e-4
    )


def test_layers_are_taken_apart_and_packed(tiny_target: str) -> None:
    if not can_pack(torch.float32):
        pytest.skip("this CPU or torch has no packed kernel for float32")
    own = tiny_config(tiny_target)
    model = load_checkpoint(own).model
    packed = pack(model, own, has_kernels=True, is_shared=False)
    assert isinstance(packed.forward, FusedDecoder)
    left = sum(parameter.numel() for parameter in model.model.layers.parameters())
    assert left == 2 * 2 * 64  # the norms


def test_what_is_asked_is_what_kernels_need() -> None:
    """Written down where numba need not be: other sizes would be read past their ends."""
    assert cpu_setup._LANES == NUM_LANES
    assert {getattr(torch, name) for name in cpu_setup._DTYPES} == set(cpu_kernels._ATTENDS)


def test_heads_of_other_sizes_are_served(make_tiny_llama: MakeCheckpoint) -> None:
    path = make_tiny_llama(seed=5, hidden_size=32)  # four heads of 8
    runner = ModelRunner(tiny_config(path))
    assert isinstance(runner.backend.storage, KVStorage)
    assert runner.batch_invariant
    assert text_logits(runner, range(40)).isfinite().all()


def test_only_what_uses_them_imports_numba() -> None:
    """A machine with a GPU needs neither the kernels nor their compiler."""
    code = "import sys, models.engine.base, models.engine.runner; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
