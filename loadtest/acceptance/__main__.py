"""Tokens per round of the demo pair against theory, for fixed k.

    python -m loadtest.acceptance --output loadtest/results/acceptance.json

Runs draft and target engine in this process for each workload, verification rule and k. Each round
has exactly k draft tokens. Prints tokens per round with its 95% interval next to (1 - a^(k+1)) / (1
- a), and next to the sum over measured positions. `theory` has the assumptions. Draws both. No
speed is measured here: load on the machine changes nothing. A star marks a figure that differs from
the measured one by more than chance.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path

from tqdm import tqdm

from loadtest.acceptance.plot import Study, draw
from loadtest.acceptance.rounds import EnginePair
from loadtest.acceptance.theory import analyse
from loadtest.report.prompts import demo_prompts
from loadtest.report.ratios import Estimate
from loadtest.report.record import head, write_json
from models.protocol.messages import Sampling, Verification
from models.protocol.rules import RULES

# Kinds of the demo pair's held-out texts, by name: orders to fill into JSON, code, stories.
WORKLOADS = {"orders": "extraction", "code": "code", "stories": "story"}
_MAX_MODEL_LEN = 1024


def rules_of(
    verifications: Sequence[Verification], temperatures: Sequence[float], seed: int
) -> dict[str, Sampling]:
    """Return the ways to sample by name: each rule at each temperature, and greedy at 0."""
    rules: dict[str, Sampling] = {}
    for temperature in dict.fromkeys(temperatures):
        if temperature == 0:
            rules["greedy"] = Sampling(temperature=0.0, seed=seed)
            continue
        for verification in dict.fromkeys(verifications):
            rules[f"{verification} T={temperature:g}"] = Sampling(
                temperature=temperature, seed=seed, verification=verification
            )
    return rules


def measure(arguments: argparse.Namespace) -> list[Study]:
    """Run all workloads and rules that the arguments ask for."""
    pair = EnginePair(
        arguments.pair,
        dtype=arguments.dtype,
        batch=arguments.batch,
        max_model_len=_MAX_MODEL_LEN,
        num_threads=arguments.threads,
    )
    rules = rules_of(arguments.verification, arguments.temperature, arguments.seed)
    methods = dict.fromkeys(arguments.draft_sample_method)
    num_texts = len(arguments.workload) * len(rules) * len(methods)
    num_texts *= len(arguments.k) * arguments.prompts
    studies: list[Study] = []
    with tqdm(total=num_texts, desc="measuring", unit="text") as bar:
        for workload in arguments.workload:
            prompts = demo_prompts(arguments.prompts, arguments.seed, WORKLOADS[workload])
            for (name, sampling), method in product(rules.items(), methods):
                pair.drafts_greedily = method == "greedy"
                name += ", greedy draft" if pair.drafts_greedily else ""
                accepted = {
                    k: pair.run(prompts, sampling, k, arguments.max_tokens, bar.update)
                    for k in arguments.k
                }
                studies.append(Study(workload, name, analyse(accepted, arguments.seed)))
    return studies


def print_tables(studies: Sequence[Study]) -> None:
    """Print one table per study, in tokens per round."""
    for study in studies:
        acceptance = study.analysis.acceptance
        print(
            f"\n{study.workload}, {study.rule}: a = {acceptance.value:.3f} "
            f"[{acceptance.low:.3f}, {acceptance.high:.3f}]; by position "
            + " ".join(f"{hazard:.2f}" for hazard in study.analysis.hazards)
        )
        print(
            f"{'k':>3}{'rounds':>8}{'tokens per round':>24}"
            f"{'(1-a^(k+1))/(1-a)':>20}{'1+S_1+...+S_k':>16}"
        )
        for line in study.analysis.lines:
            measured = line.measured
            print(
                f"{line.k:>3}{line.num_rounds:>8}{measured.value:>10.3f}"
                f" [{measured.low:.3f}, {measured.high:.3f}]"
                f"{line.constant:>17.3f} {_star(line.constant_excess)}"
                f"{line.by_position:>13.3f} {_star(line.by_position_excess)}"
            )


def _star(excess: Estimate) -> str:
    return " " if excess.low <= 0.0 <= excess.high else "*"


def write_results(
    studies: Sequence[Study], arguments: argparse.Namespace, argv: Sequence[str]
) -> None:
    """Write the JSON file and, next to it, the PNG."""
    output: Path = arguments.output
    content = {
        **head("python -m loadtest.acceptance", argv, vars(arguments)),
        "studies": [asdict(study) for study in studies],
    }
    write_json(output, content)
    draw(studies, output.with_suffix(".png"))
    print(f"\nwritten: {output} and {output.with_suffix('.png')}")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--pair", type=Path, default=Path("models/demo"), help="target/ and draft/")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--workload", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument(
        "--verification",
        nargs="+",
        default=list(RULES),
        choices=list(RULES),
    )
    parser.add_argument(
        "--temperature", type=float, nargs="+", default=[1.0, 0.0], help="0: greedy"
    )
    parser.add_argument(
        "--draft-sample-method",
        nargs="+",
        default=["probabilistic"],
        choices=["probabilistic", "greedy"],
        help="how the draft model chooses its tokens",
    )
    parser.add_argument("--k", type=int, nargs="+", default=list(range(1, 9)))
    parser.add_argument("--prompts", type=int, default=32, help="held-out prompts per workload")
    parser.add_argument("--max-tokens", type=int, default=64, help="of a text, unless it ends")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16, help="texts at a time")
    parser.add_argument("--threads", type=int, default=1, help="of a pass")
    parser.add_argument("--output", type=Path, help="JSON file; the drawing is named alike, .png")
    arguments = parser.parse_args(argv)
    arguments.k = sorted(set(arguments.k))
    for name in ("prompts", "max_tokens", "batch", "threads"):
        if getattr(arguments, name) < 1:
            parser.error(f"{name} must be at least 1, got {getattr(arguments, name)}")
    if arguments.k[0] < 1:
        parser.error(f"k must be at least 1, got {arguments.k[0]}")
    if min(arguments.temperature) < 0:
        parser.error(f"temperature must not be negative, got {min(arguments.temperature)}")
    if arguments.output is not None and arguments.output.suffix == ".png":
        parser.error("output: name the JSON file; the drawing goes next to it as .png")
    return arguments


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = _parse(argv)
    studies = measure(arguments)
    print_tables(studies)
    if arguments.output is not None:
        write_results(studies, arguments, argv)


if __name__ == "__main__":
    main()
