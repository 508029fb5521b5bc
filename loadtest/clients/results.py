"""Results of a client's run: checks by name, and their form in a record.

A check that `needs` something this server lacks is neither passed nor failed until it passes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

_MAX_LINE = 160  # characters of a reason


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
    """Return the first line with text, cut to a length for records."""
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
