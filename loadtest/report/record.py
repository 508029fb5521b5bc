"""What every command's results begin with: the command, the machine, the settings."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from loadtest.report.machine import ROOT, describe_machine


def head(module: str, words: Sequence[str], arguments: argparse.Namespace) -> dict[str, object]:
    """The first entries of a result: how it was made, where, and with which settings."""
    return {
        "command": shlex.join(["python", "-m", module, *words]),
        "machine": describe_machine(),
        "settings": {
            key: _named(value) if isinstance(value, Path) else value
            for key, value in vars(arguments).items()
        },
    }


class Crashing(Protocol):
    """A report of a run; `crash`: why it ended early, empty when it did not."""

    crash: str


@contextlib.contextmanager
def crash_noted(report: Crashing) -> Iterator[None]:
    """Around a run: an end by an exception, Ctrl-C included, is noted and goes on. A report of a
    run that was cut off would say that all was well so far."""
    try:
        yield
    except BaseException as error:
        report.crash = report.crash or ended_early(error)
        raise


def ended_early(error: BaseException) -> str:
    """What a report says of the exception that ended its run."""
    return f"ended early: {type(error).__name__}: {error}"


@contextlib.contextmanager
def told(violations: list[str]) -> Iterator[None]:
    """Around a run: prints at its end what was violated; an end by an exception is too."""
    try:
        yield
    except BaseException as error:
        violations.append(ended_early(error))
        raise
    finally:
        for violation in violations:
            print(f"VIOLATED: {violation}")
        print(f"result: {'violated, see above' if violations else 'all held'}")


def write_json(
    path: Path, content: Mapping[str, object], *, samples: Sequence[Mapping[str, object]] = ()
) -> None:
    """Write a result, one item per line, and each of many `samples` in a line; folders are made."""
    text = json.dumps(content, indent=1)
    if samples:
        lines = ",\n  ".join(json.dumps(sample) for sample in samples)
        text = f'{text.removesuffix("}").rstrip()},\n "samples": [\n  {lines}\n ]\n}}'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", encoding="utf-8")


def _named(path: Path) -> str:
    """A path as results may show it: from the repository's root where it is in there."""
    full = path.absolute()
    return str(full.relative_to(ROOT) if full.is_relative_to(ROOT) else path)
