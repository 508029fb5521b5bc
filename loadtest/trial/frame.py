"""The frame of commands that pass or fail: parse, run, report what did not hold, write, exit.

A command brings its options and its checks. The findings so far are printed and written
at any end of the run, an exception and Ctrl-C included. They never read as clean then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from loadtest.report.machine import ROOT
from loadtest.report.record import head, write_json


@dataclass(kw_only=True)
class Report:
    """Holds what a trial has found so far; each trial adds its own.

    Attributes:
        violations: what did not hold, a line each.
        crash: why the run ended early; empty when it did not.
    """

    violations: list[str] = field(default_factory=list)
    crash: str = ""

    @property
    def problems(self) -> list[str]:
        """Return all that keeps the trial from having passed, a line each."""
        return [*self.violations, *filter(None, [self.crash])]

    @property
    def is_clean(self) -> bool:
        """True if all requirements held."""
        return not self.problems

    def content(self) -> Mapping[str, object]:
        """Return the entries of the result file after its head."""
        raise NotImplementedError

    def lines(self) -> Iterable[str]:
        """Return what is printed at the end, before the problems."""
        return ()


Found = TypeVar("Found", bound=Report)


def trial_parser(
    module: str, doc: str | None, *, config: str = "demo.yaml"
) -> argparse.ArgumentParser:
    """Return a parser with what every trial takes: the config, and where results go."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=(doc or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument(
        "--config", type=Path, default=ROOT / "configs" / config, help="a Serve config of ours"
    )
    parser.add_argument(
        "--output", type=Path, help="JSON file for the results; a figure goes next to it"
    )
    return parser


def run_trial(
    module: str,
    parse: Callable[[Sequence[str]], argparse.Namespace],
    run: Callable[[argparse.Namespace, Found], None],
    report: Found,
    argv: Sequence[str] | None = None,
) -> int:
    """Run a trial from the command line; return the exit status, 1 when something did not hold.

    Args:
        module: that is run, for the result's command.
        parse: reads the words into a namespace with `output`, a path or None.
        run: fills the report.
        report: still empty.
        argv: words of the command line; None: this process's.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = parse(words)
    try:
        run(arguments, report)
    except BaseException as error:  # Ctrl-C included: what was cut off must not read as clean
        report.crash = report.crash or f"ended early: {type(error).__name__}: {error}"
        raise
    finally:
        _print(report)
        if arguments.output is not None:
            first = head(f"python -m {module}", words, vars(arguments))
            write_json(arguments.output, {**first, **report.content()})
    return 0 if report.is_clean else 1


def _print(report: Report) -> None:
    for line in report.lines():
        print(line)
    for problem in report.problems:
        print(f"VIOLATED: {problem}")
    print(f"result: {'all held' if report.is_clean else 'violated, see above'}", flush=True)
