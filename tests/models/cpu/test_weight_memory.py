"""Weights of a model in one memory: whole, apart, in large pages, and freed with the model."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path

import pytest
import torch
from torch import Tensor

from models.cpu import weight_memory
from models.cpu.product import KernelLinear
from models.cpu.weight_memory import HUGE_BYTES, WeightMemory, weights_in, weights_together
from tests.models.cpu.test_shared_weights import WEIGHTS

MODES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def huge_bytes(weight: Tensor) -> int:
    """Bytes in large pages of the mapping that a weight lies in."""
    address, is_in = weight.data_ptr(), False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            start, _, end = first.partition("-")
            is_in = int(start, 16) <= address < int(end, 16)
        elif is_in and first == "AnonHugePages:":
            return 1024 * int(line.split()[1])
    return 0


def test_weights_lie_close_together_and_stay_apart() -> None:
    memory = WeightMemory()
    places = [memory.keep(weight) for weight in WEIGHTS]
    for weight, place in zip(WEIGHTS, places, strict=True):
        assert torch.equal(weight, place)
    filled = [place for place in places if place.numel()]
    starts = [place.data_ptr() for place in filled]
    assert starts[0] % HUGE_BYTES == 0
    assert starts[-1] - starts[0] < 1024
    for place in filled:
        place.zero_()
    assert memory.num_bytes == sum(weight.nbytes for weight in WEIGHTS)


def test_a_weight_that_has_no_room_begins_another_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_memory, "_CHUNK_BYTES", 4096)
    memory = WeightMemory()
    sizes = (10, 900, HUGE_BYTES, 700_000, 3)
    places = [memory.keep(torch.full((n,), float(n))) for n in sizes]
    for n, place in zip(sizes, places, strict=True):
        assert torch.equal(place, torch.full((n,), float(n)))


@pytest.mark.skipif(
    not MODES.exists() or "[never]" in MODES.read_text(), reason="no large pages on this system"
)
def test_the_system_gives_large_pages() -> None:
    weight = WeightMemory().keep(torch.ones(8 * HUGE_BYTES, dtype=torch.int8))
    assert huge_bytes(weight) >= 4 * HUGE_BYTES


def test_a_system_without_large_pages_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 999)
    assert torch.equal(WeightMemory().keep(torch.ones(9)), torch.ones(9))
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    assert torch.equal(WeightMemory().keep(torch.ones(9)), torch.ones(9))


def test_memory_is_freed_with_the_last_weight_in_it() -> None:
    def mapped_bytes() -> int:
        return mmap.PAGESIZE * int(Path("/proc/self/statm").read_text().split()[0])

    before = mapped_bytes()
    for _ in range(30):
        with weights_together():
            layers = [KernelLinear(torch.randn(64, 64), None) for _ in range(3)]
        assert layers[0](torch.ones(64)).shape == (64,)
    gc.collect()
    assert mapped_bytes() - before < 10 * HUGE_BYTES * 32, "ten pieces of memory are left"


def test_a_chosen_memory_is_used() -> None:
    chosen = WeightMemory()
    with weights_in(chosen), weights_together():
        KernelLinear(torch.randn(64, 64), None)
    assert chosen.num_bytes == 64 * 64 * 4
    with weights_together():
        KernelLinear(torch.randn(64, 64), None)
    assert chosen.num_bytes == 64 * 64 * 4
