"""A study's file: parts by name, written after each, so that a run that is cut goes on later."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtest.report.record import head, write_json
from loadtest.study.settings import Settings

FILE = "study.json"
Part = dict[str, Any]


class Record:
    """The content of `FOLDER/study.json`; a part's name is SECTION/..., with what it is of.

    Raises:
        ValueError: the file there is of a study with other settings, or no study's.
    """

    def __init__(self, folder: Path, words: Sequence[str], settings: Settings) -> None:
        self._path = folder / FILE
        # Words that say which parts to run now say nothing of what the parts are.
        self.content: dict[str, Any] = {
            **head("python -m loadtest.study", words, asdict(settings)),
            "parts": {},
        }
        if self._path.exists():
            kept = load(folder)
            settings.check_same(kept["settings"])
            self.content["parts"] = kept["parts"]

    @property
    def parts(self) -> dict[str, Part]:
        """The measurements by name."""
        parts: dict[str, Part] = self.content["parts"]
        return parts

    def run(self, name: str, measure: Callable[[], Part]) -> None:
        """Measure a part and write it, with the seconds that it took."""
        started_at = time.perf_counter()
        values = measure()
        self.parts[name] = values | {"seconds": round(time.perf_counter() - started_at, 1)}
        write_json(self._path, self.content)

    def conclude(self, findings: Part) -> None:
        """Write what the parts say together, where there are parts."""
        if self.parts:
            self.content["findings"] = findings
            write_json(self._path, self.content)


def load(folder: Path) -> dict[str, Any]:
    """Read the content of a study's folder.

    Raises:
        ValueError: there is no study.
    """
    path = folder / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not {"settings", "parts"} <= content.keys():
            raise ValueError("it has no settings and parts")
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"{str(path)!r} is no study: {error}") from error
    return dict(content)


def parts_of(content: dict[str, Any], section: str) -> Iterator[tuple[tuple[str, ...], Part]]:
    """Yield the parts of a section, each with the words of its name after the section's."""
    for name, part in content["parts"].items():
        first, *rest = name.split("/")
        if first == section:
            yield tuple(rest), part
