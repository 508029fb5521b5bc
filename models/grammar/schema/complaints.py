"""Sends refusals of single keywords to the client at once, or to the code that loosens a schema."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from models.protocol.errors import UnsupportedGrammar


class Complaints:
    """Refusals, each of one place.

    Args:
        gathers: keep them, so that the next place is looked at too; else each is raised.
    """

    def __init__(self, *, gathers: bool = False) -> None:
        self.gathers = gathers
        self.found: list[UnsupportedGrammar] = []
        self.notes: list[tuple[str, str]] = []  # places that the standard does not enforce

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Take the refusal of one place from within the block."""
        try:
            yield
        except UnsupportedGrammar as error:
            if not self.gathers:
                raise
            self.found.append(error)

    def note(self, path: str, reason: str) -> None:
        """Note that something is not enforced, and need not be."""
        self.notes.append((path, reason))
