"""Writes results: every file begins with the command, the machine and the settings.

No result names a directory of the machine it was made on. Paths are shown from the repository's
root, others by their last part. A pair given as LABEL=DIR is shown by its label.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtest.report.machine import ROOT, describe_machine

SAMPLES = "samples"  # an entry of a result: a list of like objects, each written in a line


def head(program: str, words: Sequence[str], settings: Mapping[str, object]) -> dict[str, object]:
    """Return the first entries of a result: how it was made, where, and with which settings.

    Args:
        program: what was run: "python -m loadtest speed".
        words: its arguments as they were given.
        settings: their values, defaults included.
    """
    return {
        "command": public_command(program, words),
        "machine": describe_machine(),
        "settings": {
            key: _public_path(value) if isinstance(value, Path) else value
            for key, value in settings.items()
        },
    }


def public_command(program: str, words: Sequence[str]) -> str:
    """Return the command line without directories of this machine."""
    return shlex.join([*program.split(), *map(_public_word, words)])


def write_json(path: Path | None, content: Mapping[str, object]) -> None:
    """Write a result, so that a reader sees either the last state or this one; folders are made.

    Lists of plain values take one line, and so does each of `content[SAMPLES]`. Path None: nothing
    is written.
    """
    if path is None:
        return
    entries = [f"{json.dumps(key)}: {_rendered(key, value)}" for key, value in content.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text("{\n " + ",\n ".join(entries) + "\n}\n", encoding="utf-8")
    part.replace(path)


def _rendered(key: str, value: object) -> str:
    if key == SAMPLES and isinstance(value, list) and value:
        return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
    return _indented(value, " ")


def _indented(value: object, indent: str) -> str:
    """Do as `json.dumps` with an indent of 1, but leave lists of plain values on one line."""
    inner = indent + " "
    if isinstance(value, Mapping) and value:
        parts = [f"{json.dumps(str(k))}: {_indented(v, inner)}" for k, v in value.items()]
        return f"{{\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}}}"
    if isinstance(value, list | tuple) and any(
        isinstance(v, Mapping | list | tuple) for v in value
    ):
        parts = [_indented(v, inner) for v in value]
        return f"[\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}]"
    return json.dumps(value)


def _public_word(word: str) -> str:
    """Return a word of the command line as results may show it.

    A pair elsewhere is named by its label, one of this repository by LABEL=DIR.
    """
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    label, is_labelled, path = value.rpartition("=")
    if "/" in path and "://" not in path:  # else it names no directory: "rounds=2"
        is_ours = Path(path).absolute().is_relative_to(ROOT)
        shown = _public_path(Path(path))
        value = shown if not is_labelled else f"{label}={shown}" if is_ours else label
    return option + equals + value


def _public_path(path: Path) -> str:
    full = path.absolute()
    return str(full.relative_to(ROOT)) if full.is_relative_to(ROOT) else full.name
