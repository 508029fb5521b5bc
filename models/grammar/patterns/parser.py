r"""Reads a regular expression with Python's own parser, as far as constraints can serve it.

The result is a tree (`tree`). Features that a matcher of whole texts cannot
honour token by token are refused before (`features`). Parts without effect on whole texts (lazy
quantifiers, groups that capture, comments) are left out. Standard library only.

Source: Python 3.11-3.13, Lib/re/_parser.py (the operators of its tree) and docs of `re`.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from typing import Any

from models.grammar.charsets import (
    LAST,
    Ranges,
    Reading,
    class_of,
    complement,
    ignore_case,
    union,
)
from models.grammar.limits import MAX_PATTERN_BYTES, refuse
from models.grammar.patterns.features import refuse_at, refuse_unserved
from models.grammar.patterns.tree import Anchor, Chars, Choice, Look, Node, Repeat, Sequence

# Private, and the only reader whose dialect is Python's by definition. Its tree has kept its form
# since Python 2; an operator it may gain would end in a refusal (`_Walker.part`), never in a wrong
# answer. The tests compare with `re.fullmatch` on whatever Python they run.
_parser: Any = import_module("re._parser")  # not known to typeshed
_ANY = ((0, LAST),)
_NOT_NEWLINE = complement(((10, 10),))
_NOT_LINE_END = complement(((10, 10), (13, 13), (0x2028, 0x2029)))  # ECMA 262's dot
_CLASSES = {
    **{"CATEGORY_DIGIT": "d", "CATEGORY_WORD": "w", "CATEGORY_SPACE": "s"},
    **{"CATEGORY_NOT_DIGIT": "D", "CATEGORY_NOT_WORD": "W", "CATEGORY_NOT_SPACE": "S"},
}
_ANCHORS = {
    **{"AT_BEGINNING": "^", "AT_BEGINNING_STRING": r"\A"},
    **{"AT_END": "$", "AT_END_STRING": r"\Z"},
}
_BOUNDARIES = {"AT_BOUNDARY": False, "AT_NON_BOUNDARY": True}  # True: the boundary is denied
_OPPOSITE: dict[Reading, Reading] = {"python": "python", "both": "either", "either": "both"}
_ALPHABETS = re.ASCII | re.UNICODE  # one at a time


def parse_regex(
    text: str,
    *,
    max_bytes: int = MAX_PATTERN_BYTES,
    is_shared: bool = False,
    allows_looks: bool = False,
) -> Node:
    """Parse a pattern to a tree.

    `is_shared`: it must mean the same to Python and to ECMA 262. A set is then the characters that
    both accept, and parts that they read differently are refused. A set within a denied part is the
    characters that either accepts. `allows_looks`: the tree may have look-ahead and word
    boundaries.

    Raises:
        UnsupportedGrammar: too long or too deep, no pattern of Python's, or with a feature that
            is not served; with the position, in characters from 0.
    """
    num_bytes = len(text.encode("utf-8", "surrogatepass"))
    if num_bytes > max_bytes:
        refuse(f"the pattern has {num_bytes} bytes, the limit is {max_bytes}")
    refuse_unserved(text, is_shared=is_shared, allows_looks=allows_looks)
    try:
        with warnings.catch_warnings():  # it warns of sets that may mean something else one day
            warnings.simplefilter("ignore", FutureWarning)
            parsed = _parser.parse(text)
    except re.error as error:
        refuse_at(error.pos or 0, error.msg)
    except ValueError as error:  # flags that exclude each other, from several groups
        refuse(str(error))
    return _Walker(parsed.state.flags, "both" if is_shared else "python").sequence(parsed)


@dataclass(frozen=True, slots=True)
class _Walker:
    """Turns the parser's tree into ours, under the flags in force.

    Items of the parser's tree are pairs of an operator and its argument.
    """

    flags: int
    reading: Reading
    denies: bool = False  # within what is denied

    def sequence(self, items: Any) -> Sequence:
        return Sequence(tuple(self.part(str(operator), argument) for operator, argument in items))

    def part(self, operator: str, argument: Any) -> Node:
        match operator:
            case "LITERAL" | "NOT_LITERAL":
                ranges = _written([(argument, argument)], self.flags)
                return Chars(ranges if operator == "LITERAL" else complement(ranges))
            case "IN":
                return Chars(_set_of(tuple(argument), self.flags, self.reading))
            case "ANY":
                return Chars(self._any())
            case "AT":
                return self._at(str(argument))
            case "ASSERT" | "ASSERT_NOT":
                return self._look(argument[1], is_negative=operator == "ASSERT_NOT")
            case "BRANCH":
                return Choice(tuple(map(self.sequence, argument[1])))
            case "SUBPATTERN":
                _, on, off, items = argument
                return self._under(on, off).sequence(items)
            case "MAX_REPEAT" | "MIN_REPEAT":  # lazy or not, the same texts match as a whole
                low, high, items = argument
                return Repeat(
                    self.sequence(items), low, None if high is _parser.MAXREPEAT else int(high)
                )
        refuse(f"what Python's parser calls {operator} is not supported")

    def _look(self, items: Any, *, is_negative: bool) -> Node:
        if not is_negative:
            return Look(self.sequence(items))
        denied = replace(self, reading=_OPPOSITE[self.reading], denies=not self.denies)
        return Look(denied.sequence(items), is_negative=True)

    def _at(self, sign: str) -> Node:
        if sign in _BOUNDARIES:
            return Look(None, is_negative=_BOUNDARIES[sign], is_wide=self.reading == "either")
        if self.denies and self.flags & re.MULTILINE:
            refuse("an anchor of lines in what is denied is not supported")
        is_wide = self.denies and sign == "AT_END"
        return Anchor(_ANCHORS[sign], is_wide)

    def _under(self, on: int, off: int) -> _Walker:
        flags = self.flags & ~_ALPHABETS if on & _ALPHABETS else self.flags
        return replace(self, flags=(flags | on) & ~off)

    def _any(self) -> Ranges:
        if self.flags & re.DOTALL:
            return _ANY
        return _NOT_LINE_END if self.reading == "both" else _NOT_NEWLINE


def _written(plain: list[tuple[int, int]], flags: int) -> Ranges:
    """Return characters that are written themselves, in both cases if case is ignored."""
    ranges = union(plain)
    if not flags & re.IGNORECASE:
        return ranges
    return ignore_case(ranges, is_ascii=bool(flags & re.ASCII))


@lru_cache(maxsize=64)  # patterns repeat their sets; one such as \w costs half a millisecond
def _set_of(members: tuple[tuple[Any, Any], ...], flags: int, reading: Reading) -> Ranges:
    """Return the characters of a set, whose items are the parser's."""
    plain: list[tuple[int, int]] = []
    letters: list[str] = []
    is_negated = False
    for operator, argument in members:
        match str(operator):
            case "NEGATE":
                is_negated = True
            case "LITERAL":
                plain.append((argument, argument))
            case "RANGE":
                plain.append(argument)
            case "CATEGORY":
                letters.append(_CLASSES[str(argument)])
    if is_negated:
        reading = _OPPOSITE[reading]  # members by one reader must be left out by both
    is_ascii = bool(flags & re.ASCII)
    classes = (class_of(one, is_ascii=is_ascii, reading=reading) for one in letters)
    ranges = union(_written(plain, flags), *classes)
    return complement(ranges) if is_negated else ranges
