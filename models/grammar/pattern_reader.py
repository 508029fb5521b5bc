"""A cursor on the text of a pattern, and the one way to refuse it. Standard library only."""

from __future__ import annotations

from typing import NoReturn

from models.grammar.limits import refuse

_MAX_REASON = 160  # characters: names and numbers in a pattern may be long


class PatternReader:
    """Reads a pattern from left to right. Positions count characters from 0."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    @property
    def is_at_end(self) -> bool:
        """Whether all is read."""
        return self.at == len(self.text)

    def peek(self, length: int = 1) -> str:
        """The characters ahead, fewer at the end."""
        return self.text[self.at : self.at + length]

    def take(self, expected: str) -> bool:
        """Go over `expected` if it is ahead."""
        if not self.text.startswith(expected, self.at):
            return False
        self.at += len(expected)
        return True

    def next(self, missing: str) -> str:
        """Go over one character; `missing` says what is wrong when there is none."""
        if self.at == len(self.text):
            self.fail(missing, self.at)
        self.at += 1
        return self.text[self.at - 1]

    def until(self, end: str, missing: str) -> str:
        """The text up to `end`, which is gone over too."""
        start = self.at
        found = self.text.find(end, start)
        if found < 0:
            self.fail(missing, start)
        self.at = found + len(end)
        return self.text[start:found]

    def fail(self, reason: str, position: int) -> NoReturn:
        """Refuse the pattern at a position."""
        shown = reason if len(reason) <= _MAX_REASON else reason[: _MAX_REASON - 3] + "..."
        refuse(shown, path=f"position {position}")

    def unserved(self, feature: str, position: int) -> NoReturn:
        """Refuse a feature that begins at `position` and was read up to here."""
        shown = self.text[position : max(self.at, position + 1)]
        self.fail(f"{feature} ({shown}) is not supported", position)

    def digits(self) -> str:
        """Go over ASCII digits, maybe none."""
        start = self.at
        while self.peek() in tuple("0123456789"):
            self.at += 1
        return self.text[start : self.at]
