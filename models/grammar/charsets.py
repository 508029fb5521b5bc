"""Sets of characters as Python's `re` sees them. Standard library only.

A set is a tuple of ranges of code points, ascending, disjoint, both ends included. `re` itself
tells which characters are digits, word characters or white space. It also tells which differ only
in case. It is asked once for each process. So the sets mean the same to a client that checks an
answer with `re.fullmatch`. Lone surrogates are in no set: a text that can be sent has none.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

Ranges = tuple[tuple[int, int], ...]
# The readers whose meaning counts: Python, Python and ECMA 262 both, or either of them.
Reading = Literal["python", "both", "either"]

LAST = 0x10FFFF
_CASED_END = 0x20000  # no character after the second plane has a case
_CLASS_END = 0x40000  # none after the fourth is a digit, a word character or white space
_SURROGATES = (0xD800, 0xDFFF)
_READINGS: tuple[Reading, ...] = ("python", "both", "either")
# ECMA 262, CharacterClassEscape: only white space knows other alphabets.
_ECMA_CLASSES: dict[str, Ranges] = {
    "d": ((48, 57),),
    "w": ((48, 57), (65, 90), (95, 95), (97, 122)),
    "s": (
        *((9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
        *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
        (0xFEFF, 0xFEFF),
    ),
}


ALL: Ranges = ((0, _SURROGATES[0] - 1), (_SURROGATES[1] + 1, LAST))


def union(*sets: Iterable[tuple[int, int]]) -> Ranges:
    """Return all characters of all sets; the ranges given may overlap and stand in any order."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(one for ranges in sets for one in _cut(ranges)):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    """Return all other characters."""
    others: list[tuple[int, int]] = []
    start = 0
    for low, high in ranges:
        others.append((start, low - 1))
        start = high + 1
    others.append((start, LAST))
    return union((low, high) for low, high in others if low <= high)


@lru_cache(maxsize=16)
def category(letter: str, *, is_ascii: bool) -> Ranges:
    r"""Return the ranges of `\d`, `\w`, `\s` or their capitals, with or without `re.ASCII`."""
    if letter.isupper():
        return complement(category(letter.lower(), is_ascii=is_ascii))
    everything = "".join(map(chr, range(_CLASS_END)))
    runs = re.finditer(rf"\{letter}+", everything, re.ASCII if is_ascii else re.UNICODE)
    return union((run.start(), run.end() - 1) for run in runs)


def intersection(first: Ranges, second: Ranges) -> Ranges:
    """Return the characters of both sets."""
    return complement(union(complement(first), complement(second)))


@lru_cache(maxsize=64)
def class_of(letter: str, *, is_ascii: bool, reading: Reading) -> Ranges:
    r"""Return the ranges of `\d`, `\D` and so on in one reading of the pattern."""
    own = category(letter, is_ascii=is_ascii)
    if reading == "python":
        return own
    theirs = _ECMA_CLASSES[letter.lower()]
    if letter.isupper():
        theirs = complement(theirs)
    return intersection(own, theirs) if reading == "both" else union(own, theirs)


def warm_up() -> None:
    """Find out about all classes now, so that no pattern has to wait for it."""
    for letter in "dswDSW":
        for is_ascii in (False, True):
            for reading in _READINGS:
                class_of(letter, is_ascii=is_ascii, reading=reading)


def ignore_case(ranges: Ranges, *, is_ascii: bool) -> Ranges:
    """Add all characters to the set that `re.IGNORECASE` takes for one of it."""
    cased = _cased_codes(is_ascii=is_ascii)
    same = {
        match
        for low, high in ranges
        for code in cased[bisect_left(cased, low) : bisect_right(cased, high)]
        for match in _same_but_for_case(code, is_ascii=is_ascii)
    }
    return union(ranges, ((code, code) for code in same))


@lru_cache(maxsize=2)
def _cased_codes(*, is_ascii: bool) -> tuple[int, ...]:
    characters = map(chr, range(128 if is_ascii else _CASED_END))
    return tuple(ord(c) for c in characters if c.lower() != c or c.upper() != c)


@lru_cache(maxsize=8192)
def _same_but_for_case(code: int, *, is_ascii: bool) -> tuple[int, ...]:
    flags = re.IGNORECASE | (re.ASCII if is_ascii else re.UNICODE)
    cased = _cased_text(is_ascii=is_ascii)
    return tuple(map(ord, re.findall(re.escape(chr(code)), cased, flags)))


@lru_cache(maxsize=2)
def _cased_text(*, is_ascii: bool) -> str:
    return "".join(map(chr, _cased_codes(is_ascii=is_ascii)))


def _cut(ranges: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """Return the ranges without surrogates."""
    first, last = _SURROGATES
    for low, high in ranges:
        if high < first or low > last:
            yield low, high
            continue
        if low < first:
            yield low, first - 1
        if high > last:
            yield last + 1, high
