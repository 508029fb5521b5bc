"""Reads what the benchmark tools wrote of their own runs: requests completed and failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class NoReport(Exception):
    """There is no report, or it has not the shape that its tool's version was known to write."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests of a run. `why`: of the first that failed; `figures`: others of interest."""

    num_completed: int
    num_failed: int
    why: str = ""
    figures: str = ""

    @property
    def is_clean(self) -> bool:
        """Some completed and none failed."""
        return self.num_completed > 0 and self.num_failed == 0

    def __str__(self) -> str:
        text = f"{self.num_completed} completed, {self.num_failed} failed"
        return "; ".join(part for part in (text, self.why, self.figures) if part)


def read_guidellm(folder: Path) -> Counts:
    """GuideLLM's `report.json`: totals of all its benchmarks. An incomplete request has failed.

    Raises:
        NoReport: see there.
    """
    report = _json(folder / "report.json")
    try:
        totals = [benchmark["metrics"]["request_totals"] for benchmark in report["benchmarks"]]
        failed = [
            request["info"]["error"]
            for benchmark in report["benchmarks"]
            for request in benchmark["requests"]["errored"]
        ]
        return Counts(
            sum(total["successful"] for total in totals),
            sum(total["errored"] + total["incomplete"] for total in totals),
            why=str(failed[0]) if failed else "",
        )
    except (KeyError, TypeError) as error:
        raise NoReport(f"report.json: {type(error).__name__}: {error}") from error


def read_aiperf(folder: Path) -> Counts:
    """AIPerf's `profile_export.jsonl`: a line per request, with its error where it has one.

    Raises:
        NoReport: see there.
    """
    path = folder / "profile_export.jsonl"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines if line.strip()]
        errors = [record["error"] for record in records if record.get("error")]
        wrong = [record for record in records if not record.get("error") and not record["metrics"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoReport(f"{path.name}: {type(error).__name__}: {error}") from error
    why = str(errors[0]) if errors else "a record without metrics" if wrong else ""
    num_failed = len(errors) + len(wrong)
    return Counts(len(records) - num_failed, num_failed, why=why)


def read_aiperf_speculation(folder: Path) -> Counts:
    """Read counts like `read_aiperf`; requests without AIPerf's speculation figures have failed.

    Raises:
        NoReport: see there, or the summary is missing.
    """
    counts = read_aiperf(folder)
    report = _json(folder / "profile_export_aiperf.json")
    steps = _metric(report, "spec_decode_steps", "count")
    length = _metric(report, "spec_decode_token_weighted_acceptance_length", "avg")
    num_read = int(steps or 0)
    missing = counts.num_completed - num_read
    unread = f"{missing} requests without its speculation figures" if missing else ""
    return Counts(
        num_read,
        counts.num_failed + missing,
        why=counts.why or unread,
        figures="" if length is None else f"acceptance length {length:.2f}",
    )


def _metric(report: Mapping[str, Any], name: str, statistic: str) -> float | None:
    metric = report.get(name)
    value = metric.get(statistic) if isinstance(metric, dict) else None
    return float(value) if isinstance(value, int | float) else None


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NoReport(f"{path.name}: {type(error).__name__}: {error}") from error
    if not isinstance(content, dict):
        raise NoReport(f"{path.name}: not a JSON object")
    return content
