"""The tree of a grammar with rules: what EBNF and structural tags are read into.

A grammar is a dictionary of expressions by rule name. Each part that a regular expression can
describe is one `Regular`. So the lexer reads it, and only recursion is left to the parser.
Sequences and choices are put together by `sequence` and `choice`, which join neighbours that are
regular. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from models.grammar.patterns.tree import Chars, Choice, Node, Repeat, choice_of
from models.grammar.patterns.tree import Sequence as NodeSequence

_MAX_DEPTH = 60  # depth of the tree of one regular part; deeper ones stay in rules of their own


@dataclass(frozen=True, slots=True)
class Regular:
    """Text that a regular expression describes, with its characters when it is written out."""

    node: Node
    size: int
    depth: int


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to a rule."""

    name: str


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON value that obeys a schema; `text` is the schema as the compiler takes it."""

    text: str


@dataclass(frozen=True, slots=True)
class Special:
    """One special token of the vocabulary, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Until:
    """Any text up to the first of `ends`, which belongs to it, without any of `excludes`."""

    ends: tuple[str, ...]
    excludes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Without:
    """Any text that holds none of `excludes`, maybe empty. Only where the whole text ends or a
    special token follows."""

    excludes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """A sequence or a choice that is not regular."""

    kind: Literal["sequence", "choice"]
    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    """`part` from `low` to `high` times; None: without limit."""

    part: Expr
    low: int
    high: int | None


Expr = Regular | Ref | Json | Special | Until | Without | Group | Repeated
Rules = dict[str, Expr]

EMPTY = Regular(NodeSequence(()), 0, 1)


def literal_text(text: str) -> Regular:
    """Return just this text."""
    node = NodeSequence(tuple(Chars(((ord(char), ord(char)),)) for char in text))
    return Regular(node, len(text), 1)


def sequence(parts: Iterable[Expr]) -> Expr:
    """Join the parts one after the other.

    Regular neighbours become one.
    """
    joined: list[Expr] = []
    for part in _flat("sequence", parts):
        last = joined[-1] if joined else None
        if isinstance(part, Regular) and isinstance(last, Regular) and not _is_deep(part, last):
            joined[-1] = _regular_sequence((last, part))
        elif part != EMPTY:
            joined.append(part)
    if not joined:
        return EMPTY
    return joined[0] if len(joined) == 1 else Group("sequence", tuple(joined))


def choice(options: Iterable[Expr]) -> Expr:
    """Choose one of the options.

    Regular ones become one. No options: see `Group`.
    """
    flat = _flat("choice", options)
    regular = [one for one in flat if isinstance(one, Regular)]
    others: list[Expr] = [one for one in flat if not isinstance(one, Regular)]
    if len(regular) > 1 and not _is_deep(*regular):
        size, depth = sum(one.size for one in regular), max(one.depth for one in regular)
        node = choice_of(one.node for one in regular)
        others.insert(0, Regular(node, size, depth + 1))
    else:
        others = flat
    others = list(dict.fromkeys(others))
    return others[0] if len(others) == 1 else Group("choice", tuple(others))


def repeated(part: Expr, low: int, high: int | None) -> Expr:
    """`part` from `low` to `high` times."""
    if isinstance(part, Regular) and not _is_deep(part):
        times = max(low + 1 if high is None else high, 1)
        return Regular(Repeat(part.node, low, high), part.size * times, part.depth + 1)
    return Repeated(part, low, high)


def children(expression: Expr) -> tuple[Expr, ...]:
    """Return the expressions directly within."""
    if isinstance(expression, Group):
        return expression.parts
    return (expression.part,) if isinstance(expression, Repeated) else ()


def walk(expression: Expr) -> Iterator[Expr]:
    """Yield the expression and all within it."""
    yield expression
    for child in children(expression):
        yield from walk(child)


def rebuilt(expression: Expr, found: dict[str, Regular], *, merges: bool) -> Expr:
    """Replace names by the regular text of their rules.

    `merges`: also if only some neighbours in a sequence are regular.
    """
    match expression:
        case Ref():
            return found.get(expression.name, expression)
        case Group():
            parts = [rebuilt(part, found, merges=merges) for part in expression.parts]
            if expression.kind == "choice":
                return choice(parts)
            if merges or all(isinstance(part, Regular) for part in parts):
                return sequence(parts)
            return Group("sequence", tuple(_flat("sequence", parts)))
        case Repeated():
            part = rebuilt(expression.part, found, merges=merges)
            return repeated(part, expression.low, expression.high)
        case _:
            return expression


def _flat(kind: Literal["sequence", "choice"], parts: Iterable[Expr]) -> list[Expr]:
    return [
        inner
        for part in parts
        for inner in (part.parts if isinstance(part, Group) and part.kind == kind else (part,))
    ]


def _is_deep(*parts: Regular) -> bool:
    return max(part.depth for part in parts) >= _MAX_DEPTH


def _regular_sequence(parts: tuple[Regular, ...]) -> Regular:
    nodes = tuple(
        inner
        for part in parts
        for inner in (part.node.parts if isinstance(part.node, NodeSequence) else (part.node,))
    )
    depth = max(part.depth for part in parts)
    if any(isinstance(node, Choice) for node in nodes):
        depth += 1
    return Regular(NodeSequence(nodes), sum(part.size for part in parts), depth)
