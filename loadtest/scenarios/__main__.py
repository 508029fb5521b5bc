"""Compares adaptive k with every fixed k and plain decoding, in many scenarios.

    python -m loadtest.scenarios --quick
    python -m loadtest.scenarios --scenario 'demo-*' --output results/scenarios.json

All lines of a scenario run by turns. They are plain decoding, every fixed k, adaptive k with a warm
planner, and k pinned inside the planner's machinery. The command prints one table and the claims
with their goals. It writes JSON after every scenario, and a picture next to it.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from tqdm import tqdm

from loadtest.bench.claims import Claim
from loadtest.report.record import head, write_json
from loadtest.scenarios.catalog import CATALOG, GROWN, QUICK, TURNING, Scenario, select
from loadtest.scenarios.growing import grow_pairs
from loadtest.scenarios.measure import Plan, measure, num_runs
from loadtest.scenarios.pairs import MissingError, find_pair
from loadtest.scenarios.plot import draw
from loadtest.scenarios.stages import Machine, open_stage
from loadtest.scenarios.table import lines_of

_CACHE = Path.home() / ".cache" / "outrider" / "pairs"


def main(argv: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    arguments = parser.parse_args(words)
    if arguments.list:
        print(*(scenario.name for scenario in CATALOG), sep="\n")
        return
    try:
        chosen = select(arguments.scenario or (QUICK if arguments.quick else ["*"]))
        plan = _plan(arguments)
    except ValueError as error:
        parser.error(str(error))
    if arguments.grow:
        pairs = {part for one in chosen for part in TURNING.get(one.pair, (one.pair,))}
        grow_pairs(arguments.cache, [name for name in GROWN if name in pairs])
        return
    content: dict[str, Any] = {
        **head("python -m loadtest.scenarios", words, vars(arguments)),
        "is_complete": False,
        **_kept(arguments),
        "skipped": [],
    }
    done = {one["name"] for one in content["scenarios"]}
    _measure_all([one for one in chosen if one.name not in done], plan, arguments, content)
    content["is_complete"] = True
    write_json(arguments.output, content)
    if arguments.output is not None and content["scenarios"]:
        draw(content["scenarios"], arguments.output.with_suffix(".png"))
    _show(content)


def _measure_all(
    chosen: Sequence[Scenario], plan: Plan, arguments: argparse.Namespace, content: dict[str, Any]
) -> None:
    """Measure scenario after scenario into `content`; each pair is loaded once for each place."""
    machine = Machine(
        dtype=arguments.dtype, threads=arguments.threads, draft_threads=arguments.draft_threads
    )
    for (name, where), group in groupby(chosen, lambda one: (one.pair, one.where)):
        scenarios = list(group)
        try:
            pair = find_pair(name, arguments.cache)
        except MissingError as missing:
            content["skipped"] += [{"name": s.name, "reason": str(missing)} for s in scenarios]
            continue
        total = sum(num_runs(scenario, plan) for scenario in scenarios)
        with (
            open_stage(where, pair, machine) as stage,
            tqdm(total=total, desc=f"{name}: {where}", unit="run") as bar,
        ):
            if costs := stage.costs():
                content["pairs"][name] = costs
            for scenario in scenarios:
                outcome = measure(scenario, stage, pair.prompts, plan, lambda: bar.update())
                # A run that goes on with another's file may be on another machine.
                record = {**outcome.record(), "processor": content["machine"]["processor"]}
                content["scenarios"].append(record)
                write_json(arguments.output, content)
        gc.collect()


def _show(content: dict[str, Any]) -> None:
    print()
    for line in lines_of(content["scenarios"]):
        print(line)
    print()
    for one in content["scenarios"]:
        for claim in one["claims"]:
            print(Claim(**{key: value for key, value in claim.items() if key != "is_met"}))
    for one in content["skipped"]:
        print(f"left out {one['name']}: {one['reason']}")


def _kept(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the measurements of an earlier run if this one resumes it."""
    if not arguments.resume or arguments.output is None or not arguments.output.is_file():
        return {"pairs": {}, "scenarios": []}
    content = json.loads(arguments.output.read_text(encoding="utf-8"))
    return {part: content[part] for part in ("pairs", "scenarios")}


def _plan(arguments: argparse.Namespace) -> Plan:
    ks = sorted({k for k in arguments.k if k > 0})
    if not {0, *ks}.issuperset(arguments.pinned):
        raise ValueError(f"--pinned must be of 0 and --k, {ks}, got {arguments.pinned}")
    quick = arguments.quick
    return Plan(
        ks=ks,
        pinned=arguments.pinned,
        repeats=arguments.repeats or (4 if quick else 6),
        run_s=arguments.run_s or (0.5 if quick else 1.0),
        warm_s=arguments.warm_s,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.scenarios",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument(
        "--scenario", nargs="+", metavar="NAME", help="names or patterns; default: all of --list"
    )
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument(
        "--grow", action="store_true", help="grow the pairs of the scenarios into --cache and end"
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"shorter and fewer runs; of {', '.join(QUICK)} only"
    )
    parser.add_argument("--k", type=int, nargs="+", default=[1, 2, 3, 5, 8], help="fixed k")
    parser.add_argument(
        "--pinned", type=int, nargs="*", default=[3], help="k pinned inside the planner's machinery"
    )
    parser.add_argument("--repeats", type=_at_least_2, help="turns; 6, quick: 4")
    parser.add_argument("--run-s", type=float, help="about how long a run takes; 1, quick: 0.5")
    parser.add_argument(
        "--warm-s", type=float, default=5.0, help="how long a line with a planner runs before"
    )
    parser.add_argument("--threads", type=int, default=2, help="of torch; of a served target")
    parser.add_argument("--draft-threads", type=int, default=1, help="of a draft process")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--cache", type=Path, default=_CACHE, help="folder of grown pairs")
    parser.add_argument(
        "--output", type=Path, help="JSON file, written after every scenario; a picture next to it"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep what --output has, measure what it has not"
    )
    return parser


def _at_least_2(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"must be at least 2, for two halves, got {value}")
    return value


if __name__ == "__main__":
    main()
