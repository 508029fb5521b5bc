"""The record of an experiment: how it was made, its rows, claims and problems, as JSON.

One shape serves all experiments, so one table and one picture do as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.frame.claims import Claim
from loadtest.frame.experiment import Result
from loadtest.report.record import SAMPLES, head, write_json
from models.files import read_json


def write_result(
    path: Path | None,
    question: str,
    words: Sequence[str],
    settings: Mapping[str, object],
    result: Result,
    claims: Sequence[Claim],
) -> None:
    """Write the result so far; path None: nothing is written."""
    write_json(
        path,
        {
            "question": question,
            **head("python -m loadtest", words, settings),
            SAMPLES: result.rows,
            "claims": [claim.record() for claim in claims],
            "problems": result.problems,
            **result.extra,
        },
    )


def read_result(path: Path) -> dict[str, Any]:
    """Read a record.

    Raises:
        ValueError: it is no record of an experiment.
    """
    content = read_json(path)
    for name in ("question", "command", "machine", "settings", SAMPLES, "claims", "problems"):
        if name not in content:
            raise ValueError(f"{path.name} is no record of an experiment: {name} is missing")
    return content


def result_to_go_on(path: Path | None, settings: Mapping[str, Any]) -> Result:
    """Return what a run that was cut had found, if the record has the same settings.

    Raises:
        ValueError: it was made with other settings; the message names the first that differs.
    """
    if path is None or not path.is_file():
        return Result()
    record = read_result(path)
    for name, value in json.loads(json.dumps(settings, default=str)).items():
        if name not in ("output", "resume") and record["settings"].get(name) != value:
            kept = record["settings"].get(name)
            raise ValueError(f"--resume: {path.name} has {name} = {kept!r}, not {value!r}")
    return Result(rows=record[SAMPLES], problems=record["problems"])
