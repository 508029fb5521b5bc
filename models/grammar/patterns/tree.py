"""The tree of a regular expression: six kinds of nodes. Standard library only."""

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
    is_wide: bool = False  # `$` within what is denied: before a last line feed too

    @property
    def is_start(self) -> bool:
        """True if it means the start of the text."""
        return self.sign in ("^", r"\A")


@dataclass(frozen=True, slots=True)
class Look:
    r"""A condition on the following text (`(?=...)`, `(?!...)`); a word boundary if it has no part.

    `is_wide`: within what is denied, where every reader's reading counts.
    """

    part: Node | None
    is_negative: bool = False
    is_wide: bool = False


Node = Chars | Sequence | Choice | Repeat | Anchor | Look
