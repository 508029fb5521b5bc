"""The tree of a regular expression. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


@dataclass(frozen=True, slots=True)
class Both:
    """The texts of all parts; no pattern is written so, see `languages`."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Other:
    """All texts but those of the part; no pattern is written so, see `languages`."""

    part: Node


Node = Chars | Sequence | Choice | Repeat | Anchor | Look | Both | Other

EMPTY = Sequence(())  # the empty text
NOTHING = Chars(())  # no text at all


def choice_of(options: Iterable[Node]) -> Node:
    """Return one of the options; no text if there are none."""
    unique = tuple(dict.fromkeys(options))
    if not unique:
        return NOTHING
    return unique[0] if len(unique) == 1 else Choice(unique)


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes directly within."""
    match node:
        case Sequence() | Both():
            return node.parts
        case Choice():
            return node.options
        case Repeat() | Other():
            return (node.part,)
        case Look():
            return () if node.part is None else (node.part,)
        case _:
            return ()


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and all within it, in no order."""
    waiting = [node]
    while waiting:
        found = waiting.pop()
        yield found
        waiting += children(found)
