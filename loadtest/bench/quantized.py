"""A draft with 8-bit weights next to the same draft as it is: acceptance, pass time, memory.

Tokens accepted of k drafted ones come from rounds of the two engines in this process. Pass times
come by turns, pass by pass, so that load on the machine hits both drafts alike: read the ratio,
which is the median of the turns' own. A pass of n sessions has one row each; a prompt is one
session's rows in one pass, from its first token on.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tqdm import tqdm

from loadtest.acceptance.rounds import EnginePair
from loadtest.bench.passes import PassShape, tables_for, timed_pass
from loadtest.report.interleaved import interleave
from loadtest.report.pairs import PairPath
from loadtest.report.prompts import demo_prompts
from models.config import EngineConfig
from models.engine.runner import ModelRunner
from models.protocol.messages import Sampling

MAX_MODEL_LEN = 1024
QUANTIZATION = "int8"
_WAYS: Mapping[str, str | None] = {"plain": None, "int8": QUANTIZATION}
_CONTEXT_TOKENS = 100  # of a session when its step is timed
_WARM_UP_TURNS = 3


@dataclass(frozen=True, kw_only=True)
class DraftSettings:
    """What is measured of the two drafts.

    Attributes:
        threads: of a pass; acceptance and weights are measured with the first.
        k: tokens drafted per round.
        temperatures: of the rounds.
        prompts: held-out ones, of `max_tokens` each unless they end.
        batch: texts at a time.
        sessions: of a draft step.
        rows: of a prompt's pass.
        turns: passes of each draft per shape.
    """

    threads: Sequence[int] = (2,)
    dtype: str = "bfloat16"
    k: int = 3
    temperatures: Sequence[float] = (0.0, 1.0)
    prompts: int = 32
    max_tokens: int = 64
    batch: int = 16
    seed: int = 7
    sessions: Sequence[int] = (1, 2, 4, 8)
    rows: Sequence[int] = (32, 256)
    turns: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Rounds of exactly k drafted tokens."""

    pair: str
    quantization: str | None
    temperature: float
    num_rounds: int
    num_accepted: int
    rate: float  # accepted of drafted


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTime:
    """One shape of pass: medians over the turns, and the shortest, which load disturbs least."""

    pair: str
    num_threads: int
    num_sessions: int
    num_rows: int  # of each session
    plain_ms: float
    int8_ms: float
    shortest_ms: tuple[float, float]  # plain, int8
    ratio: float  # int8 to plain, the median of the turns' own
    ratio_quartiles: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Memory of the draft's weights, MB, as the engine reports it.

    An output layer that shares the embedding's weight counts once when plain, although packing
    copies it; rounded, it is a copy of its own and counted.
    """

    pair: str
    plain_mb: float
    int8_mb: float
    batch_invariant: tuple[bool, bool]  # plain, int8


def compare_drafts(pair: PairPath, settings: DraftSettings) -> dict[str, list[dict[str, Any]]]:
    """Both drafts of a pair: `acceptance`, `weights` and `passes`, ready for JSON."""
    num_texts = len(_WAYS) * len(settings.temperatures) * settings.prompts
    with tqdm(total=num_texts, desc=f"{pair.label}: acceptance", unit="text") as bar:
        acceptance = _measure_acceptance(pair, settings, bar)
    weights: list[Weights] = []
    times: list[PassTime] = []
    for num_threads in settings.threads:
        memory, passes = _measure_passes(pair, settings, num_threads)
        times += passes
        weights = weights or [memory]
    return {
        "acceptance": [asdict(line) for line in acceptance],
        "weights": [asdict(line) for line in weights],
        "passes": [asdict(line) for line in times],
    }


def _measure_acceptance(
    pair: PairPath, settings: DraftSettings, bar: tqdm[Any]
) -> list[Acceptance]:
    """Both drafts on the same held-out prompts and seeds."""
    prompts = demo_prompts(settings.prompts, settings.seed)
    results = []
    for quantization in _WAYS.values():
        engines = EnginePair(
            pair.path,
            dtype=settings.dtype,
            batch=settings.batch,
            max_model_len=MAX_MODEL_LEN,
            num_threads=settings.threads[0],
            draft_quantization=quantization,
        )
        for temperature in settings.temperatures:
            sampling = Sampling(temperature=temperature, seed=settings.seed)
            texts = engines.run(prompts, sampling, settings.k, settings.max_tokens, bar.update)
            accepted = [number for text in texts for number in text]
            results.append(
                Acceptance(
                    pair=pair.label,
                    quantization=quantization,
                    temperature=temperature,
                    num_rounds=len(accepted),
                    num_accepted=sum(accepted),
                    rate=sum(accepted) / (settings.k * len(accepted)),
                )
            )
    return results


def _measure_passes(
    pair: PairPath, settings: DraftSettings, num_threads: int
) -> tuple[Weights, list[PassTime]]:
    """Both drafts, turn by turn, for each shape of pass."""
    runners = {
        way: ModelRunner(
            EngineConfig(
                model_path=str(pair.path / "draft"),
                dtype=settings.dtype,
                max_model_len=MAX_MODEL_LEN,
                kv_cache_tokens=max(settings.sessions) * MAX_MODEL_LEN,
                num_threads=num_threads,
                quantization=quantization,
            )
        )
        for way, quantization in _WAYS.items()
    }
    plain, int8 = runners.values()
    weights = Weights(
        pair=pair.label,
        plain_mb=plain.weight_bytes / 1e6,
        int8_mb=int8.weight_bytes / 1e6,
        batch_invariant=(plain.batch_invariant, int8.batch_invariant),
    )
    shapes = [PassShape(number, 1, _CONTEXT_TOKENS) for number in settings.sessions]
    shapes += [PassShape(1, num_rows, 0) for num_rows in settings.rows]
    times = []
    for shape in tqdm(shapes, desc=f"{pair.label}: {num_threads} threads", unit="shape"):
        plain_ms, int8_ms = _by_turns(runners, shape, settings.turns)
        ratios = [above / below for above, below in zip(int8_ms, plain_ms, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        times.append(
            PassTime(
                pair=pair.label,
                num_threads=num_threads,
                num_sessions=shape.num_sessions,
                num_rows=shape.rows_each,
                plain_ms=statistics.median(plain_ms),
                int8_ms=statistics.median(int8_ms),
                shortest_ms=(min(plain_ms), min(int8_ms)),
                ratio=middle,
                ratio_quartiles=(low, high),
            )
        )
    return weights, times


def _by_turns(
    runners: Mapping[str, ModelRunner], shape: PassShape, num_turns: int
) -> list[list[float]]:
    """Milliseconds of each runner's passes, in order of turns."""
    tables = {way: tables_for(runner, [shape]) for way, runner in runners.items()}
    lines = {way: timed_pass(runner, shape, tables[way]) for way, runner in runners.items()}
    try:
        interleave(lines, _WARM_UP_TURNS)
        return list(interleave(lines, num_turns).values())
    finally:
        for table in (table for made in tables.values() for table in made):
            table.free()


def print_drafts(compared: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Three small tables of what `compare_drafts` found."""
    print(f"\n{'pair':<28}{'T':>5}{'draft':>8}{'rounds':>8}{'accepted of drafted':>22}")
    for line in compared["acceptance"]:
        name = line["quantization"] or "plain"
        print(
            f"{line['pair']:<28}{line['temperature']:>5g}{name:>8}{line['num_rounds']:>8}"
            f"{line['rate']:>22.4f}"
        )
    print(
        f"\n{'pair':<28}{'threads':>8}{'sessions':>9}{'rows':>6}{'plain':>10}{'int8':>10}"
        f"{'ratio':>19}{'shortest':>20}"
    )
    for line in compared["passes"]:
        low, high = line["ratio_quartiles"]
        print(
            f"{line['pair']:<28}{line['num_threads']:>8}"
            f"{line['num_sessions']:>9}{line['num_rows']:>6}"
            f"{line['plain_ms']:>7.2f} ms{line['int8_ms']:>7.2f} ms"
            f"  {line['ratio']:>4.2f} [{low:>4.2f}, {high:>4.2f}]"
            f"{line['shortest_ms'][0]:>9.2f} {line['shortest_ms'][1]:>7.2f} ms"
        )
    print()
    for line in compared["weights"]:
        print(
            f"{line['pair']}: weights {line['plain_mb']:.1f} MB, int8 {line['int8_mb']:.1f} MB; "
            f"batch_invariant {line['batch_invariant'][0]}, int8 {line['batch_invariant'][1]}"
        )
