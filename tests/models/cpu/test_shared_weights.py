"""Weights in memory that two processes share: the same bytes, one place, no process's death."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from models.config import EngineConfig
from models.cpu import shared_weights
from models.cpu.shared_weights import SharedWeights
from models.cpu.weight_memory import weights_in
from models.engine.runner import ModelRunner
from tests.fakes.engines import text_logits
from tests.harness.local import DEMO

WEIGHTS = [
    torch.arange(10, dtype=torch.float32).view(2, 5),
    torch.full((3, 7), 0.1, dtype=torch.bfloat16),
    torch.empty(0),
    torch.arange(100, dtype=torch.int8).view(4, 25).T,
]
FIRST = """
import sys, torch
from models.cpu.shared_weights import SharedWeights
memory = SharedWeights()
memory.keep(torch.arange(10.0))
print(memory.path, flush=True)
sys.stdin.read()
"""


def test_a_spare_reads_the_first_ones_weights() -> None:
    first = SharedWeights()
    of_first = [first.keep(weight) for weight in WEIGHTS]
    spare = SharedWeights(first.path)
    of_spare = [spare.keep(weight) for weight in WEIGHTS]
    for weight, one, other in zip(WEIGHTS, of_first, of_spare, strict=True):
        assert torch.equal(one, weight)
        assert torch.equal(other, weight)
        assert one.shape == other.shape == weight.shape
    of_first[0][1, 2] = 70.0
    assert of_spare[0][1, 2] == 70.0, "they are not in one place"
    assert first.num_bytes == spare.num_bytes == sum(weight.nbytes for weight in WEIGHTS)


def test_weights_larger_than_a_piece_of_memory_have_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_weights, "_CHUNK_BYTES", 4096)
    weights = [torch.full((n,), float(n)) for n in (10, 1000, 30, 5000, 2)]
    first = SharedWeights()
    spare = SharedWeights(first.path)
    for weight in weights:
        one, other = first.keep(weight), spare.keep(weight)
        assert torch.equal(one, weight)
        one[0] = -1.0
        assert other[0] == -1.0
        assert torch.equal(other[1:], weight[1:]), "another weight is in its place"


@pytest.mark.parametrize("weights", [[torch.zeros(4)], [torch.ones(4), torch.ones(8)]])
def test_weights_that_are_not_the_first_ones_are_refused(weights: list[Tensor]) -> None:
    first = SharedWeights()
    first.keep(torch.ones(4))
    spare = SharedWeights(first.path)
    *same, other = weights
    for weight in same:
        spare.keep(weight)
    with pytest.raises(ValueError, match="the checkpoint has changed"):
        spare.keep(other)


def test_more_weights_than_the_first_one_has_are_refused() -> None:
    spare = SharedWeights(SharedWeights().path)
    with pytest.raises(ValueError, match="more weights than the serving one"):
        spare.keep(torch.ones(4))


def test_weights_outlive_the_process_that_loaded_them() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", FIRST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        path = process.stdout.readline().strip()
        spare = SharedWeights(path)
        weight = spare.keep(torch.arange(10.0))
        process.kill()
    assert not Path(path).exists()
    assert torch.equal(weight, torch.arange(10.0))
    again = SharedWeights(spare.path).keep(torch.arange(10.0))
    again[3] = -1.0
    assert weight[3] == -1.0, "the next spare has a copy"


def test_a_model_whose_weights_are_shared_computes_the_same_bits() -> None:
    config = EngineConfig(model_path=str(DEMO / "target"), max_model_len=256, kv_cache_tokens=256)
    memory = SharedWeights()
    with weights_in(memory):
        first = ModelRunner(config)
    spare_memory = SharedWeights(memory.path)
    with weights_in(spare_memory):
        spare = ModelRunner(config)
    alone = ModelRunner(config)
    assert spare_memory.num_bytes == memory.num_bytes
    assert memory.num_bytes >= 0.9 * first.weight_bytes, "most weights are not in it"
    logits = [text_logits(runner, range(5, 25)) for runner in (first, spare, alone)]
    assert torch.equal(logits[0], logits[2])
    assert torch.equal(logits[1], logits[2])
