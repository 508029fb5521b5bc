"""Languages of texts with intersections and complements, made plain regular expressions again.

A `Language` is a regular expression that may also say "both" and "not". `plain` writes one without:
by derivatives it becomes an automaton (Brzozowski 1964), and its states are eliminated one by one.
Both have limits, because either may grow exponentially. Standard library only.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from models.grammar.charsets import Ranges, complement, intersection, union
from models.grammar.limits import refuse
from models.grammar.patterns.tree import Anchor, Chars, Choice, Look, Node, Repeat, Sequence

_MAX_STATES = 120
_MAX_SIZE = 4_000  # characters of what it becomes, its repeats written out


@dataclass(frozen=True, slots=True)
class Both:
    """The texts of all parts."""

    parts: tuple[Language, ...]


@dataclass(frozen=True, slots=True)
class Other:
    """All texts but those of the part."""

    part: Language


@dataclass(frozen=True, slots=True)
class Joined:
    """All parts, one after the other."""

    parts: tuple[Language, ...]


@dataclass(frozen=True, slots=True)
class Any_:
    """Those of any part."""

    parts: tuple[Language, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """`part` from `low` to `high` times."""

    part: Language
    low: int
    high: int | None


Language = Chars | Joined | Any_ | Times | Both | Other

EMPTY = Joined(())  # the empty text
NOTHING = Chars(())  # no text


def joined(*parts: Language) -> Language:
    """Join the languages one after the other."""
    flat: list[Language] = []
    for part in parts:
        if part == NOTHING:
            return NOTHING
        flat += part.parts if isinstance(part, Joined) else [part]
    return flat[0] if len(flat) == 1 else Joined(tuple(flat))


def any_of(*parts: Language) -> Language:
    """Return the texts of any part.

    Single characters become one set.
    """
    flat: dict[Language, None] = {}
    ranges: Ranges = ()
    for part in parts:
        for one in part.parts if isinstance(part, Any_) else (part,):
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
    return found[0] if len(found) == 1 else Any_(tuple(found))


def both(*parts: Language) -> Language:
    """Return the texts of all parts."""
    flat: dict[Language, None] = {}
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


def other(part: Language) -> Language:
    """Return all texts but those."""
    return part.part if isinstance(part, Other) else Other(part)


def times(part: Language, low: int, high: int | None) -> Language:
    """`part` from `low` to `high` times."""
    if high == 0 or part == EMPTY or (part == NOTHING and low == 0):
        return EMPTY
    if part == NOTHING or (low, high) == (1, 1):
        return part
    return Times(part, low, high)


def is_plain(language: Language) -> bool:
    """Return whether it has neither "both" nor "not"."""
    match language:
        case Chars():
            return True
        case Both() | Other():
            return False
        case Times():
            return is_plain(language.part)
        case _:
            return all(map(is_plain, language.parts))


def may_be_empty(language: Language) -> bool:
    """Return whether the empty text is in the language."""
    match language:
        case Chars():
            return False
        case Joined() | Both():
            return all(map(may_be_empty, language.parts))
        case Any_():
            return any(map(may_be_empty, language.parts))
        case Times():
            return language.low == 0 or may_be_empty(language.part)
        case Other():
            return not may_be_empty(language.part)


def node_of(language: Language) -> Node:
    """Convert a plain language to a tree of `tree`."""
    match language:
        case Chars():
            return language
        case Joined():
            return Sequence(tuple(map(node_of, language.parts)))
        case Any_():
            return Choice(tuple(map(node_of, language.parts)))
        case Times():
            return Repeat(node_of(language.part), language.low, language.high)
        case _:
            raise AssertionError("it is made plain before")


def language_of(node: Node) -> Language:
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
        case Anchor() | Look():
            raise AssertionError("they are resolved before")


def plain(language: Language, alphabet: Ranges) -> Language:
    """Remove "both" and "not".

    Texts have characters of `alphabet`.

    Raises:
        UnsupportedGrammar: it would be too large.
    """
    if is_plain(language):
        return language
    match language:
        case Joined():
            return joined(*(plain(part, alphabet) for part in language.parts))
        case Any_():
            return any_of(*(plain(part, alphabet) for part in language.parts))
        case Times():
            return times(plain(language.part, alphabet), language.low, language.high)
        case _:
            return _eliminated(*_automaton(language, alphabet))


# --- automata -------------------------------------------------------------------------------------

_Moves = list[dict[int, Ranges]]  # by state: to which on which characters


def _automaton(language: Language, alphabet: Ranges) -> tuple[_Moves, list[bool]]:
    """Return the moves, and the states that may be the last; the first state is 0."""
    numbers: dict[Language, int] = {language: 0}
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


def _classes(language: Language, alphabet: Ranges) -> list[Ranges]:
    """Return sets of characters that make no difference to what may follow the first one."""
    classes = [alphabet]
    for ranges in _first(language):
        rest = complement(ranges)
        classes = [
            part for one in classes for part in (intersection(one, ranges), intersection(one, rest))
        ]
        classes = [part for part in classes if part]
    return classes


def _first(language: Language) -> set[Ranges]:
    """Return the sets that first characters may belong to, as far as they matter."""
    match language:
        case Chars():
            return {language.ranges} if language.ranges else set()
        case Joined():
            found: set[Ranges] = set()
            for part in language.parts:
                found |= _first(part)
                if not may_be_empty(part):
                    break
            return found
        case Times() | Other():
            return _first(language.part)
        case _:
            return set().union(*map(_first, language.parts))


def _after(language: Language, code: int) -> Language:
    """Return the language of texts after a first character: the derivative."""
    match language:
        case Chars():
            is_in = any(low <= code <= high for low, high in language.ranges)
            return EMPTY if is_in else NOTHING
        case Joined():
            return _after_joined(language, code)
        case Any_():
            return any_of(*(_after(part, code) for part in language.parts))
        case Both():
            return both(*(_after(part, code) for part in language.parts))
        case Other():
            return other(_after(language.part, code))
        case Times():
            high = None if language.high is None else language.high - 1
            rest = times(language.part, max(language.low - 1, 0), high)
            return joined(_after(language.part, code), rest)


def _after_joined(language: Joined, code: int) -> Language:
    options: list[Language] = []
    for i, part in enumerate(language.parts):
        options.append(joined(_after(part, code), *language.parts[i + 1 :]))
        if not may_be_empty(part):
            break
    return any_of(*options)


def _eliminated(moves: _Moves, ends: list[bool]) -> Language:
    """Return the expression of an automaton; states on the fewest ways are removed first."""
    last = len(moves)
    ways: dict[tuple[int, int], Language] = {
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


def _num_ways(ways: dict[tuple[int, int], Language], state: int) -> int:
    into = sum(_size(way) for (i, j), way in ways.items() if j == state and i != state)
    out = sum(_size(way) for (i, j), way in ways.items() if i == state and j != state)
    return into * max(out, 1) + out


def _optional(first: Language, second: Language) -> Language:
    if EMPTY in (first, second):
        rest = second if first == EMPTY else first
        return rest if may_be_empty(rest) else times(rest, 0, 1)
    return any_of(first, second)


def _size(language: Language) -> int:
    match language:
        case Chars():
            return 1
        case Times():
            count = language.low + 1 if language.high is None else language.high
            return _size(language.part) * count + 1
        case Other():
            return _size(language.part)
        case _:
            return sum(map(_size, language.parts)) + 1
