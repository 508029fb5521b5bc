r"""Resolves look-ahead and word boundaries in a pattern: what they ask of the text that follows.

The texts of a pattern are found from its end: each part is told which texts may follow it. A
look-ahead anywhere is then an intersection of these texts with its own. A boundary asks for a first
character. The following texts may differ after a word character and after another. They may differ
after one that Python and ECMA 262 do not both take for a word's (`é`). A boundary is not served in
that last case.

Not served: look-ahead in a repeat without limit. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from models.grammar.charsets import Ranges, Reading, class_of, complement, intersection, union
from models.grammar.limits import refuse
from models.grammar.patterns.languages import (
    any_of,
    both,
    joined,
    language_of,
    may_be_empty,
    other,
    plain,
    times,
)
from models.grammar.patterns.tree import (
    EMPTY,
    NOTHING,
    Anchor,
    Both,
    Chars,
    Choice,
    Look,
    Node,
    Repeat,
    Sequence,
    walk,
)

_MAX_UNROLLED = 12  # times that a repeat with look-ahead is written out
_NEWLINE = Chars(((10, 10),))
# The kinds of place: after nothing, a word character, another, or one that is not read alike.
_START, _WORD, _OTHER, _UNCLEAR = range(4)
_After = tuple[Node, Node, Node, Node]  # texts that may follow, by place


def has_looks(node: Node) -> bool:
    """Return whether a pattern has look-ahead or word boundaries."""
    return any(isinstance(part, Look) for part in walk(node))


def resolved(node: Node, alphabet: Ranges, *, is_whole: bool, is_shared: bool) -> list[Node]:
    """Return the languages whose texts in common match a pattern.

    Args:
        node: the pattern.
        alphabet: characters that texts may have.
        is_whole: the whole text matches; else it may match anywhere.
        is_shared: for Python and ECMA 262 alike; else for Python.

    Raises:
        UnsupportedGrammar: look-ahead in a repeat without limit, or it would become too large.
    """
    resolver = _Resolver(alphabet, is_shared=is_shared)
    anything = resolver.anything
    end = EMPTY if is_whole else anything
    after = resolver.before(node, (end, end, end, end))
    options = [after[_START]]
    if not is_whole:
        for kind in (_WORD, _OTHER, _UNCLEAR):
            chars = Chars(resolver.kinds[kind])
            options.append(joined(anything, chars, after[kind]))
        if after[_START] == after[_WORD] == after[_OTHER] == after[_UNCLEAR]:
            options = [joined(anything, after[_START])]
    found = any_of(*options)
    parts = found.parts if isinstance(found, Both) else (found,)
    return [plain(part, alphabet) for part in parts]


@dataclass(frozen=True, slots=True)
class _Words:
    """The characters that surely belong to words, and those that surely do not."""

    word: Ranges
    others: Ranges


class _Resolver:
    def __init__(self, alphabet: Ranges, *, is_shared: bool) -> None:
        self._alphabet = alphabet
        self.anything: Node = times(Chars(alphabet), 0, None)

        def of(letter: str, reading: Reading) -> Ranges:
            found = class_of(letter, is_ascii=False, reading=reading)
            return intersection(found, alphabet)

        narrow: Reading = "both" if is_shared else "python"
        wide: Reading = "either" if is_shared else "python"
        self._narrow = _Words(of("w", narrow), of("W", narrow))
        self._wide = _Words(of("w", wide), of("W", wide))
        known = union(self._narrow.word, self._narrow.others)
        unclear = intersection(complement(known), alphabet)
        self.kinds: tuple[Ranges, ...] = ((), self._narrow.word, self._narrow.others, unclear)

    def before(self, node: Node, after: _After) -> _After:
        """Return the texts that may follow before a part, given those after it."""
        match node:
            case Chars():
                return self._chars(node, after)
            case Sequence():
                for part in reversed(node.parts):
                    after = self.before(part, after)
                return after
            case Choice():
                options = [self.before(option, after) for option in node.options]
                return _each(lambda kind: any_of(*(option[kind] for option in options)))
            case Repeat():
                return self._repeat(node, after)
            case Anchor():
                return self._anchor(node, after)
            case Look():
                return self._look(node, after)
            case _:
                raise AssertionError("a pattern has no other parts")

    def _chars(self, node: Chars, after: _After) -> _After:
        ranges = intersection(node.ranges, self._alphabet)
        if after[_WORD] == after[_OTHER] == after[_UNCLEAR]:
            found = joined(Chars(ranges), after[_WORD]) if ranges else NOTHING
        else:
            found = any_of(
                *(
                    joined(Chars(intersection(ranges, self.kinds[kind])), after[kind])
                    for kind in (_WORD, _OTHER, _UNCLEAR)
                )
            )
        return (found, found, found, found)

    def _repeat(self, node: Repeat, after: _After) -> _After:
        if _is_simple(node.part):
            return self._simple_repeat(node, after)
        if node.high is None or node.high > _MAX_UNROLLED:
            refuse(f"look-ahead in a repeat of more than {_MAX_UNROLLED} times is not supported")
        found = after
        for i in range(node.high - 1, -1, -1):
            # A repeat that matched i times may match once more, or stop from `low` on.
            more = self.before(node.part, found)
            stop = after if i >= node.low else None
            found = _each(
                lambda kind, more=more, stop=stop: (  # type: ignore[misc]
                    more[kind] if stop is None else any_of(more[kind], stop[kind])
                )
            )
        return found

    def _simple_repeat(self, node: Repeat, after: _After) -> _After:
        part = language_of(_within(node.part, self._alphabet))
        whole = times(part, node.low, node.high)
        if after[_START] == after[_WORD] == after[_OTHER] == after[_UNCLEAR]:
            found = joined(whole, after[_START])
            return (found, found, found, found)
        endings = [
            joined(both(whole, joined(self.anything, Chars(self.kinds[kind]))), after[kind])
            for kind in (_WORD, _OTHER, _UNCLEAR)
            if self.kinds[kind] and after[kind] != NOTHING
        ]
        is_optional = may_be_empty(whole)
        return _each(lambda kind: any_of(*endings, *([after[kind]] if is_optional else [])))

    def _anchor(self, node: Anchor, after: _After) -> _After:
        if node.is_start:
            return (after[_START], NOTHING, NOTHING, NOTHING)
        if node.is_wide:  # where a match is denied, Python's end counts too: before a line feed
            end = any_of(EMPTY, _NEWLINE)
            return _each(lambda kind: both(after[kind], end))
        return _each(lambda kind: EMPTY if may_be_empty(after[kind]) else NOTHING)

    def _look(self, node: Look, after: _After) -> _After:
        if node.part is None:
            return self._boundary(node, after)
        anything = self.anything
        ahead = self.before(node.part, (anything, anything, anything, anything))
        return _each(
            lambda kind: both(other(ahead[kind]) if node.is_negative else ahead[kind], after[kind])
        )

    def _boundary(self, node: Look, after: _After) -> _After:
        words = self._wide if node.is_wide else self._narrow
        begins_word = joined(Chars(words.word), self.anything)
        begins_other = any_of(EMPTY, joined(Chars(words.others), self.anything))
        if node.is_negative:
            begins_word, begins_other = begins_other, begins_word
        return (
            both(begins_word, after[_START]),
            both(begins_other, after[_WORD]),
            both(begins_word, after[_OTHER]),
            after[_UNCLEAR] if node.is_wide else NOTHING,
        )


def _each(make: Callable[[int], Node]) -> _After:
    return (make(_START), make(_WORD), make(_OTHER), make(_UNCLEAR))


def _is_simple(node: Node) -> bool:
    return not any(isinstance(part, Look | Anchor) for part in walk(node))


def _within(node: Node, alphabet: Ranges) -> Node:
    """Return the part with the characters of the alphabet alone."""
    match node:
        case Chars():
            return Chars(intersection(node.ranges, alphabet))
        case Sequence():
            return Sequence(tuple(_within(part, alphabet) for part in node.parts))
        case Choice():
            return Choice(tuple(_within(option, alphabet) for option in node.options))
        case Repeat():
            return Repeat(_within(node.part, alphabet), node.low, node.high)
        case _:
            return node
