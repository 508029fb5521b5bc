"""A draft with 8-bit weights next to the same draft as it is: acceptance, pass time, memory.

Tokens accepted of k drafted ones come from rounds of the two engines in this process. Pass times
come by turns, pass by pass, so that load on the machine hits both drafts alike. Read the ratio,
which is the median of the turns' own. A pass of n sessions has one row each. A prompt is one
session's rows in one pass, from its first token on.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tqdm import tqdm

from loadtest.bench.engine import EngineSettings
from loadtest.bench.passes import PassShape, tables_for, timed_pass
from loadtest.bench.rounds import EnginePair
from loadtest.report.interleaved import interleave
from loadtest.report.pairs import PairPath
from loadtest.report.prompts import demo_prompts
from models.config import EngineConfig, QuantizationName
from models.engine.runner import ModelRunner
from models.protocol.messages import Sampling

QUANTIZATION: QuantizationName = "int8"
# Defaults of `--draft-quantization`, as options of the bench.
DEFAULTS = "--k 3 --prompts 32 --tokens 64 --batch 1 2 4 8 --pass-repeats 199"
_WAYS: Mapping[str, QuantizationName | None] = {"plain": None, "int8": QUANTIZATION}
_TEMPERATURES = (0.0, 1.0)
_PROMPT_ROWS = (32, 256)
_SEED = 7
_TEXTS_AT_A_TIME = 16
_MAX_MODEL_LEN = 1024
_CONTEXT_TOKENS = 100  # context of a session when its step is timed
_WARM_UP_TURNS = 3

Found = dict[str, list[dict[str, Any]]]


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
    num_rows: int  # rows of each session
    plain_ms: float
    int8_ms: float
    shortest_ms: tuple[float, float]  # plain, int8
    ratio: float  # int8 to plain, the median of the turns' own
    ratio_quartiles: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Memory of the draft's weights, MB, as the engine reports it.

    A plain output layer that shares the embedding's weight counts once, although packing copies it.
    A rounded one is a copy of its own and counts.
    """

    pair: str
    plain_mb: float
    int8_mb: float
    batch_invariant: tuple[bool, bool]  # plain, int8


def compare_drafts(pair: PairPath, settings: EngineSettings) -> Found:
    """Compare both drafts of a pair, ready for JSON: `acceptance`, `weights` and `passes`.

    Passes are timed with one thread and with `settings.threads`, for `settings.batch` sessions.
    """
    found: Found = {"acceptance": _measure_acceptance(pair, settings), "weights": [], "passes": []}
    for num_threads in sorted({1, settings.threads}):
        weights, times = _measure_passes(pair, settings, num_threads)
        found["weights"] = [asdict(weights)]
        found["passes"] += [asdict(line) for line in times]
    return found


def _measure_acceptance(pair: PairPath, settings: EngineSettings) -> list[dict[str, Any]]:
    """Measure both drafts on the same held-out prompts and seeds."""
    prompts, k = demo_prompts(settings.prompts, _SEED), settings.k[0]
    num_texts = len(_WAYS) * len(_TEMPERATURES) * len(prompts)
    results = []
    with tqdm(total=num_texts, desc=f"{pair.label}: acceptance", unit="text") as bar:
        for quantization in _WAYS.values():
            engines = EnginePair(
                pair.path,
                dtype=settings.dtype,
                batch=_TEXTS_AT_A_TIME,
                max_model_len=_MAX_MODEL_LEN,
                num_threads=1,
                draft_quantization=quantization,
            )
            for temperature in _TEMPERATURES:
                sampling = Sampling(temperature=temperature, seed=_SEED)
                texts = engines.run(prompts, sampling, k, settings.tokens, bar.update)
                accepted = [number for text in texts for number in text]
                line = Acceptance(
                    pair=pair.label,
                    quantization=quantization,
                    temperature=temperature,
                    num_rounds=len(accepted),
                    num_accepted=sum(accepted),
                    rate=sum(accepted) / (k * len(accepted)),
                )
                results.append(asdict(line))
    return results


def _measure_passes(
    pair: PairPath, settings: EngineSettings, num_threads: int
) -> tuple[Weights, list[PassTime]]:
    """Time both drafts, turn by turn, for each shape of pass."""
    runners = {
        way: ModelRunner(
            EngineConfig(
                model_path=str(pair.path / "draft"),
                dtype=settings.dtype,
                max_model_len=_MAX_MODEL_LEN,
                kv_cache_tokens=max(settings.batch) * _MAX_MODEL_LEN,
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
    shapes = [PassShape(number, 1, _CONTEXT_TOKENS) for number in settings.batch]
    shapes += [PassShape(1, num_rows, 0) for num_rows in _PROMPT_ROWS]
    times = []
    for shape in tqdm(shapes, desc=f"{pair.label}: {num_threads} threads", unit="shape"):
        plain_ms, int8_ms = _by_turns(runners, shape, settings.pass_repeats)
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


def print_drafts(found: Found) -> None:
    """Print three small tables of what `compare_drafts` found."""
    print(f"\n{'pair':<28}{'T':>5}{'draft':>8}{'rounds':>8}{'accepted of drafted':>22}")
    for line in found["acceptance"]:
        print(
            f"{line['pair']:<28}{line['temperature']:>5g}{line['quantization'] or 'plain':>8}"
            f"{line['num_rounds']:>8}{line['rate']:>22.4f}"
        )
    print(
        f"\n{'pair':<28}{'threads':>8}{'sessions':>9}{'rows':>6}{'plain, ms':>11}{'int8, ms':>10}"
        f"{'ratio':>19}"
    )
    for line in found["passes"]:
        low, high = line["ratio_quartiles"]
        print(
            f"{line['pair']:<28}{line['num_threads']:>8}{line['num_sessions']:>9}"
            f"{line['num_rows']:>6}{line['plain_ms']:>11.2f}{line['int8_ms']:>10.2f}"
            f"  {line['ratio']:>4.2f} [{low:>4.2f}, {high:>4.2f}]"
        )
    for line in found["weights"]:
        print(
            f"\n{line['pair']}: weights {line['plain_mb']:.1f} MB, int8 {line['int8_mb']:.1f} MB; "
            f"batch_invariant {line['batch_invariant'][0]}, int8 {line['batch_invariant'][1]}"
        )
