"""Reads what stands for characters in a pattern: escapes and sets. Standard library only.

Source: Python 3.11-3.13, Lib/re/_parser.py, `_escape` and `_class_escape`.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, replace

from models.grammar.charsets import (
    LAST,
    Ranges,
    Reading,
    class_of,
    complement,
    ignore_case,
    union,
)
from models.grammar.pattern_reader import PatternReader
from models.grammar.pattern_tree import Chars

CLASS_LETTERS = frozenset("dDsSwW")

_CONTROLS = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_OCTAL = frozenset("01234567")
_PYTHON_ONLY = frozenset("aUN")  # to ECMA 262 the letters themselves


@dataclass(frozen=True, slots=True)
class Flags:
    """What the flags in force say about characters."""

    ignore_case: bool = False
    dot_all: bool = False
    is_ascii: bool = False
    reading: Reading = "python"

    @property
    def is_shared(self) -> bool:
        """Whether the pattern must mean the same to Python and to ECMA 262."""
        return self.reading != "python"


def literal(code: int, flags: Flags) -> Chars:
    """One character, in both cases where case is ignored."""
    ranges = union([(code, code)])
    if flags.ignore_case:
        ranges = ignore_case(ranges, is_ascii=flags.is_ascii)
    return Chars(ranges)


def read_octal(reader: PatternReader, char: str, start: int) -> int:
    """The character of three octal digits; anything else would be a back reference."""
    digits = char + reader.peek(2)
    if len(digits) < 3 or not set(digits) <= _OCTAL:
        reader.unserved("a back reference", start)
    reader.at += 2
    return _octal(reader, digits, start)


def read_code(reader: PatternReader, char: str, start: int, flags: Flags) -> int:
    """The character of an escape that means one character, within a set or outside."""
    if flags.is_shared and char in _PYTHON_ONLY:
        reader.unserved("an escape that not all validators read alike", start)
    if char in _CONTROLS:
        return _CONTROLS[char]
    if char in _HEX_DIGITS:
        return _hex(reader, _HEX_DIGITS[char], start)
    if char == "N":
        return _named(reader, start)
    if char in _OCTAL:
        for _ in range(2):
            if reader.peek() in _OCTAL:
                char += reader.next("")
        return _octal(reader, char, start)
    if char.isascii() and char.isalnum():
        reader.fail(f"bad escape \\{char}", start)
    return ord(char)


def _octal(reader: PatternReader, digits: str, start: int) -> int:
    code = int(digits, 8)
    if code > 0o377:
        reader.fail(f"octal escape \\{digits} outside of range 0-0o377", start)
    return code


def _hex(reader: PatternReader, length: int, start: int) -> int:
    digits = reader.peek(length)
    if len(digits) < length or not set(digits) <= set("0123456789abcdefABCDEF"):
        reader.fail(f"incomplete escape \\{reader.text[start + 1]}{digits}", start)
    reader.at += length
    code = int(digits, 16)
    if code > LAST or 0xD800 <= code <= 0xDFFF:
        reader.fail(f"escape \\{reader.text[start + 1]}{digits} is no character", start)
    return code


def _named(reader: PatternReader, start: int) -> int:
    if not reader.take("{"):
        reader.fail("missing { behind \\N", start)
    name = reader.until("}", "missing }, unterminated name")
    try:
        return ord(unicodedata.lookup(name))
    except (KeyError, TypeError):
        reader.fail(f"undefined character name {name!r}", start)


def read_set(reader: PatternReader, start: int, flags: Flags) -> Ranges:
    """The characters of a set whose `[`, at `start`, is read already."""
    is_negated = reader.take("^")
    if flags.is_shared:
        if reader.peek() == "]":
            reader.unserved("a set that begins with ]", start)
        if is_negated:  # what one of them takes for a member both must leave out
            flags = replace(flags, reading="either")
    plain: list[tuple[int, int]] = []
    classes: list[Ranges] = []
    is_first = True
    while is_first or reader.peek() != "]":
        is_first = False
        position = reader.at
        low = _member(reader, start, flags)
        if reader.peek(2) != "-]" and reader.take("-"):
            high = _member(reader, start, flags)
            plain.append(_range(reader, low, high, position))
        elif isinstance(low, int):
            plain.append((low, low))
        else:
            classes.append(low)
    reader.at += 1
    ranges = union(plain)
    if flags.ignore_case:
        ranges = ignore_case(ranges, is_ascii=flags.is_ascii)
    ranges = union(ranges, *classes)
    return complement(ranges) if is_negated else ranges


def _range(
    reader: PatternReader, low: int | Ranges, high: int | Ranges, position: int
) -> tuple[int, int]:
    if not isinstance(low, int) or not isinstance(high, int) or high < low:
        reader.fail(f"bad character range {reader.text[position : reader.at]}", position)
    return low, high


def _member(reader: PatternReader, start: int, flags: Flags) -> int | Ranges:
    """A character of a set, or a class like `\\d` in it."""
    char = reader.next("unterminated character set")
    if char != "\\":
        return ord(char)
    position = reader.at - 1
    char = reader.next("unterminated character set")
    if char in CLASS_LETTERS:
        return class_of(char, is_ascii=flags.is_ascii, reading=flags.reading)
    return 8 if char == "b" else read_code(reader, char, position, flags)
