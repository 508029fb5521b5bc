"""Measures the cost of sampling by its terms: milliseconds and operations of a draw, by rows."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from loadtest.gpu_day.terms import Terms
from loadtest.report.interleaved import interleave
from models.device import fetch, wait_for
from models.protocol.messages import Sampling
from models.sampling.draws import draw_from_logits

ROWS = (1, 48, 192)
KINDS = {
    "greedy": Sampling(temperature=0.0, seed=1),
    "temperature": Sampling(temperature=0.8, seed=1),
    "top_p": Sampling(temperature=0.8, top_p=0.9, seed=1),
    "top_k": Sampling(temperature=0.8, top_k=50, seed=1),
    "min_p": Sampling(temperature=0.8, min_p=0.05, seed=1),
}


def draws(terms: Terms) -> dict[str, Any]:
    """Times of a draw from random logits of the target's vocabulary, fetched ids included."""
    config = json.loads((terms.pair / "target" / "config.json").read_text(encoding="utf-8"))
    device, vocab_size = torch.device(terms.device), int(config["vocab_size"])
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(max(ROWS), vocab_size, generator=generator).to(device)
    lines = {
        f"{name} {rows}": _draw(logits[:rows], sampling)
        for name, sampling in KINDS.items()
        for rows in ROWS
    }
    timed = {name: _timed(draw, device) for name, draw in lines.items()}
    interleave(timed, 1)
    times = interleave(timed, terms.repeats)
    return {
        "vocab_size": vocab_size,
        "lines": [
            {
                "terms": name.split()[0],
                "rows": int(name.split()[1]),
                "ms": round(statistics.median(times[name]), 4),
                "num_operations": _num_operations(draw),
            }
            for name, draw in lines.items()
        ],
    }


def _draw(logits: Tensor, sampling: Sampling) -> Callable[[], list[int]]:
    samplings, positions = [sampling] * len(logits), list(range(len(logits)))

    @torch.inference_mode()
    def draw() -> list[int]:
        return fetch(draw_from_logits(logits, samplings, positions))

    return draw


def _timed(draw: Callable[[], list[int]], device: torch.device) -> Callable[[], float]:
    def timed() -> float:
        wait_for(device)
        began_s = time.perf_counter()
        draw()
        return (time.perf_counter() - began_s) * 1e3

    return timed


class CountedOperations(TorchDispatchMode):
    """Counts the operations that torch is asked for, views left out: each is a launch or some."""

    def __init__(self) -> None:
        super().__init__()
        self.count: int = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += not function.is_view
        return function(*args, **(kwargs or {}))


def _num_operations(draw: Callable[[], list[int]]) -> int:
    with CountedOperations() as counting:
        draw()
    return counting.count
