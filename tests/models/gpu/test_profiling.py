"""What a share of a GPU leaves for KV: measured on a pass, on a card that stands in for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from models.checkpoint.loader import load_checkpoint
from models.config import EngineConfig
from models.engine.backends import LaidOut, lay_out
from models.engine.profiling import measured_share
from models.kv.budget import CONTEXT_BYTES
from tests.fakes.engines import tiny_checkpoint

GIB = 1 << 30
NUM_IDS = 1000


@dataclass
class Card:
    """A GPU's memory, of which other processes hold a part."""

    total_bytes: int = 24 * GIB
    own_bytes: int = 8 * GIB
    others_bytes: int = 0
    pass_bytes: int = GIB
    passes: list[object] = field(default_factory=list)

    @property
    def free_bytes(self) -> int:
        return self.total_bytes - self.own_bytes - self.others_bytes

    def peak_of(self, run: Callable[[], object]) -> int:
        self.passes.append(run())
        return self.pass_bytes


def config(**changes: Any) -> EngineConfig:
    values: dict[str, Any] = {
        "model_path": str(tiny_checkpoint(noise=0.0)),
        "dtype": "float32",
        "max_model_len": 64,
        "max_num_batched_tokens": 150,
        "num_threads": 1,
    }
    return EngineConfig(**(values | changes))


def laid_out(noted: list[Any]) -> LaidOut:
    on_cpu = config()
    made = lay_out(load_checkpoint(on_cpu), on_cpu, None)

    def backend(num_blocks: int) -> Any:
        real = made.backend(num_blocks)

        class Noting:
            def logits(self, sequences: Any) -> Any:
                logits = real.logits(sequences)
                noted.append((num_blocks, [len(rows.token_ids) for rows in sequences], logits))
                return logits

        return Noting()

    return LaidOut(made.packed, backend)


def on_gpu(share: float) -> EngineConfig:
    return config(device="cuda", block_size=64, gpu_memory_utilization=share, graph_memory_mib=1024)


def test_the_largest_pass_is_run_and_its_memory_is_left_free() -> None:
    noted: list[Any] = []
    left = measured_share(on_gpu(0.5), Card(), laid_out(noted), NUM_IDS)
    [(num_blocks, rows, logits)] = noted
    assert rows == [64, 64, 22]
    assert num_blocks == 3
    assert len(logits) == 150
    draws = 3 * 4 * NUM_IDS * 150
    assert left == (12 - 8 - 1 - 1) * GIB - CONTEXT_BYTES - draws


def test_what_others_hold_is_not_given_away() -> None:
    """0.9 of 24 GiB is promised, and another process has 10 of them already."""
    with pytest.raises(ValueError, match=r"0\.9 of the GPU would leave .* other processes hold"):
        measured_share(on_gpu(0.9), Card(others_bytes=10 * GIB), laid_out([]), NUM_IDS)


def test_what_others_hold_does_not_make_a_share_smaller() -> None:
    """Who comes second gets as much as who came first."""
    alone = measured_share(on_gpu(0.5), Card(), laid_out([]), NUM_IDS)
    assert measured_share(on_gpu(0.5), Card(others_bytes=10 * GIB), laid_out([]), NUM_IDS) == alone
