"""Ray's private parts stay in one file."""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import deployments
from deployments.serve import private

ROOT = Path(deployments.__path__[0])


def private_names_of_ray(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            if first == "ray" and any(part.startswith("_") for part in rest):
                yield name


def test_two_files_import_what_is_private_to_ray() -> None:
    """One for all that runs, and one that asks Ray about machines before anything does."""
    found = {
        path.relative_to(ROOT).as_posix(): names
        for path in ROOT.rglob("*.py")
        if (names := list(private_names_of_ray(path)))
    }
    assert found.keys() == {"serve/private.py", "config/cluster.py"}, found


def test_a_json_line_has_the_message_and_the_extra_fields() -> None:
    handler = logging.StreamHandler()
    assert not private.writes_json(handler)
    handler.setFormatter(private.json_formatter())
    assert private.writes_json(handler)
    record = logging.makeLogRecord({"msg": "idle for %d s", "args": (3,), "session_id": "s-1"})
    line = json.loads(handler.format(record))
    assert (line["message"], line["session_id"]) == ("idle for 3 s", "s-1")
