"""Weights in memory that two processes share: the same bytes, one place, no process's death."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

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
memory = SharedWeights(sys.argv[1])
memory.keep(torch.arange(10.0))
memory.finish()
print("whole", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def name() -> str:
    """The name of a model that no other test has."""
    return uuid.uuid4().hex


def whole(name: str, weights: list[Tensor]) -> tuple[SharedWeights, list[Tensor]]:
    """Memory of a first process that has laid out these weights."""
    first = SharedWeights(name)
    assert first.is_first
    kept = [first.keep(weight) for weight in weights]
    first.finish()
    return first, kept


def test_another_process_reads_the_first_ones_weights(name: str) -> None:
    first, of_first = whole(name, WEIGHTS)
    other = SharedWeights(name)
    assert not other.is_first
    of_other = [other.keep(weight) for weight in WEIGHTS]
    for weight, mine, its in zip(WEIGHTS, of_first, of_other, strict=True):
        assert torch.equal(mine, weight)
        assert torch.equal(its, weight)
        assert mine.shape == its.shape == weight.shape
    of_first[0][1, 2] = 70.0
    assert of_other[0][1, 2] == 70.0, "they are not in one place"
    assert first.num_bytes == other.num_bytes == sum(weight.nbytes for weight in WEIGHTS)


def test_memory_that_is_not_whole_yet_or_of_another_model_is_not_found(name: str) -> None:
    first = SharedWeights(name)
    first.keep(torch.ones(4))
    assert SharedWeights(name).is_first
    first.finish()
    assert SharedWeights(f"{name}0").is_first, "the name only begins alike"
    assert not SharedWeights(name).is_first


def test_weights_larger_than_a_piece_of_memory_have_their_own(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_weights, "_CHUNK_BYTES", 4096)
    weights = [torch.full((n,), float(n)) for n in (10, 1000, 30, 5000, 2)]
    _, kept = whole(name, weights)
    other = SharedWeights(name)
    for weight, mine in zip(weights, kept, strict=True):
        its = other.keep(weight)
        mine[0] = -1.0
        assert its[0] == -1.0
        assert torch.equal(its[1:], weight[1:]), "another weight is in its place"


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_from_the_first_weight_that_has_changed_each_has_its_own(name: str, changed: int) -> None:
    _, kept = whole(name, [torch.ones(4), torch.ones(4)])
    weights = [torch.ones(4), torch.ones(4), torch.ones(4)]
    if changed < 2:
        weights[changed] = torch.zeros(4)
    other = SharedWeights(name)
    its = [other.keep(weight) for weight in weights]
    assert all(torch.equal(one, weight) for one, weight in zip(its, weights, strict=True))
    assert other.num_bytes == 48
    for number, mine in enumerate(kept):
        mine[0] = 7.0
        assert bool(its[number][0] == 7.0) == (number < changed)


@contextmanager
def first_process(name: str) -> Iterator[None]:
    """Another process that has ten weights, and ends without a word."""
    process = subprocess.Popen(
        [sys.executable, "-c", FIRST, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"whole\n"
        yield
        process.kill()


def test_weights_outlive_the_process_that_loaded_them(name: str) -> None:
    with first_process(name):
        other = SharedWeights(name)
        weight = other.keep(torch.arange(10.0))
    assert not other.is_first
    assert torch.equal(weight, torch.arange(10.0))
    again = SharedWeights(name).keep(torch.arange(10.0))
    again[3] = -1.0
    assert weight[3] == -1.0, "the next one has a copy"


def test_memory_of_a_changed_checkpoint_goes_with_the_process_that_had_it(name: str) -> None:
    with first_process(name):
        changed = SharedWeights(name)
        assert torch.equal(changed.keep(torch.zeros(10)), torch.zeros(10))
    assert SharedWeights(name).is_first, "who has others keeps it"


def test_a_model_whose_weights_are_shared_computes_the_same_bits(name: str) -> None:
    config = EngineConfig(model_path=str(DEMO / "target"), max_model_len=256, kv_cache_tokens=256)
    memory = SharedWeights(name)
    with weights_in(memory):
        first = ModelRunner(config)
    memory.finish()
    other_memory = SharedWeights(name)
    with weights_in(other_memory):
        other = ModelRunner(config)
    alone = ModelRunner(config)
    assert not other_memory.is_first
    assert other_memory.num_bytes == memory.num_bytes
    assert memory.num_bytes >= 0.9 * first.weight_bytes, "most weights are not in it"
    logits = [text_logits(runner, range(5, 25)) for runner in (first, other, alone)]
    assert torch.equal(logits[0], logits[2])
    assert torch.equal(logits[1], logits[2])
