"""The hour's report in Markdown: what each part found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadtest.gpu_day.parts import PARTS


def report(record: Mapping[str, Any]) -> str:
    """Return the whole page; `record` is what `__main__` writes after every part."""
    lines = [f"# A GPU's first hour, {record['machine']['date']}", "", f"`{record['command']}`", ""]
    for name, part in record["parts"].items():
        lines += [f"## {name}: {PARTS[name].question}?", ""]
        if part["status"] == "done":
            lines += _section(part["answer"])
        else:
            lines += [f"**{part['status']}**: {part['why']}", ""]
        lines += [f"{part['elapsed_s']:.0f} s", ""]
    return "\n".join(lines)


def _section(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield single values in one table, then a table for each list of rows, at any depth."""
    single = {name: value for name, value in answer.items() if not _are_rows(value)}
    if single:
        yield from _table([{"name": name, "found": value} for name, value in single.items()])
    for name, value in answer.items():
        if _are_rows(value):
            yield from _rows(name, value)


def _rows(title: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from (f"{title}:", "")
    yield from _table(rows)
    for row in rows:
        for name, value in row.items():
            if _are_rows(value):
                yield from _rows(f"{name} of {next(iter(row.values()))}", value)


def _are_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    columns = dict.fromkeys(name for row in rows for name in row if not _are_rows(row[name]))
    yield f"| {' | '.join(columns)} |"
    yield f"|{' --- |' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(str(row.get(column, '-')) for column in columns)} |"
    yield ""
