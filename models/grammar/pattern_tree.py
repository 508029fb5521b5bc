"""The tree of a regular expression: five kinds of nodes. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from models.grammar.charsets import Ranges


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Sequence:
    """All parts, one after the other; none: the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of two or more."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`part` from `low` to `high` times; None: without limit."""

    part: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Anchor:
    r"""`^` and `\A` (the start of the text), `$` and `\Z` (its end)."""

    sign: str

    @property
    def is_start(self) -> bool:
        """Whether it means the start of the text."""
        return self.sign in ("^", r"\A")


Node = Chars | Sequence | Choice | Repeat | Anchor
