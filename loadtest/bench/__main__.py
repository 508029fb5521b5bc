"""The whole benchmark: engines, links and HTTP, next to transformers on the same weights.

    python -m loadtest.bench --pair models/demo --grow 349m-18m --output results/bench.json

Each pair has three parts. Pass times and the engine loop run in one process
(`loadtest.bench.engine`). The same loop runs with draft and target in processes of their own.
`serve run` answers over HTTP. `--draft-quantization int8` compares the pair's draft with 8-bit
weights to the same draft without (`loadtest.bench.quantized`). Prints tables and the project's
claims with their goals. Writes JSON after every part, and a plot next to it. Compared lines run by
turns, with the same threads. Ratios count, because absolute figures depend on the machine.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tqdm import tqdm

from loadtest.bench.claims import best_assisted_k, best_k, claims_of
from loadtest.bench.engine import EngineSettings, add_settings, load_pair, measure_engines
from loadtest.bench.gap import measure_gaps
from loadtest.bench.http import http_served
from loadtest.bench.lines import PairBench
from loadtest.bench.link import linked
from loadtest.bench.loop import LoopRun, Prompts, name_of
from loadtest.bench.plot import draw
from loadtest.bench.quantized import DEFAULTS, QUANTIZATION, Found, compare_drafts, print_drafts
from loadtest.bench.record import Record, line_of, print_pair
from loadtest.bench.references import BareEngine
from loadtest.report.interleaved import interleave
from loadtest.report.machine import ROOT
from loadtest.report.pairs import PairPath
from loadtest.report.prompts import demo_prompts
from loadtest.report.record import head, write_json
from loadtest.service.served import POD_ENVIRONMENT

_DEMO = f"demo={ROOT / 'models' / 'demo'}"
_CACHE = Path.home() / ".cache" / "outrider" / "pairs"
_GROWN = {"349m-18m": ("--preset", "349m-18m", "--acceptance", "0.8")}
_GROW_TIMEOUT_S = 1800
_WARM_UP_TOKENS = 8
_PARTS = ("engine", "link", "gap", "http")
_LONG_PROMPT_TOKENS = 2000
_LONG_MODEL_LEN = 2048


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    words = sys.argv[1:] if argv is None else argv
    parser = _parser()
    arguments = parser.parse_args(words)
    settings = EngineSettings.of(arguments)
    try:
        pairs = [PairPath.parse(text) for text in arguments.pair]
        pairs += [grown_pair(name, arguments.cache) for name in arguments.grow]
        pairs = pairs or [PairPath.parse(_DEMO)]
    except ValueError as error:
        parser.error(str(error))
    if arguments.draft_quantization:
        _compare_drafts(pairs, settings, words, arguments.output)
        return
    threads = (settings.threads, arguments.served_draft_threads)
    record = Record(
        arguments.output,
        "loadtest.bench",
        words,
        {
            **asdict(settings),
            "served_threads": threads,
            "served_environment": POD_ENVIRONMENT,
            "parts": arguments.parts,
        },
    )
    for pair in pairs:
        _measure(record, pair, settings, threads, arguments.parts)
        gc.collect()
    for pair in pairs:
        claims = claims_of(record.pair(pair.label))
        record.put(pair.label, "claims", [claim.record() for claim in claims])
        print(f"\n== {pair.label}: claims", *claims, sep="\n")
    record.finish()
    if arguments.output is not None:
        draw(record.content["pairs"], arguments.output.with_suffix(".png"))


def grown_pair(name: str, cache: Path) -> PairPath:
    """Return a pair grown by `loadtest.grow`, from the cache if it is there.

    Raises:
        ValueError: growing failed.
    """
    path = cache / name
    if not (path / "pair.json").is_file():  # written last
        print(f"growing {name}, which takes some minutes", flush=True)
        command = [sys.executable, "-m", "loadtest.grow", *_GROWN[name], "--output", str(path)]
        done = subprocess.run(command, check=False, timeout=_GROW_TIMEOUT_S)
        if done.returncode != 0:
            raise ValueError(f"growing {name} ended with status {done.returncode}")
    return PairPath(name, path)


def _compare_drafts(
    pairs: Sequence[PairPath], settings: EngineSettings, words: Sequence[str], output: Path | None
) -> None:
    """Measure drafts with 8-bit weights next to the same drafts as they are, print and write."""
    found: Found = {}
    for pair in pairs:
        for part, lines in compare_drafts(pair, settings).items():
            found.setdefault(part, []).extend(lines)
    print_drafts(found)
    first = head("python -m loadtest.bench", words, asdict(settings))
    write_json(output, {**first, "dtype": settings.dtype, "k": settings.k[0], **found})


def _measure(
    record: Record,
    pair: PairPath,
    settings: EngineSettings,
    threads: tuple[int, int],
    parts: Sequence[str],
) -> None:
    prompts = demo_prompts(
        max(settings.num_prompts(batch) for batch in settings.batch), kind="story"
    )
    bench = load_pair(pair.path, settings)
    measure_engines(record, pair.label, bench, settings, prompts)
    few = prompts[: settings.prompts]
    if "link" in parts:
        _measure_link(record, pair, bench, settings, threads, few)
    if "gap" in parts:
        _measure_gaps(record, pair, settings, threads, prompts)
    if "http" in parts:
        _measure_http(record, pair, bench, settings, threads, few)
    print_pair(pair.label, record.pair(pair.label))


def _measure_link(
    record: Record,
    pair: PairPath,
    bench: PairBench,
    settings: EngineSettings,
    threads: tuple[int, int],
    prompts: Prompts,
) -> None:
    """Batch 1 through links, and the bare engine of this process next to it."""
    ks = (0, best_k(record.pair(pair.label)["lines"]), None)
    bare = BareEngine(bench.target)
    with linked(
        pair.path,
        dtype=settings.dtype,
        target_threads=threads[0],
        draft_threads=threads[1],
        max_model_len=bench.target.max_model_len,
    ) as link:

        def lines(num_tokens: int) -> dict[str, Callable[[], LoopRun | float]]:
            run = partial(link.run, prompts, batch=1, num_tokens=num_tokens)
            return {
                "bare engine": lambda: _one_by_one(bare, prompts, num_tokens),
                **{name_of(k): partial(run, k=k) for k in ks},
            }

        _measure_lines(record, pair.label, "link", lines, settings)


def _measure_gaps(
    record: Record,
    pair: PairPath,
    settings: EngineSettings,
    threads: tuple[int, int],
    prompts: Prompts,
) -> None:
    """Measure a stream next to a long prompt, without drafts and with adaptive k."""
    long_prompt = [token for prompt in prompts for token in prompt]
    long_prompt = long_prompt * (1 + _LONG_PROMPT_TOKENS // len(long_prompt))
    runs: list[dict[str, object]] = []
    with linked(
        pair.path,
        dtype=settings.dtype,
        target_threads=threads[0],
        draft_threads=threads[1],
        max_model_len=_LONG_MODEL_LEN,
    ) as link:
        for k in tqdm((0, None) * settings.repeats, desc=f"{pair.label}: gap", unit="run"):
            run = measure_gaps(link, prompts[0], long_prompt[:_LONG_PROMPT_TOKENS], k=k)
            runs.append(asdict(run))
            record.put(pair.label, "gaps", runs)


def _measure_http(
    record: Record,
    pair: PairPath,
    bench: PairBench,
    settings: EngineSettings,
    threads: tuple[int, int],
    prompts: Prompts,
) -> None:
    """Batch 1 over HTTP, and transformers' best assistant in this process next to it."""
    measured = record.pair(pair.label)["lines"]
    ks = (0, best_k(measured), None)
    assisted_k = best_assisted_k(measured)
    name = f"assisted {'heuristic' if assisted_k is None else name_of(assisted_k)}"
    with http_served(pair.path, dtype=settings.dtype, threads=threads) as http:

        def lines(num_tokens: int) -> dict[str, Callable[[], LoopRun | float]]:
            return {
                **{name_of(k): partial(http.tokens_per_s, prompts, k, num_tokens) for k in ks},
                name: bench.assisted(prompts, assisted_k, num_tokens),
            }

        _measure_lines(record, pair.label, "http", lines, settings)


def _measure_lines(
    record: Record,
    label: str,
    where: str,
    lines: Callable[[int], dict[str, Callable[[], LoopRun | float]]],
    settings: EngineSettings,
) -> None:
    """Run the lines of so many tokens by turns, after short ones, into the record."""
    interleave(lines(_WARM_UP_TOKENS), 1)
    measured = lines(settings.tokens)
    measured[name_of(None)]()  # its planner is warm from here on
    with tqdm(total=len(measured) * settings.repeats, desc=f"{label}: {where}", unit="run") as bar:
        runs = interleave(measured, settings.repeats, lambda name, value: bar.update())
    record.add_lines(label, [line_of(where, way, 1, values) for way, values in runs.items()])


def _one_by_one(bare: BareEngine, prompts: Prompts, num_tokens: int) -> float:
    rates = [bare.tokens_per_s([prompt], num_tokens) for prompt in prompts]
    return len(rates) / sum(1.0 / rate for rate in rates)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument(
        "--grow",
        action="append",
        default=[],
        choices=sorted(_GROWN),
        help="a pair of this size as well, grown into the cache when it is not there",
    )
    parser.add_argument("--cache", type=Path, default=_CACHE, help="folder of grown pairs")
    parser.add_argument(
        "--parts", nargs="+", choices=_PARTS, default=list(_PARTS), help="engine always runs"
    )
    parser.add_argument(
        "--draft-quantization",
        choices=[QUANTIZATION],
        help="measure only this: the draft with such weights next to the draft as it is, with the "
        f"first of --k, --batch sessions and --pass-repeats turns (kept results: {DEFAULTS})",
    )
    parser.add_argument(
        "--served-draft-threads", type=int, default=1, help="of the draft where it is a process"
    )
    parser.add_argument(
        "--output", type=Path, help="JSON file, written after every part; the plot goes next to it"
    )
    add_settings(parser)
    return parser


if __name__ == "__main__":
    main()
