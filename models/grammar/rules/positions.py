"""The places of a regular part's characters, and which may follow which (Glushkov's automaton).

Repeats count as endless: what is found holds more texts than the part, never fewer. Standard
library only. Source: V. M. Glushkov, "The abstract theory of automata", 1961.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from models.grammar.charsets import Ranges, intersection, union
from models.grammar.patterns.tree import Chars, Choice, Node, Repeat, Sequence

_MAX_EDGES = 50_000


class TooManyEdges(Exception):
    """The automaton is too large to be looked at."""


@dataclass
class _Part:
    is_nullable: bool
    first: list[int]
    last: list[int]


@dataclass
class Positions:
    """The automaton of one regular part; places are numbered from 0."""

    chars: list[Ranges] = field(default_factory=list)  # characters of each place
    follow: list[set[int]] = field(default_factory=list)  # places after each place
    first: list[int] = field(default_factory=list)
    last: frozenset[int] = frozenset()
    is_nullable: bool = True
    first_chars: Ranges = ()
    num_edges: int = 0


def positions_of(node: Node) -> Positions:
    """Return the automaton of a part without anchors.

    Raises:
        TooManyEdges: it has more than `_MAX_EDGES`.
    """
    found = Positions()
    whole = _build(node, found)
    found.first = whole.first
    found.last = frozenset(whole.last)
    found.is_nullable = whole.is_nullable
    found.first_chars = union(*(found.chars[place] for place in whole.first))
    return found


def _build(node: Node, found: Positions) -> _Part:
    match node:
        case Chars():
            if not node.ranges:
                return _Part(False, [], [])
            found.chars.append(node.ranges)
            found.follow.append(set())
            place = len(found.chars) - 1
            return _Part(False, [place], [place])
        case Sequence():
            whole = _Part(True, [], [])
            for part in (_build(inner, found) for inner in node.parts):
                _link(whole.last, part.first, found)
                if whole.is_nullable:
                    whole.first += part.first
                whole.last = part.last + (whole.last if part.is_nullable else [])
                whole.is_nullable = whole.is_nullable and part.is_nullable
            return whole
        case Choice():
            parts = [_build(inner, found) for inner in node.options]
            return _Part(
                any(part.is_nullable for part in parts),
                [place for part in parts for place in part.first],
                [place for part in parts for place in part.last],
            )
        case Repeat():
            if node.high == 0:
                return _Part(True, [], [])
            part = _build(node.part, found)
            if node.high != 1:
                _link(part.last, part.first, found)
            return _Part(part.is_nullable or node.low == 0, part.first, part.last)
        case _:
            raise AssertionError("anchors are resolved before")


def _link(last: list[int], first: list[int], found: Positions) -> None:
    found.num_edges += len(last) * len(first)
    if found.num_edges > _MAX_EDGES:
        raise TooManyEdges
    for place in last:
        found.follow[place].update(first)


def may_go_on(part: Positions, chars: Ranges, other: Positions, budget: int) -> int:
    """Check if a text of `part`, with one of `chars` more, can be the beginning of `other`'s.

    Returns:
        What is left of `budget`, in pairs of places; below 0 if there is such a text, or if that
        cannot be told within the budget.
    """
    waiting = [(a, b) for a in part.first for b in other.first]
    seen: set[tuple[int, int]] = set()
    while waiting:
        a, b = waiting.pop()
        if (a, b) in seen:
            continue
        seen.add((a, b))
        budget -= 1
        if budget < 0:
            return -1
        if not intersection(part.chars[a], other.chars[b]):
            continue
        after = other.follow[b]
        if a in part.last and any(intersection(other.chars[place], chars) for place in after):
            return -1
        waiting += [(x, y) for x in part.follow[a] for y in after if (x, y) not in seen]
    return budget
