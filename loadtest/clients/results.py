"""Results of a client's run: checks by name, and their form in a table and in a record.

A check that `needs` something this server lacks is neither passed nor failed until it passes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

_MAX_LINE = 160  # characters of a reason in the table and the record


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check. `detail`: what was found, or why it did not pass."""

    name: str
    ok: bool
    needs: str = ""
    detail: str = ""

    @property
    def failed(self) -> bool:
        """It did not pass, although the server has what it needs."""
        return not self.ok and not self.needs

    @property
    def is_lacking(self) -> bool:
        """It did not pass, as the server has not what it needs."""
        return not self.ok and bool(self.needs)


@dataclass(slots=True)
class ClientResult:
    """One client.

    Attributes:
        trouble: why it could not be installed, or ended before its last check.
        skipped: why it was not tried here, which is no failure.
    """

    name: str
    version: str = ""
    seconds: float = 0.0
    trouble: str = ""
    skipped: str = ""
    checks: list[CheckResult] = field(default_factory=list)

    @property
    def failures(self) -> list[str]:
        """Why the client did not pass, a line each."""
        lines = [self.trouble] if self.trouble else []
        failed = (check for check in self.checks if check.failed)
        return [*lines, *(f"{check.name}: {first_line(check.detail)}" for check in failed)]

    @property
    def lacking(self) -> list[str]:
        """Features that its checks need and the server lacks."""
        return sorted({check.needs for check in self.checks if check.is_lacking})

    def to_dict(self) -> dict[str, object]:
        """Return the result as a dict for a record."""
        return {
            "client": self.name,
            "version": self.version,
            "seconds": round(self.seconds, 1),
            "num_passed": sum(check.ok for check in self.checks),
            "num_checks": len(self.checks),
            "failures": self.failures,
            "skipped": self.skipped,
            "lacking": self.lacking,
            "checks": [
                {**asdict(check), "detail": first_line(check.detail)} for check in self.checks
            ],
        }


def first_line(text: str) -> str:
    """Return the first line with text, cut to a length for tables."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE - 3]}..."


def read_checks(output: str) -> list[CheckResult]:
    """Read the checks of a script from the JSON lines among its other output.

    A check that was announced and has no line did not pass: the script ended before.
    """
    announced: list[str] = []
    found: dict[str, CheckResult] = {}
    for line in output.splitlines():
        content = _json_object(line)
        if isinstance(names := content.get("checks"), list):
            announced = [str(name) for name in names]
        elif isinstance(name := content.get("check"), str):
            found[name] = CheckResult(
                name,
                ok=content.get("ok") is True,
                needs=str(content.get("needs", "")),
                detail=str(content.get("detail", "")),
            )
    missing = (name for name in announced if name not in found)
    return [*found.values(), *(CheckResult(name, False, detail="not reached") for name in missing)]


def _json_object(line: str) -> dict[str, object]:
    if not line.startswith("{"):
        return {}
    try:
        content = json.loads(line)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def table(results: Sequence[ClientResult]) -> str:
    """Return a line per client, with the reasons below it if it did not pass."""
    rows = [("client", "version", "passed", "failed", "not served yet")]
    notes: list[list[str]] = [[]]
    for result in results:
        num_failed = sum(check.failed for check in result.checks)
        rows.append(
            (
                result.name,
                result.version or "-",
                f"{sum(check.ok for check in result.checks)} of {len(result.checks)}",
                str(num_failed) if not result.trouble else f"{num_failed}!",
                _counted(check.needs for check in result.checks if check.is_lacking),
            )
        )
        notes.append([*result.failures, *([result.skipped] if result.skipped else [])])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row, reasons in zip(rows, notes, strict=True):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
        lines.extend(f"    {reason}" for reason in reasons)
    return "\n".join(lines)


def _counted(needs: Iterable[str]) -> str:
    listed = list(needs)
    return ", ".join(f"{listed.count(name)} ({name})" for name in sorted(set(listed))) or "0"
