"""One kept result of `loadtest/results`, and the Markdown pieces that every figure is made of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import relpath
from pathlib import Path
from typing import Any

from loadtest.report.machine import ROOT
from loadtest.report.readme.since import age

RESULTS = ROOT / "loadtest" / "results"


@dataclass(frozen=True, slots=True)
class Result:
    """A result file, seen from the folder of the Markdown file that will show it."""

    name: str  # the file's, without .json
    content: dict[str, Any]
    seen_from: Path

    @classmethod
    def load(cls, name: str, seen_from: Path) -> Result:
        """Read `loadtest/results/NAME.json`.

        Raises:
            OSError, ValueError: there is no such file, or it is no JSON.
        """
        content = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        return cls(name, content, seen_from)

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    @property
    def link(self) -> str:
        """Links to the file, and to its picture where there is one."""
        links = [f"[all figures]({self.path})"]
        if (RESULTS / f"{self.name}.png").exists():
            links.append(f"[picture]({self._path('.png')})")
        return ", ".join(links)

    @property
    def path(self) -> str:
        """The path of the file."""
        return self._path(".json")

    def link_to(self, file: str) -> str:
        """Return the path of another file in the folder of this one."""
        return Path(relpath((RESULTS / self.name).with_name(file), self.seen_from)).as_posix()

    def made(self) -> str:
        """Describe how, where and when it was measured, and the commits since."""
        return f"`{self['command']}`, {self.made_in_short()}"

    def made_in_short(self) -> str:
        """Show the same without the command, which the linked file holds."""
        machine = self["machine"]
        versions = f"torch {machine['torch']}, Ray {machine['ray'] or 'not installed'}"
        where = f"{machine['processor']}, {machine['cores']} cores, {versions}"
        made = f"{machine['date']}, {where} ({self.link})."
        return " ".join(filter(None, [made, age(self.name, machine["date"])]))

    def _path(self, suffix: str) -> str:
        return Path(relpath(RESULTS / f"{self.name}{suffix}", self.seen_from)).as_posix()


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Show a Markdown table; every row has as many cells as the head."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def goal(value: float, relation: str, limit: float) -> str:
    """Show an aim and its verdict; `relation` is `at least` or `at most`."""
    is_met = value >= limit if relation == "at least" else value <= limit
    return f"{relation} {limit:g}: {'met' if is_met else '**missed**'}"
