"""Measures the gain of the heads of the demo's target over HTTP: `configs/heads.yaml`, by turns.

    python -m loadtest.heads --output loadtest/results/heads.json

Prompts of each kind are completed greedily, by one client and by eight. Speculation is off, or
heads draft alone: suffix decoding is off. One service answers all of it, for each folder of heads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from loadtest.bench.claims import Claim
from loadtest.bench.http import HttpBench, heads_served
from loadtest.bench.loop import Ask, LoopRun
from loadtest.report.interleaved import interleave, median_ratio
from loadtest.report.prompts import demo_prompts
from loadtest.report.record import head, write_json

KINDS = ("story", "extraction", "code")
FOLDERS = ("models/demo/mtp", "models/demo/heads")
_GOALS = {"story": 1.4, "extraction": 1.8, "code": 1.8}  # for one client
_NEVER_BELOW = 0.97  # for many
_PLAIN, _HEADS = "plain", "heads"


def measure(
    bench: HttpBench, kind: str, batch: int, num_tokens: int, repeats: int
) -> dict[str, Any]:
    """Measure one kind of prompts for so many clients."""
    prompts = demo_prompts(2 * max(batch, 2), kind=kind)
    asks = [Ask(prompt=prompt, num_tokens=num_tokens) for prompt in prompts]
    ways = {
        _PLAIN: partial(bench.serve, asks, batch=batch, k=0),
        _HEADS: partial(bench.serve, asks, batch=batch, k=None),
    }
    for run in ways.values():
        run()  # costs and acceptance are learnt
    runs: Mapping[str, Sequence[LoopRun]] = interleave(ways, repeats)
    rates = {way: [run.tokens_per_s for run in given] for way, given in runs.items()}
    drafted = runs[_HEADS]
    return {
        "kind": kind,
        "batch": batch,
        "tokens_per_s": {way: statistics.median(values) for way, values in rates.items()},
        "to_plain": median_ratio(rates[_HEADS], rates[_PLAIN]),
        "tokens_per_round": statistics.median(run.tokens_per_round for run in drafted),
        "acceptance": statistics.median(run.acceptance for run in drafted),
        "mean_k": statistics.median(run.mean_k for run in drafted),
    }


def claims_of(found: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Return claims: one client gains by kind, and many lose nothing, by the first folder."""
    return [
        Claim(
            f"{one['kind']}, {one['batch']} clients: heads / plain",
            one["to_plain"],
            "at least",
            _GOALS[one["kind"]] if one["batch"] == 1 else _NEVER_BELOW,
        )
        for one in found
        if one["folder"] == FOLDERS[0]
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the bench from the command line."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="loadtest.heads", description=__doc__)
    parser.add_argument("--folders", nargs="+", default=list(FOLDERS), help="of heads")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--tokens", type=int, default=100, help="of each answer")
    parser.add_argument("--repeats", type=int, default=5, help="of each way, by turns")
    parser.add_argument("--output", type=Path, help="JSON")
    arguments = parser.parse_args(words)
    found = []
    for folder in arguments.folders:
        with heads_served(folder) as bench:
            for kind, batch in product(arguments.kinds, arguments.batch):
                line = measure(bench, kind, batch, arguments.tokens, arguments.repeats)
                found.append({"folder": folder} | line)
                print(json.dumps(found[-1]), flush=True)
    claims = claims_of(found)
    for claim in claims:
        print(claim)
    result = head("python -m loadtest.heads", words, vars(arguments))
    records = [claim.record() for claim in claims]
    write_json(arguments.output, result | {"lines": found, "claims": records})


if __name__ == "__main__":
    main()
