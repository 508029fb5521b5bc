"""Languages of texts with intersections and complements, made plain regular expressions again.

A language is a tree (`tree`) without anchors and look-ahead, which may say "both" and "not". The
functions here put it together, so that equal languages are mostly equal values. `plain` writes one
without "both" and "not". By derivatives it becomes an automaton (Brzozowski 1964), whose states
are eliminated one by one. Both have limits, because either may grow exponentially. Standard library
only.
"""

from __future__ import annotations

from collections import deque

from models.grammar.charsets import Ranges, complement, intersection, union
from models.grammar.limits import refuse
from models.grammar.patterns.tree import (
    EMPTY,
    NOTHING,
    Both,
    Chars,
    Choice,
    Node,
    Other,
    Repeat,
    Sequence,
    children,
    walk,
)

_MAX_STATES = 120
_MAX_SIZE = 4_000  # characters of what it becomes, its repeats written out


def joined(*parts: Node) -> Node:
    """Join the languages one after the other."""
    flat: list[Node] = []
    for part in parts:
        if part == NOTHING:
            return NOTHING
        flat += part.parts if isinstance(part, Sequence) else [part]
    return flat[0] if len(flat) == 1 else Sequence(tuple(flat))


def any_of(*parts: Node) -> Node:
    """Return the texts of any part.

    Single characters become one set.
    """
    flat: dict[Node, None] = {}
    ranges: Ranges = ()
    for part in parts:
        for one in part.options if isinstance(part, Choice) else (part,):
            if isinstance(one, Chars):
                ranges = union(ranges, one.ranges)
            else:
                flat[one] = None
    if ranges:
        flat[Chars(ranges)] = None
    found = sorted(flat, key=repr)  # equal languages are to be equal values
    if Other(NOTHING) in flat:
        return Other(NOTHING)
    if not found:
        return NOTHING
    return found[0] if len(found) == 1 else Choice(tuple(found))


def both(*parts: Node) -> Node:
    """Return the texts of all parts."""
    flat: dict[Node, None] = {}
    for part in parts:
        for one in part.parts if isinstance(part, Both) else (part,):
            if one != Other(NOTHING):
                flat[one] = None
    if NOTHING in flat:
        return NOTHING
    found = sorted(flat, key=repr)
    if not found:
        return Other(NOTHING)
    return found[0] if len(found) == 1 else Both(tuple(found))


def other(part: Node) -> Node:
    """Return all texts but those."""
    return part.part if isinstance(part, Other) else Other(part)


def times(part: Node, low: int, high: int | None) -> Node:
    """`part` from `low` to `high` times."""
    if high == 0 or part == EMPTY or (part == NOTHING and low == 0):
        return EMPTY
    if part == NOTHING or (low, high) == (1, 1):
        return part
    return Repeat(part, low, high)


def is_plain(language: Node) -> bool:
    """Return whether it has neither "both" nor "not"."""
    return not any(isinstance(part, Both | Other) for part in walk(language))


def may_be_empty(language: Node) -> bool:
    """Return whether the empty text is in the language."""
    match language:
        case Chars():
            return False
        case Sequence() | Both():
            return all(map(may_be_empty, language.parts))
        case Choice():
            return any(map(may_be_empty, language.options))
        case Repeat():
            return language.low == 0 or may_be_empty(language.part)
        case Other():
            return not may_be_empty(language.part)
        case _:
            raise AssertionError("anchors and look-ahead are resolved before")


def language_of(node: Node) -> Node:
    """Convert a tree without anchors and look-ahead to a language."""
    match node:
        case Chars():
            return node
        case Sequence():
            return joined(*map(language_of, node.parts))
        case Choice():
            return any_of(*map(language_of, node.options))
        case Repeat():
            return times(language_of(node.part), node.low, node.high)
        case _:
            raise AssertionError("anchors and look-ahead are resolved before")


def plain(language: Node, alphabet: Ranges) -> Node:
    """Remove "both" and "not".

    Texts have characters of `alphabet`.

    Raises:
        UnsupportedGrammar: it would be too large.
    """
    if is_plain(language):
        return language
    match language:
        case Sequence():
            return joined(*(plain(part, alphabet) for part in language.parts))
        case Choice():
            return any_of(*(plain(part, alphabet) for part in language.options))
        case Repeat():
            return times(plain(language.part, alphabet), language.low, language.high)
        case _:
            return _eliminated(*_automaton(language, alphabet))


# --- automata -------------------------------------------------------------------------------------

_Moves = list[dict[int, Ranges]]  # by state: to which on which characters


def _automaton(language: Node, alphabet: Ranges) -> tuple[_Moves, list[bool]]:
    """Return the moves, and the states that may be the last; the first state is 0."""
    numbers: dict[Node, int] = {language: 0}
    moves: _Moves = []
    queue = deque([language])
    while queue:
        state = queue.popleft()
        found: dict[int, Ranges] = {}
        for ranges in _classes(state, alphabet):
            after = _after(state, ranges[0][0])
            if after == NOTHING:
                continue
            if after not in numbers:
                if len(numbers) >= _MAX_STATES:
                    refuse(f"its look-ahead needs more than {_MAX_STATES} states, the limit")
                numbers[after] = len(numbers)
                queue.append(after)
            number = numbers[after]
            found[number] = union(found.get(number, ()), ranges)
        moves.append(found)
    return moves, [may_be_empty(state) for state in numbers]


def _classes(language: Node, alphabet: Ranges) -> list[Ranges]:
    """Return sets of characters that make no difference to what may follow the first one."""
    classes = [alphabet]
    for ranges in _first(language):
        rest = complement(ranges)
        classes = [
            part for one in classes for part in (intersection(one, ranges), intersection(one, rest))
        ]
        classes = [part for part in classes if part]
    return classes


def _first(language: Node) -> set[Ranges]:
    """Return the sets that first characters may belong to, as far as they matter."""
    match language:
        case Chars():
            return {language.ranges} if language.ranges else set()
        case Sequence():
            found: set[Ranges] = set()
            for part in language.parts:
                found |= _first(part)
                if not may_be_empty(part):
                    break
            return found
        case Repeat() | Other():
            return _first(language.part)
        case _:
            return set().union(*map(_first, children(language)))


def _after(language: Node, code: int) -> Node:
    """Return the language of texts after a first character: the derivative."""
    match language:
        case Chars():
            is_in = any(low <= code <= high for low, high in language.ranges)
            return EMPTY if is_in else NOTHING
        case Sequence():
            return _after_joined(language, code)
        case Choice():
            return any_of(*(_after(part, code) for part in language.options))
        case Both():
            return both(*(_after(part, code) for part in language.parts))
        case Other():
            return other(_after(language.part, code))
        case Repeat():
            high = None if language.high is None else language.high - 1
            rest = times(language.part, max(language.low - 1, 0), high)
            return joined(_after(language.part, code), rest)
        case _:
            raise AssertionError("anchors and look-ahead are resolved before")


def _after_joined(language: Sequence, code: int) -> Node:
    options: list[Node] = []
    for i, part in enumerate(language.parts):
        options.append(joined(_after(part, code), *language.parts[i + 1 :]))
        if not may_be_empty(part):
            break
    return any_of(*options)


def _eliminated(moves: _Moves, ends: list[bool]) -> Node:
    """Return the expression of an automaton; states on the fewest ways are removed first."""
    last = len(moves)
    ways: dict[tuple[int, int], Node] = {
        (i, j): Chars(ranges) for i, found in enumerate(moves) for j, ranges in found.items()
    }
    ways |= {(i, last): EMPTY for i, is_end in enumerate(ends) if is_end}
    ways[-1, 0] = EMPTY
    left = set(range(last))
    while left:
        state = min(left, key=lambda one: (_num_ways(ways, one), -one))
        left.remove(state)
        loop = ways.pop((state, state), NOTHING)
        into = {i: ways.pop((i, j)) for i, j in list(ways) if j == state}
        out = {j: ways.pop((i, j)) for i, j in list(ways) if i == state}
        around = times(loop, 0, None)
        for i, before in into.items():
            for j, after in out.items():
                way = joined(before, around, after)
                ways[i, j] = _optional(ways.get((i, j), NOTHING), way)
        if sum(map(_size, ways.values())) > 4 * _MAX_SIZE:
            refuse("its look-ahead becomes too large without it")
    found = ways.get((-1, last), NOTHING)
    if _size(found) > _MAX_SIZE:
        refuse(f"its look-ahead has {_size(found)} characters without it, over {_MAX_SIZE}")
    return found


def _num_ways(ways: dict[tuple[int, int], Node], state: int) -> int:
    into = sum(_size(way) for (i, j), way in ways.items() if j == state and i != state)
    out = sum(_size(way) for (i, j), way in ways.items() if i == state and j != state)
    return into * max(out, 1) + out


def _optional(first: Node, second: Node) -> Node:
    if EMPTY in (first, second):
        rest = second if first == EMPTY else first
        return rest if may_be_empty(rest) else times(rest, 0, 1)
    return any_of(first, second)


def _size(language: Node) -> int:
    match language:
        case Chars():
            return 1
        case Repeat():
            count = language.low + 1 if language.high is None else language.high
            return _size(language.part) * count + 1
        case Other():
            return _size(language.part)
        case _:
            return sum(map(_size, children(language))) + 1
