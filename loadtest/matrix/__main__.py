"""Tries the promises on the whole width of requests: valid JSON, and texts that no draft moves.

    python -m loadtest.matrix --output loadtest/results/matrix.json
    python -m loadtest.matrix --schemas 6 --seeds 1 --parameters top_p n

Serves the demo pair in this process, with the HTTP routes but without a socket. First every
sampling parameter is requested, streamed and not, free and under constraints. This happens without
drafts and in four ways with them. Then random bounded schemas are answered at temperature 1 with
several seeds. k is 0, 4 and adaptive. `jsonschema` checks each finished answer. Ends with status 1
where a text differs, an answer breaks its schema, or fewer than 80% finish.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.matrix import parameters, schemas
from loadtest.matrix.parameters import PARAMETERS, Cell
from loadtest.matrix.schemas import Counts
from loadtest.matrix.world import demo_client
from loadtest.report.pairs import PairPath
from loadtest.trial import frame

LEAST_FINISHED = 0.8  # share of answers under bounded schemas
_MAX_LISTED = 20  # violations that a result lists


@dataclass(kw_only=True)
class Report(frame.Report):
    """The results of both parts."""

    cells: list[Cell] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)

    @property
    def problems(self) -> list[str]:
        """Differences, broken schemas, and too few ends."""
        found = [
            f"{cell.parameter}, {cell.constraint}, {'streamed' if cell.is_stream else 'whole'}: "
            f"{cell.detail}"
            for cell in self.cells
            if cell.verdict == "differs"
        ]
        found += self.counts.complaints
        if self.counts.num_answers and self.counts.finished_share < LEAST_FINISHED:
            found.append(
                f"{self.counts.finished_share:.0%} of the answers finished, at least "
                f"{LEAST_FINISHED:.0%} should"
            )
        return [*found[:_MAX_LISTED], *super().problems]

    def content(self) -> dict[str, object]:
        """See `frame.Report`."""
        return {
            "result": "all held" if self.is_clean else "violated",
            "violations": self.problems,
            "least_finished": LEAST_FINISHED,
            "parameters": [dataclasses.asdict(cell) for cell in self.cells],
            "ways": list(parameters.WAYS),
            "schemas": dataclasses.asdict(self.counts)
            | {"finished_share": self.counts.finished_share, "ways": list(schemas.WAYS)},
        }

    def lines(self) -> Iterable[str]:
        """See `frame.Report`."""
        verdicts = [cell.verdict for cell in self.cells]
        yield ", ".join(f"{verdicts.count(one)} {one}" for one in sorted(set(verdicts)))
        counts = self.counts
        yield (
            f"{counts.num_schemas} schemas, {counts.num_answers} answers, {counts.num_tokens} "
            f"tokens in {counts.num_seconds:.0f} s: {counts.num_finished} finished, "
            f"{counts.num_valid} of these valid; {counts.num_same} of {counts.num_compared} the "
            "same as without drafts"
        )


def run(arguments: argparse.Namespace, report: Report) -> None:
    """Run both parts."""
    asyncio.run(_run(arguments, report))


async def _run(arguments: argparse.Namespace, report: Report) -> None:
    async with demo_client(PairPath.parse(arguments.pair).path, arguments.threads) as client:
        report.cells = await parameters.run_parameters(client, arguments.parameters, arguments.seed)
        report.counts = await schemas.run_schemas(
            client,
            num_schemas=arguments.schemas,
            num_seeds=arguments.seeds,
            seed=arguments.seed,
            limit_s=60.0 * arguments.minutes,
        )


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.matrix", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--pair", default="models/demo", help="[LABEL=]DIR")
    parser.add_argument("--schemas", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3, help="of each schema")
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="after which no further schema is begun"
    )
    parser.add_argument("--parameters", nargs="*", default=list(PARAMETERS), metavar="NAME")
    parser.add_argument("--seed", type=int, default=7, help="of the first request and the schemas")
    parser.add_argument("--threads", type=int, default=1, help="of each engine")
    parser.add_argument("--output", type=Path, help="JSON file for the result")
    arguments = parser.parse_args(argv)
    for name in arguments.parameters:
        if name not in PARAMETERS:
            raise SystemExit(f"--parameters: must be of {', '.join(PARAMETERS)}, got {name!r}")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    return frame.run_trial("loadtest.matrix", _parse, run, Report(), argv)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.exit(status)
