"""Another name for `python -m loadtest.bench --draft-quantization int8`, with options of its own.

    python -m loadtest.quantized --pair models/demo --output loadtest/results/quantized.json

Measures several numbers of threads in one run and writes them side by side (`bench.quantized`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.bench.quantized import MAX_MODEL_LEN, DraftSettings, compare_drafts, print_drafts
from loadtest.report.pairs import PairPath
from loadtest.report.record import head, write_json

_REPLACED_BY = "python -m loadtest.bench --draft-quantization int8"


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.quantized",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
        epilog=f"Replaced by: {_REPLACED_BY}",
    )
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
    if max(arguments.rows) > MAX_MODEL_LEN // 2:
        parser.error(f"rows must be at most {MAX_MODEL_LEN // 2}, got {max(arguments.rows)}")
    return arguments


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    words = sys.argv[1:] if argv is None else argv
    arguments = _parse(words)
    print(f"loadtest.quantized is part of the bench now: {_REPLACED_BY}", file=sys.stderr)
    options = dict(vars(arguments))
    pairs, output = options.pop("pair"), options.pop("output")
    settings = DraftSettings(temperatures=options.pop("temperature"), **options)
    found: dict[str, list[dict[str, Any]]] = {}
    for pair in pairs:
        for part, lines in compare_drafts(pair, settings).items():
            found.setdefault(part, []).extend(lines)
    print_drafts(found)
    first = head("python -m loadtest.quantized", words, {})
    first.pop("settings")  # the file of this name has only these two
    write_json(output, {**first, "dtype": settings.dtype, "k": settings.k, **found})


if __name__ == "__main__":
    main()
