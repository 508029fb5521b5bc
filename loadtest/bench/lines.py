"""All ways to serve the same prompts in one process, measured by turns.

Ours runs through the router's loop with k = 0, fixed and adaptive. The others are the bare target
engine, and transformers' `generate` with and without the same draft as assistant. Same process,
same threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from loadtest.bench.loop import EngineLoopBench, LoopRun, Prompts, name_of
from loadtest.bench.record import Line, line_of
from loadtest.bench.references import (
    BareEngine,
    generate_batch_tokens_per_s,
    generate_tokens_per_s,
    load_reference,
)
from loadtest.report.interleaved import interleave
from models.config import DtypeName, EngineConfig
from models.engine.runner import ModelRunner

_WARM_UP_TOKENS = 8


class PairBench:
    """A pair loaded twice: as our engines, and as transformers runs it.

    Args:
        pair: directory with target/ and draft/.
        dtype: of all models.
        device: of all models.
        num_threads: torch's threads, for everything here.
        max_model_len, kv_cache_tokens: of our engines.
    """

    def __init__(
        self,
        pair: Path,
        *,
        dtype: DtypeName,
        device: str,
        num_threads: int,
        max_model_len: int,
        kv_cache_tokens: int,
    ) -> None:
        self.target, self.draft = (
            ModelRunner(
                EngineConfig(
                    model_path=str(pair / part),
                    dtype=dtype,
                    device=device,
                    max_model_len=max_model_len,
                    kv_cache_tokens=kv_cache_tokens,
                    enable_prefix_caching=False,  # lines repeat their prompts; others have no cache
                    num_threads=num_threads,
                )
            )
            for part in ("target", "draft")
        )
        self._reference, self._assistant = (
            load_reference(pair / part, dtype, device) for part in ("target", "draft")
        )
        self._bare = BareEngine(self.target)
        self._loop = EngineLoopBench(self.target, self.draft)
        torch.set_num_threads(num_threads)

    def lines(
        self, prompts: Prompts, batch: int, ks: Sequence[int], num_tokens: int
    ) -> dict[str, Callable[[], LoopRun | float]]:
        """Return the lines to measure at one batch size, by name.

        Assistants work at batch 1 only.
        """
        batches = [prompts[start : start + batch] for start in range(0, len(prompts), batch)]
        loop = partial(self._loop.run, prompts, batch=batch, num_tokens=num_tokens)
        lines: dict[str, Callable[[], LoopRun | float]] = {
            "bare engine": lambda: _over_batches(
                batches, lambda part: self._bare.tokens_per_s(part, num_tokens)
            )
        }
        for k in (0, *ks, None):
            lines[name_of(k)] = partial(loop, k=k)
        lines["transformers"] = lambda: _over_batches(
            batches, lambda part: generate_batch_tokens_per_s(self._reference, part, num_tokens)
        )
        if batch == 1:
            for k in (*ks, None):
                name = f"assisted {'heuristic' if k is None else name_of(k)}"
                lines[name] = self.assisted(prompts, k, num_tokens)
        return lines

    def assisted(self, prompts: Prompts, k: int | None, num_tokens: int) -> Callable[[], float]:
        """Transformers' assisted generation, one prompt after another; k None: its heuristic."""
        return partial(
            generate_tokens_per_s,
            self._reference,
            prompts,
            num_tokens,
            assistant=self._assistant,
            num_assistant_tokens=k,
        )

    def measure(
        self,
        prompts: Prompts,
        batch: int,
        *,
        ks: Sequence[int],
        num_tokens: int,
        repeats: int,
        on_done: Callable[[], None] = lambda: None,
    ) -> list[Line]:
        """Run all lines at one batch size, `repeats` times each by turns, after a short one."""
        for warm_up in self.lines(prompts[:batch], batch, ks, _WARM_UP_TOKENS).values():
            warm_up()
        measured = self.lines(prompts, batch, ks, num_tokens)
        measured[name_of(None)]()  # its planner is warm from here on
        runs = interleave(measured, repeats, lambda name, value: on_done())
        return [line_of("engine", name, batch, values) for name, values in runs.items()]


def num_lines(batch: int, ks: Sequence[int]) -> int:
    """Return how many lines `PairBench.lines` gives."""
    return len(ks) + 4 + (len(ks) + 1 if batch == 1 else 0)


def _over_batches(batches: Sequence[Prompts], rate_of: Callable[[Prompts], float]) -> float:
    """Tokens over time: every prompt brings as many, so times of batches add up by their sizes."""
    seconds_per_token = sum(len(batch) / rate_of(batch) for batch in batches)
    return sum(len(batch) for batch in batches) / seconds_per_token
