"""Engines and loop in one process: pass times, tokens per second, transformers next to them.

    python -m loadtest.bench.engine --pair models/demo --output engine.json
    python -m loadtest.bench.engine --random llama-8b --device cuda --output engine.json

Needs torch, transformers, msgspec and numpy only; the demo's prompts need jinja2 too. There is no
Ray, socket or HTTP, so it runs on a bare machine with a GPU. Both sides get the same threads, lines
are measured by turns, and the file is written after every part.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm  # comes with transformers

from loadtest.bench.lines import PairBench, num_lines
from loadtest.bench.loop import Prompts
from loadtest.bench.passes import (
    decode_shapes,
    measure_passes,
    memory_floor_ms,
    num_product_bytes,
)
from loadtest.bench.random_pair import PAIRS, make_random_pair
from loadtest.bench.record import Record, print_pair
from loadtest.report.pairs import PairPath
from models.config import DtypeName

_RANDOM_PROMPT_TOKENS = 64
_MAX_MODEL_LEN = 1024
_KV_CACHE_TOKENS = 64 * 320 + _MAX_MODEL_LEN  # 64 sessions of CONTEXT and one long prompt
_QUICK = {"repeats": 1, "pass_repeats": 3, "tokens": 24, "prompts": 2, "k": [3], "batch": [1, 8]}
_FULL = {
    "repeats": 3,
    "pass_repeats": 9,
    "tokens": 48,
    "prompts": 4,
    "k": [2, 3, 5, 8],
    "batch": [1, 4, 8],
}


@dataclass(frozen=True)
class EngineSettings:
    """Settings of a measurement.

    `repeats` is odd, so that the median is a run that took place.
    """

    device: str
    dtype: DtypeName
    threads: int
    context: int
    repeats: int
    pass_repeats: int
    tokens: int  # tokens of each completion
    prompts: int  # at batch 1; at a larger batch as many as the batch, if that is more
    k: list[int]
    batch: list[int]

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> EngineSettings:
        """Read the settings from the command line.

        An option that is not given has the value of --quick or of the full run.
        """
        values = dict(_QUICK if arguments.quick else _FULL)
        for name in values:
            given = getattr(arguments, name)
            values[name] = values[name] if given is None else given
        return cls(
            device=arguments.device,
            dtype=arguments.dtype,
            threads=arguments.threads,
            context=arguments.context,
            **values,  # type: ignore[arg-type]
        )

    def num_prompts(self, batch: int) -> int:
        """Prompts of a run at one batch size."""
        return max(self.prompts, batch)


def measure_engines(
    record: Record, label: str, bench: PairBench, settings: EngineSettings, prompts: Prompts
) -> None:
    """Measure passes and lines of one pair into `record`, with a progress bar."""
    num_runs = sum(num_lines(batch, settings.k) for batch in settings.batch) * settings.repeats
    with tqdm(total=num_runs, desc=f"{label}: engine", unit="run") as bar:
        _measure_passes(record, label, bench, settings)
        for batch in settings.batch:
            lines = bench.measure(
                prompts[: settings.num_prompts(batch)],
                batch,
                ks=settings.k,
                num_tokens=settings.tokens,
                repeats=settings.repeats,
                on_done=bar.update,
            )
            record.add_lines(label, lines)


def load_pair(path: Path, settings: EngineSettings) -> PairBench:
    """Load a pair with room for everything that is measured."""
    return PairBench(
        path,
        dtype=settings.dtype,
        device=settings.device,
        num_threads=settings.threads,
        max_model_len=_MAX_MODEL_LEN,
        kv_cache_tokens=_KV_CACHE_TOKENS,
    )


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the options for the pairs and those that `EngineSettings.of` reads."""
    parser.add_argument(
        "--pair",
        action="extend",
        nargs="+",
        default=[],
        metavar="[LABEL=]DIR",
        help="target/ and draft/ with the demo's tokenizer; may be given several times",
    )
    parser.add_argument("--device", default="cpu", help="torch device: cpu, cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, default=2, help="of torch, for both sides")
    parser.add_argument("--context", type=int, default=300, help="tokens before a decode pass")
    parser.add_argument("--quick", action="store_true", help="fewer lines, one run of each")
    parser.add_argument("--repeats", type=int, choices=range(1, 30, 2), help="runs of each line")
    parser.add_argument(
        "--pass-repeats", type=int, choices=range(1, 1000, 2), metavar="ODD", help="of each pass"
    )
    parser.add_argument("--tokens", type=int, help="completion tokens of each prompt")
    parser.add_argument("--prompts", type=int, help="prompts at batch 1")
    parser.add_argument("--k", type=int, nargs="+", help="fixed k, for ours and for assistants")
    parser.add_argument("--batch", type=int, nargs="+", help="sessions at a time")


def main(argv: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    words = sys.argv[1:] if argv is None else argv
    parser = _parser()
    arguments = parser.parse_args(words)
    settings = EngineSettings.of(arguments)
    record = Record(arguments.output, "loadtest.bench.engine", words, asdict(settings))
    with tempfile.TemporaryDirectory() as folder:
        try:
            pairs = [PairPath.parse(text) for text in arguments.pair]
            for name in arguments.random:
                path = Path(folder) / name
                make_random_pair(
                    name, path, acceptance=arguments.acceptance, device=settings.device
                )
                pairs.append(PairPath(f"random {name}", path))
        except ValueError as error:
            parser.error(str(error))
        for pair in pairs:
            bench = load_pair(pair.path, settings)
            prompts = _prompts(pair, bench, settings)
            measure_engines(record, pair.label, bench, settings, prompts)
            print_pair(pair.label, record.pair(pair.label))
            del bench
            gc.collect()
    record.finish()


def _measure_passes(record: Record, label: str, bench: PairBench, settings: EngineSettings) -> None:
    for part, runner in (("target", bench.target), ("draft", bench.draft)):
        shapes = decode_shapes(runner, settings.context)
        times = measure_passes(runner, shapes, settings.pass_repeats)
        values: dict[str, object] = {
            "product_bytes": num_product_bytes(runner),
            "batch_invariant": runner.batch_invariant,
            "passes": [asdict(time) for time in times],
        }
        if runner.device.type == "cuda":
            values["memory_floor_ms"] = memory_floor_ms(runner)
        record.put(label, part, values)


def _prompts(pair: PairPath, bench: PairBench, settings: EngineSettings) -> Prompts:
    """Stories for pairs with the demo's vocabulary, random ids for the others."""
    count = max(settings.num_prompts(batch) for batch in settings.batch)
    if (pair.path / "target" / "tokenizer.json").is_file():
        from loadtest.report.prompts import (
            demo_prompts,  # needs jinja2, which a bare machine may lack
        )

        return demo_prompts(count, kind="story")
    rng = random.Random(7)
    size = bench.target.vocab_size
    return [[rng.randrange(1, size) for _ in range(_RANDOM_PROMPT_TOKENS)] for _ in range(count)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.engine",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument(
        "--random",
        action="append",
        default=[],
        choices=sorted(PAIRS),
        help="make a random pair of this size; may be given several times",
    )
    parser.add_argument(
        "--acceptance", type=float, default=0.8, help="greedy agreement of random pairs"
    )
    parser.add_argument("--output", type=Path, help="JSON file, written after every part")
    add_settings(parser)
    return parser


if __name__ == "__main__":
    main()
