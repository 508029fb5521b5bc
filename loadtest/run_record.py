"""What every command's results begin with: the command, the machine, the settings."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from loadtest.machine import describe_machine
from loadtest.served import ROOT


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


@contextlib.contextmanager
def told(violations: list[str]) -> Iterator[None]:
    """Around a run: prints at its end what was violated; an end by an exception is too."""
    try:
        yield
    except BaseException as error:
        violations.append(f"ended early: {type(error).__name__}: {error}")
        raise
    finally:
        for violation in violations:
            print(f"VIOLATED: {violation}")
        print(f"result: {'violated, see above' if violations else 'all held'}")


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a result, one item per line, folders made as needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _named(path: Path) -> str:
    """A path as results may show it: from the repository's root where it is in there."""
    full = path.absolute()
    return str(full.relative_to(ROOT) if full.is_relative_to(ROOT) else path)
