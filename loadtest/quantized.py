"""A draft with 8-bit weights against the same draft as it is: acceptance, pass time, memory.

    python -m loadtest.quantized --pair models/demo --output loadtest/results/quantized.json

For each pair and number of threads: tokens accepted of k drafted ones in rounds of the two engines
in this process, and the time of the draft's passes, the two drafts taking turns pass by pass, so
that load on the machine hits both alike. A pass of n sessions has one row each; a prompt is one
session's rows in one pass. Read the ratio, which is the median of the turns' own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from loadtest.acceptance.rounds import EnginePair
from loadtest.bench.record import PairPath, public_command
from loadtest.report.machine import describe_machine
from loadtest.report.prompts import demo_prompts
from models.config import EngineConfig, QuantizationName
from models.engine.runner import ModelRunner, SequenceRows
from models.kv.block_pool import BlockTable
from models.protocol.messages import Sampling

QUANTIZATIONS: tuple[QuantizationName | None, QuantizationName] = (None, "int8")
_MAX_MODEL_LEN = 1024
_CONTEXT_TOKENS = 100  # of a session when its pass is timed
_WARM_UP_TURNS = 3


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


def measure_acceptance(
    pair: PairPath, arguments: argparse.Namespace, on_text: Callable[[], None]
) -> list[Acceptance]:
    """Both drafts on the same held-out prompts and seeds."""
    prompts = demo_prompts(arguments.prompts, arguments.seed)
    results = []
    for quantization in QUANTIZATIONS:
        engines = EnginePair(
            pair.path,
            dtype=arguments.dtype,
            batch=arguments.batch,
            max_model_len=_MAX_MODEL_LEN,
            num_threads=arguments.threads[0],
            draft_quantization=quantization,
        )
        for temperature in arguments.temperature:
            sampling = Sampling(temperature=temperature, seed=arguments.seed)
            texts = engines.run(prompts, sampling, arguments.k, arguments.max_tokens, on_text)
            accepted = [number for text in texts for number in text]
            results.append(
                Acceptance(
                    pair=pair.label,
                    quantization=quantization,
                    temperature=temperature,
                    num_rounds=len(accepted),
                    num_accepted=sum(accepted),
                    rate=sum(accepted) / (arguments.k * len(accepted)),
                )
            )
    return results


def measure_passes(
    pair: PairPath, arguments: argparse.Namespace, num_threads: int, on_turn: Callable[[], None]
) -> tuple[Weights, list[PassTime]]:
    """Both drafts, turn by turn, for each shape of pass."""
    runners = [
        ModelRunner(
            EngineConfig(
                model_path=str(pair.path / "draft"),
                dtype=arguments.dtype,
                max_model_len=_MAX_MODEL_LEN,
                kv_cache_tokens=max(arguments.sessions) * _MAX_MODEL_LEN,
                num_threads=num_threads,
                quantization=quantization,
            )
        )
        for quantization in QUANTIZATIONS
    ]
    plain, int8 = runners
    weights = Weights(
        pair=pair.label,
        plain_mb=plain.weight_bytes / 1e6,
        int8_mb=int8.weight_bytes / 1e6,
        batch_invariant=(plain.batch_invariant, int8.batch_invariant),
    )
    shapes = [(number, 1) for number in arguments.sessions] + [(1, n) for n in arguments.rows]
    times = []
    for num_sessions, num_rows in shapes:
        pairs_ms = _turns(runners, num_sessions, num_rows, arguments.turns, on_turn)
        ratios = [int8_ms / plain_ms for plain_ms, int8_ms in pairs_ms]
        low, middle, high = statistics.quantiles(ratios, n=4)
        times.append(
            PassTime(
                pair=pair.label,
                num_threads=num_threads,
                num_sessions=num_sessions,
                num_rows=num_rows,
                plain_ms=statistics.median(plain_ms for plain_ms, _ in pairs_ms),
                int8_ms=statistics.median(int8_ms for _, int8_ms in pairs_ms),
                shortest_ms=(min(ms for ms, _ in pairs_ms), min(ms for _, ms in pairs_ms)),
                ratio=middle,
                ratio_quartiles=(low, high),
            )
        )
    return weights, times


def _turns(
    runners: Sequence[ModelRunner],
    num_sessions: int,
    num_rows: int,
    num_turns: int,
    on_turn: Callable[[], None],
) -> list[list[float]]:
    """Milliseconds of one pass of each runner, turn by turn."""
    tables = [[runner.pool.new_table() for _ in range(num_sessions)] for runner in runners]
    batches = [_filled(runner, own, num_rows) for runner, own in zip(runners, tables, strict=True)]
    turns = []
    for turn in range(_WARM_UP_TURNS + num_turns):
        # Who goes first changes, so that neither always finds the caches as the other left them.
        order = (0, 1) if turn % 2 else (1, 0)
        times_ms = [0.0, 0.0]
        for index in order:
            started_s = time.perf_counter()
            runners[index].forward(batches[index])
            times_ms[index] = (time.perf_counter() - started_s) * 1e3
        if turn >= _WARM_UP_TURNS:
            turns.append(times_ms)
            on_turn()
    for table in itertools.chain(*tables):
        table.free()
    return turns


def _filled(runner: ModelRunner, tables: Sequence[BlockTable], num_rows: int) -> list[SequenceRows]:
    """The rows of a pass, for sessions that hold `_CONTEXT_TOKENS` tokens already."""
    batch = []
    context = [token % runner.vocab_size for token in range(7, 7 + _CONTEXT_TOKENS)]
    for table in tables:
        table.resize(_CONTEXT_TOKENS + num_rows)
        runner.forward([SequenceRows(table, 0, context, 0)])
        rows = [token % runner.vocab_size for token in range(3, 3 + num_rows)]
        batch.append(SequenceRows(table, _CONTEXT_TOKENS, rows, 1))
    return batch


def print_tables(
    acceptance: Sequence[Acceptance], weights: Sequence[Weights], times: Sequence[PassTime]
) -> None:
    """Three small tables."""
    print(f"\n{'pair':<28}{'T':>5}{'draft':>8}{'rounds':>8}{'accepted of drafted':>22}")
    for line in acceptance:
        name = line.quantization or "plain"
        print(
            f"{line.pair:<28}{line.temperature:>5g}{name:>8}{line.num_rounds:>8}{line.rate:>22.4f}"
        )
    print(
        f"\n{'pair':<28}{'threads':>8}{'sessions':>9}{'rows':>6}{'plain':>10}{'int8':>10}"
        f"{'ratio':>19}{'shortest':>20}"
    )
    for time_line in times:
        low, high = time_line.ratio_quartiles
        print(
            f"{time_line.pair:<28}{time_line.num_threads:>8}{time_line.num_sessions:>9}"
            f"{time_line.num_rows:>6}{time_line.plain_ms:>7.2f} ms{time_line.int8_ms:>7.2f} ms"
            f"  {time_line.ratio:>4.2f} [{low:>4.2f}, {high:>4.2f}]"
            f"{time_line.shortest_ms[0]:>9.2f} {time_line.shortest_ms[1]:>7.2f} ms"
        )
    print()
    for memory in weights:
        print(
            f"{memory.pair}: weights {memory.plain_mb:.1f} MB, int8 {memory.int8_mb:.1f} MB; "
            f"batch_invariant {memory.batch_invariant[0]}, int8 {memory.batch_invariant[1]}"
        )


def measure(arguments: argparse.Namespace) -> dict[str, Sequence[object]]:
    """Everything the arguments ask for, printed; returned ready for JSON."""
    acceptance: list[Acceptance] = []
    weights: list[Weights] = []
    times: list[PassTime] = []
    num_texts = len(QUANTIZATIONS) * len(arguments.temperature) * arguments.prompts
    num_shapes = len(arguments.sessions) + len(arguments.rows)
    for pair in arguments.pair:
        with tqdm(total=num_texts, desc=f"{pair.label}: acceptance", unit="text") as bar:
            acceptance += measure_acceptance(pair, arguments, bar.update)
        for num_threads in arguments.threads:
            total = num_shapes * arguments.turns
            with tqdm(total=total, desc=f"{pair.label}: {num_threads} threads", unit="turn") as bar:
                memory, passes = measure_passes(pair, arguments, num_threads, bar.update)
            times += passes
            if num_threads == arguments.threads[0]:
                weights.append(memory)
    print_tables(acceptance, weights, times)
    return {
        "acceptance": [asdict(line) for line in acceptance],
        "weights": [asdict(line) for line in weights],
        "passes": [asdict(line) for line in times],
    }


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--pair",
        metavar="[LABEL=]DIR",
        nargs="+",
        default=["models/demo"],
        help="folders with target/ and draft/ that share the demo's tokenizer",
    )
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of a pass")
    parser.add_argument("--k", type=int, default=3, help="tokens drafted per round")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--prompts", type=int, default=32, help="held-out prompts")
    parser.add_argument("--max-tokens", type=int, default=64, help="of a text, unless it ends")
    parser.add_argument("--batch", type=int, default=16, help="texts at a time")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--sessions", type=int, nargs="+", default=[1, 2, 4, 8], help="of a draft step"
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 256], help="of a prompt's pass")
    parser.add_argument("--turns", type=int, default=200, help="passes of each draft per shape")
    parser.add_argument("--output", type=Path, help="JSON file")
    arguments = parser.parse_args(argv)
    try:
        arguments.pair = [PairPath.parse(text) for text in arguments.pair]
    except ValueError as error:
        parser.error(str(error))
    numbers = ("threads", "k", "prompts", "max_tokens", "batch", "sessions", "rows")
    for name in numbers:
        value = getattr(arguments, name)
        smallest = min(value) if isinstance(value, list) else value
        if smallest < 1:
            parser.error(f"{name} must be at least 1, got {smallest}")
    if arguments.turns < 2:
        parser.error(f"turns must be at least 2, got {arguments.turns}")
    if max(arguments.rows) > _MAX_MODEL_LEN // 2:
        parser.error(f"rows must be at most {_MAX_MODEL_LEN // 2}, got {max(arguments.rows)}")
    return arguments


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = _parse(argv)
    content: dict[str, object] = {
        "command": public_command("loadtest.quantized", argv),
        "machine": describe_machine(),
        "dtype": arguments.dtype,
        "k": arguments.k,
        **measure(arguments),
    }
    if arguments.output is not None:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(f"\nwritten: {arguments.output}")


if __name__ == "__main__":
    main()
