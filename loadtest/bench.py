"""Tokens per second of plain and speculative serving, next to transformers on the same weights.

    python -m loadtest.bench --output loadtest/results/demo-pair.json

One run, one machine: k = 0, fixed k and adaptive k through the router loop and real links (draft
and target in processes of their own, no Ray, no HTTP), the bare target engine, and transformers'
`generate` with and without `assistant_model`. Prints a table with each round's time split; the
unit is stated in every column. Ratios within one run are what it is for; absolute figures depend
on the machine and on what else it does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm

from deployments.config import ModelConfig
from loadtest.bench_references import (
    BareEngine,
    ReferenceModel,
    generate_batch_tokens_per_s,
    generate_tokens_per_s,
    load_reference,
)
from loadtest.machine import describe_machine
from loadtest.prompts import demo_prompts
from loadtest.rank_process import ProcessPool
from models.config import EngineConfig
from models.messages import Sampling
from router.generation import Finished, GenerationRequest, SpeculationSettings, SpeculationStats
from router.generator import SpeculativeGenerator
from router.limits import SessionLimits, SpeculationLimits
from router.session import Services

Prompts = Sequence[Sequence[int]]

_MAX_MODEL_LEN = 1024
_SPLIT = ("draft", "mask", "verify", "queue", "link", "grammar", "loop", "emit")


@dataclass(frozen=True)
class Measurement:
    """One line of the table."""

    name: str
    batch: int
    tokens_per_s: float
    mean_acceptance_length: float = 1.0
    draft_acceptance_rate: float = 0.0
    mean_k: float = 0.0
    round_ms: dict[str, float] | None = None  # mean per round, by part


class _NoText:
    """Tokens are counted, not read."""

    def push(self, token_ids: Sequence[int]) -> str:
        return ""

    def flush(self) -> str:
        return ""


class Served:
    """Draft and target processes, and the router's loop in this one."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        pair: Path = arguments.pair
        self._target = ProcessPool(
            "target", _model_config(pair / "target", arguments, arguments.target_threads)
        )
        self._draft = ProcessPool(
            "draft", _model_config(pair / "draft", arguments, arguments.draft_threads)
        )
        self._num_tokens: int = arguments.tokens
        self._max_k: int = max(8, *arguments.k)
        self._num_runs = 0

    def wait_ready(self) -> None:
        """Block until both models are loaded."""
        self._target.wait_ready()
        self._draft.wait_ready()

    async def measure(
        self, name: str, prompts: Sequence[Sequence[int]], batch: int, k: int | None
    ) -> Measurement:
        """Serve all prompts, `batch` at a time; k None is adaptive."""
        self._num_runs += 1
        generator = SpeculativeGenerator(
            Services(
                target_pool=self._target,
                draft_pool=None if k == 0 else self._draft,
                constraint_pool=None,
                speculation=SpeculationLimits(
                    num_speculative_tokens=k,
                    max_speculative_tokens=self._max_k,
                    prompt_lookup_max=0,
                ),
                limits=SessionLimits(propose_timeout_s=10.0),
            ),
            max_model_len=_MAX_MODEL_LEN,
        )
        places = asyncio.Semaphore(batch)

        async def one(index: int) -> Finished:
            async with places:
                return await self._serve(generator, f"{self._num_runs}-{index}", prompts[index])

        started_at = time.perf_counter()
        finished = await asyncio.gather(*(one(index) for index in range(len(prompts))))
        elapsed_s = time.perf_counter() - started_at
        num_tokens = sum(finish.num_completion_tokens for finish in finished)
        return _summary(
            name, batch, num_tokens / elapsed_s, [finish.speculation for finish in finished]
        )

    async def _serve(
        self, generator: SpeculativeGenerator, name: str, prompt: Sequence[int]
    ) -> Finished:
        request = GenerationRequest(
            request_id=f"bench-{name}",
            prompt_ids=tuple(prompt),
            sampling=Sampling(temperature=0.0),
            eos_ids=(),
            max_tokens=self._num_tokens,
            ignore_eos=True,
            speculation=SpeculationSettings(),
        )
        async for event in generator.generate(request, _NoText()):
            if isinstance(event, Finished):
                return event
        raise RuntimeError("the stream ended without a finish")

    async def close(self) -> None:
        """End both processes."""
        await self._target.close()
        await self._draft.close()


def _model_config(path: Path, arguments: argparse.Namespace, num_threads: int) -> ModelConfig:
    return ModelConfig(
        model_path=str(path),
        dtype=arguments.dtype,
        max_model_len=_MAX_MODEL_LEN,
        kv_cache_tokens=16 * _MAX_MODEL_LEN,
        num_threads=num_threads,
    )


def _summary(
    name: str, batch: int, tokens_per_s: float, stats: Sequence[SpeculationStats]
) -> Measurement:
    num_rounds = sum(stat.num_rounds for stat in stats)
    num_steps = sum(stat.num_spec_steps for stat in stats)
    num_drafted = sum(stat.num_draft_tokens for stat in stats)
    num_accepted = sum(stat.num_accepted_draft_tokens for stat in stats)
    return Measurement(
        name=name,
        batch=batch,
        tokens_per_s=tokens_per_s,
        mean_acceptance_length=1.0 + num_accepted / max(num_steps, 1),
        draft_acceptance_rate=num_accepted / max(num_drafted, 1),
        mean_k=num_drafted / max(num_steps, 1),
        round_ms={
            part: sum(getattr(stat.time, f"{part}_ms") for stat in stats) / max(num_rounds, 1)
            for part in _SPLIT
        },
    )


def _median(measure: Callable[[], float], repeats: int) -> float:
    return statistics.median(measure() for _ in range(repeats))


def _bare_rate(bare: BareEngine, batches: Sequence[Prompts], num_tokens: int) -> float:
    return _over_batches(batches, lambda batch: bare.tokens_per_s(batch, num_tokens))


def _batched_rate(model: ReferenceModel, batches: Sequence[Prompts], num_tokens: int) -> float:
    return _over_batches(
        batches, lambda batch: generate_batch_tokens_per_s(model, batch, num_tokens)
    )


def _over_batches(batches: Sequence[Prompts], rate_of: Callable[[Prompts], float]) -> float:
    """Tokens over time: the harmonic mean, weighted because the last batch may be smaller."""
    rates = [rate_of(batch) for batch in batches]
    return statistics.harmonic_mean(rates, weights=[len(batch) for batch in batches])


async def _measure_served(arguments: argparse.Namespace, bar: tqdm) -> list[Measurement]:
    prompts = demo_prompts(arguments.prompts)
    served = Served(arguments)
    results: list[Measurement] = []
    try:
        served.wait_ready()
        await served.measure("warm-up", prompts[:2], 2, 3)
        for batch in arguments.batch:
            lengths = [("k=0", 0), *((f"k={k}", k) for k in arguments.k), ("adaptive", None)]
            for label, k in lengths:
                runs = [
                    await served.measure(f"ours {label}", prompts, batch, k)
                    for _ in range(arguments.repeats)
                ]
                results.append(sorted(runs, key=lambda run: run.tokens_per_s)[len(runs) // 2])
                bar.update()
    finally:
        await served.close()
    return results


def _measure_references(arguments: argparse.Namespace, bar: tqdm) -> list[Measurement]:
    prompts = demo_prompts(arguments.prompts)
    pair: Path = arguments.pair
    num_tokens, repeats = arguments.tokens, arguments.repeats
    results: list[Measurement] = []
    bare = BareEngine(
        EngineConfig(
            model_path=str(pair / "target"),
            dtype=arguments.dtype,
            max_model_len=_MAX_MODEL_LEN,
            kv_cache_tokens=16 * _MAX_MODEL_LEN,
            num_threads=arguments.target_threads,
        )
    )
    bare.tokens_per_s(prompts[:2], 8)  # warm-up, as for ours and for transformers below
    for batch in arguments.batch:
        batches = [prompts[i : i + batch] for i in range(0, len(prompts), batch)]
        rate = _median(partial(_bare_rate, bare, batches, num_tokens), repeats)
        results.append(Measurement("bare engine", batch, rate))
        bar.update()
    torch.set_num_threads(arguments.reference_threads)
    target = load_reference(pair / "target", arguments.dtype)
    draft = load_reference(pair / "draft", arguments.dtype)
    generate_tokens_per_s(target, prompts[:1], 8, assistant=draft)
    rate = _median(partial(generate_tokens_per_s, target, prompts, num_tokens), repeats)
    results.append(Measurement("transformers", 1, rate))
    bar.update()
    for batch in arguments.batch:
        if batch > 1:
            batches = [prompts[i : i + batch] for i in range(0, len(prompts), batch)]
            rate = _median(partial(_batched_rate, target, batches, num_tokens), repeats)
            results.append(Measurement("transformers", batch, rate))
            bar.update()
    for k in [*arguments.k, None]:
        rate = _median(
            partial(
                generate_tokens_per_s,
                target,
                prompts,
                num_tokens,
                assistant=draft,
                num_assistant_tokens=k,
            ),
            repeats,
        )
        label = "heuristic" if k is None else f"k={k}"
        results.append(Measurement(f"transformers assisted {label}", 1, rate))
        bar.update()
    return results


def _print_table(results: Sequence[Measurement]) -> None:
    print(
        f"\n{'':32}{'batch':>6}{'tokens/s':>10}{'length':>8}{'rate':>6}{'k':>5}"
        + "".join(f"{part:>9}" for part in _SPLIT)
        + "   (ms per round)"
    )
    for result in results:
        line = f"{result.name:32}{result.batch:>6}{result.tokens_per_s:>10.1f}"
        if result.round_ms is not None:
            line += (
                f"{result.mean_acceptance_length:>8.2f}{result.draft_acceptance_rate:>6.2f}"
                f"{result.mean_k:>5.1f}"
            )
            line += "".join(f"{result.round_ms[part]:>9.3f}" for part in _SPLIT)
        print(line)


def _print_claims(results: Sequence[Measurement]) -> None:
    """The ratios the project promises, from this run."""
    rates = {(result.name, result.batch): result.tokens_per_s for result in results}
    ours = [r for r in results if r.name.startswith("ours") and r.round_ms is not None]
    for batch in sorted({result.batch for result in ours}):
        share = rates["ours k=0", batch] / rates["bare engine", batch]
        best = max((r for r in ours if r.batch == batch), key=lambda r: r.tokens_per_s)
        print(
            f"batch {batch}: k=0 reaches {share:.0%} of the bare engine; best is {best.name!r}, "
            f"{best.tokens_per_s / rates['ours k=0', batch]:.2f}x k=0"
        )
    overheads = [
        r.round_ms["link"] + r.round_ms["loop"]
        for r in ours
        if r.batch == 1 and r.round_ms is not None
    ]
    if overheads:
        print(f"batch 1: link and loop together {max(overheads):.2f} ms per round at most")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--pair", type=Path, default=Path("models/demo"), help="target/ and draft/")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--prompts", type=int, default=16, help="held-out prompts per measurement")
    parser.add_argument("--tokens", type=int, default=64, help="completion tokens per prompt")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], help="sessions at a time")
    parser.add_argument("--k", type=int, nargs="+", default=[1, 2, 3, 5, 8], help="fixed k")
    parser.add_argument(
        "--repeats",
        type=int,
        default=3,
        choices=range(1, 10, 2),
        help="runs per line; the median counts, so it is odd: the middle run of ours and of others",
    )
    parser.add_argument("--target-threads", type=int, default=1)
    parser.add_argument("--draft-threads", type=int, default=1)
    parser.add_argument(
        "--reference-threads", type=int, default=2, help="for transformers: both together"
    )
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    arguments = _parse(sys.argv[1:] if argv is None else argv)
    num_batches = len(arguments.batch)
    num_lines = num_batches * (len(arguments.k) + 4) + len(arguments.k) + 1
    with tqdm(total=num_lines, desc="measuring", unit="line") as bar:
        results = asyncio.run(_measure_served(arguments, bar))
        results += _measure_references(arguments, bar)
    _print_table(results)
    _print_claims(results)
    if arguments.output is not None:
        command = shlex.join(["python", "-m", "loadtest.bench", *sys.argv[1:]])
        content = {
            "command": command,
            "machine": describe_machine(),
            "settings": {
                key: str(value) if isinstance(value, Path) else value
                for key, value in vars(arguments).items()
            },
            "results": [asdict(result) for result in results],
        }
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
