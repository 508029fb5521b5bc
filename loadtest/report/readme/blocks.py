"""Marked blocks of Markdown files, whose text is generated and never edited by hand.

    <!-- figures: NAME -->
    what the figure called NAME says
    <!-- end of figures -->

Knows nothing of results: it is given the text of each name.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_BEGIN = re.compile(r"^<!-- figures: (?P<name>[a-z0-9-]+) -->$")
_END = "<!-- end of figures -->"


def fill(text: str, figure: Callable[[str], str]) -> str:
    """Returns `text` with the content of each block replaced by `figure(its name)`.

    Raises:
        ValueError: a block has no end, or an end no block; the message names the line.
    """
    lines: list[str] = []
    open_since = 0  # number of the line that opened the block; 0: outside of blocks
    for number, line in enumerate(text.splitlines(), start=1):
        begin = _BEGIN.match(line)
        if begin is not None:
            if open_since:
                raise ValueError(f"line {number}: the block of line {open_since} has not ended")
            open_since = number
            lines += [line, *figure(begin["name"]).splitlines()]
        elif line == _END:
            if not open_since:
                raise ValueError(f"line {number}: no block is open here")
            open_since = 0
            lines.append(line)
        elif not open_since:
            lines.append(line)
    if open_since:
        raise ValueError(f"line {open_since}: this block has no end")
    return "\n".join(lines) + "\n"


def names(text: str) -> list[str]:
    """Return the names of all blocks of `text`, in order."""
    matches = (_BEGIN.match(line) for line in text.splitlines())
    return [match["name"] for match in matches if match is not None]
