r"""Reads a regular expression as Python's `re` would, as far as constraints can serve it.

The result is a tree of five kinds of nodes. What a matcher of whole texts cannot honour token by
token (look-around, back references, word boundaries, atomic groups) is refused by name and
position; what is no difference to whole texts (lazy quantifiers, groups that capture, comments)
is left out. Positions count characters from 0, as in `re.error.pos`. Standard library only.

Source of the syntax: Python 3.11-3.13, Lib/re/_parser.py and docs of `re`.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, replace
from typing import NoReturn

from models.grammar_limits import RegexLimits, refuse
from models.regex_chars import LAST, Ranges, category, complement, ignore_case, union


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Sequence:
    """All parts, one behind the other; none: the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of two or more."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`part` from `low` to `high` times; None: without end."""

    part: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Anchor:
    r"""`^` and `\A` (the start of the text), `$` and `\Z` (its end)."""

    sign: str
    position: int

    @property
    def is_start(self) -> bool:
        """Whether it stands for the start of the text."""
        return self.sign in ("^", r"\A")


Node = Chars | Sequence | Choice | Repeat | Anchor


@dataclass(frozen=True, slots=True)
class _Flags:
    ignore_case: bool = False
    dot_all: bool = False
    is_ascii: bool = False


_ANY = ((0, LAST),)
_NOT_NEWLINE = complement(((10, 10),))
_CONTROLS = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_OCTAL = frozenset("01234567")
_UNSERVED_GROUPS = {
    "=": "look-ahead",
    "!": "negative look-ahead",
    "<=": "look-behind",
    "<!": "negative look-behind",
    "P=": "a back reference",
    "(": "a conditional group",
    ">": "an atomic group",
}


def parse_regex(text: str, limits: RegexLimits) -> Node:
    """The tree of a pattern.

    Raises:
        UnsupportedGrammar: too long or too deep, no pattern of Python's, or with a feature that
            is not served; with the position.
    """
    num_bytes = len(text.encode("utf-8", "surrogatepass"))
    if num_bytes > limits.max_pattern_bytes:
        refuse(f"the pattern has {num_bytes} bytes, the limit is {limits.max_pattern_bytes}")
    return _Parser(text, limits).parse()


class _Parser:
    """One pass from left to right; one method for each kind of construct."""

    def __init__(self, text: str, limits: RegexLimits) -> None:
        self._text = text
        self._limits = limits
        self._at = 0
        self._depth = 0
        self._names: set[str] = set()

    def parse(self) -> Node:
        node = self._alternatives(self._global_flags())
        if self._at < len(self._text):
            self._fail("unbalanced ')'", self._at)
        return node

    # --- reading ------------------------------------------------------------------------------

    def _peek(self, length: int = 1) -> str:
        return self._text[self._at : self._at + length]

    def _take(self, expected: str) -> bool:
        if not self._text.startswith(expected, self._at):
            return False
        self._at += len(expected)
        return True

    def _next(self, missing: str) -> str:
        if self._at == len(self._text):
            self._fail(missing, self._at)
        self._at += 1
        return self._text[self._at - 1]

    def _until(self, end: str, missing: str) -> str:
        start = self._at
        found = self._text.find(end, start)
        if found < 0:
            self._fail(missing, start)
        self._at = found + len(end)
        return self._text[start:found]

    def _fail(self, reason: str, position: int) -> NoReturn:
        refuse(reason, path=f"position {position}")

    def _unserved(self, feature: str, position: int) -> NoReturn:
        shown = self._text[position : max(self._at, position + 1)]
        self._fail(f"{feature} ({shown}) is not supported", position)

    # --- structure ----------------------------------------------------------------------------

    def _alternatives(self, flags: _Flags) -> Node:
        options = [self._sequence(flags)]
        while self._take("|"):
            options.append(self._sequence(flags))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self, flags: _Flags) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and self._peek() not in "|)":
            start = self._at
            char = self._next("")
            if char in "*+?{":
                self._quantifier(char, start, parts, flags)
            elif char == "(":
                group = self._group(start, flags)
                if group is not None:
                    parts.append(group)
            else:
                parts.append(self._one(char, start, flags))
        return Sequence(tuple(parts))

    def _one(self, char: str, start: int, flags: _Flags) -> Node:
        if char == "\\":
            return self._escape(start, flags)
        if char == "[":
            return Chars(self._set(start, flags))
        if char == ".":
            return Chars(_ANY if flags.dot_all else _NOT_NEWLINE)
        if char in "^$":
            return Anchor(char, start)
        return _literal(ord(char), flags)

    def _quantifier(self, char: str, start: int, parts: list[Node], flags: _Flags) -> None:
        bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(char) or self._braces(start)
        if bounds is None:
            parts.append(_literal(ord(char), flags))
            return
        low, high = bounds
        if not parts or isinstance(parts[-1], Anchor):
            self._fail("nothing to repeat", start)
        if isinstance(parts[-1], Repeat):
            self._fail("multiple repeat", start)
        if self._take("+"):
            self._unserved("a possessive quantifier", start)
        self._take("?")  # lazy or not, the same texts match as a whole
        parts[-1] = Repeat(parts[-1], low, high)

    def _braces(self, start: int) -> tuple[int, int | None] | None:
        """The bounds behind `{`; None, and nothing taken, when it is an ordinary character."""
        after = self._at
        if self._peek() == "}":
            return None
        low = high = self._digits()
        if self._take(","):
            high = self._digits()
        if not self._take("}"):
            self._at = after
            return None
        limit = self._limits.max_repeat
        bounds = int(low or 0), int(high) if high else None
        for count in bounds:
            if count is not None and count > limit:
                self._fail(f"repeat count {count} is over the limit of {limit}", start)
        if bounds[1] is not None and bounds[1] < bounds[0]:
            self._fail(f"repeat from {bounds[0]} to {bounds[1]}: min is above max", start)
        return bounds

    def _digits(self) -> str:
        start = self._at
        while self._peek() in tuple("0123456789"):
            self._at += 1
        return self._text[start : self._at]

    # --- groups -------------------------------------------------------------------------------

    def _group(self, start: int, flags: _Flags) -> Node | None:
        """The node of a group; None for a comment."""
        if self._take("?"):
            if self._take("#"):
                self._until(")", "missing ), unterminated comment")
                return None
            flags = self._group_kind(start, flags)
        self._depth += 1
        if self._depth > self._limits.max_depth:
            self._fail(f"groups nest more than {self._limits.max_depth} deep, the limit", start)
        inner = self._alternatives(flags)
        self._depth -= 1
        if not self._take(")"):
            self._fail("missing ), unterminated group", start)
        return Sequence((inner,))  # so that (a*)* is not a multiple repeat

    def _group_kind(self, start: int, flags: _Flags) -> _Flags:
        """The flags within a group that began with `(?`."""
        if self._take(":"):
            return flags
        if self._take("P<"):
            self._name(start)
            return flags
        for sign, feature in _UNSERVED_GROUPS.items():
            if self._take(sign):
                self._unserved(feature, start)
        if self._peek() in tuple("aiLmsux-"):
            return self._scoped_flags(start, flags)
        self._fail(f"unknown extension ?{self._peek()}", start + 1)

    def _name(self, start: int) -> None:
        name = self._until(">", "missing >, unterminated name")
        if not name.isidentifier():
            self._fail(f"bad group name {name!r}", start)
        if name in self._names:
            self._fail(f"redefinition of group name {name!r}", start)
        self._names.add(name)

    def _global_flags(self) -> _Flags:
        """The flags of groups like `(?i)`, which may stand at the beginning only."""
        letters = ""
        while True:
            start = self._at
            if self._take("(?#"):
                self._until(")", "missing ), unterminated comment")
                continue
            end = self._text.find(")", start)
            found = self._text[start + 2 : max(end, start)]
            if not self._take("(?") or not found or not set(found) <= set("aiLmsux"):
                self._at = start
                return self._changed(_Flags(), letters, "", 0)
            self._at = end + 1
            letters += found

    def _scoped_flags(self, start: int, flags: _Flags) -> _Flags:
        position = self._at
        letters = self._until(":", "missing :, or global flags not at the start")
        if set(letters) - set("aiLmsux-"):
            self._fail("bad inline flags, or global flags not at the start", position)
        on, dash, off = letters.partition("-")
        if dash and (not off or set(off) - set("imsx") or set(off) & set(on)):
            self._fail(f"bad inline flags {letters}", position)
        return self._changed(flags, on, off, start)

    def _changed(self, flags: _Flags, on: str, off: str, start: int) -> _Flags:
        if "x" in on:
            self._unserved("flag x", start)
        if "L" in on or {"a", "u"} <= set(on):
            self._fail(f"flags {on} do not go together or not with text", start)
        # m only concerns ^ and $ within a text; those are refused in any case.
        for letter, name in (("i", "ignore_case"), ("s", "dot_all")):
            if letter in on or letter in off:
                flags = replace(flags, **{name: letter in on})
        if "a" in on or "u" in on:
            flags = replace(flags, is_ascii="a" in on)
        return flags

    # --- characters ---------------------------------------------------------------------------

    def _escape(self, start: int, flags: _Flags) -> Node:
        char = self._next("bad escape (end of pattern)")
        if char in "AZ":
            return Anchor("\\" + char, start)
        if char in "bB":
            self._unserved("a word boundary", start)
        if char in tuple("dDsSwW"):
            return Chars(category(char, is_ascii=flags.is_ascii))
        if char in tuple("123456789"):
            return _literal(self._octal_triple(char, start), flags)
        return _literal(self._code(char, start), flags)

    def _octal_triple(self, char: str, start: int) -> int:
        digits = char + self._peek(2)
        if len(digits) < 3 or not set(digits) <= _OCTAL:
            self._unserved("a back reference", start)
        self._at += 2
        return self._octal(digits, start)

    def _octal(self, digits: str, start: int) -> int:
        code = int(digits, 8)
        if code > 0o377:
            self._fail(f"octal escape \\{digits} outside of range 0-0o377", start)
        return code

    def _code(self, char: str, start: int) -> int:
        """The character of an escape that means one character, within a set or outside."""
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in _HEX_DIGITS:
            return self._hex(_HEX_DIGITS[char], start)
        if char == "N":
            return self._named(start)
        if char in _OCTAL:
            for _ in range(2):
                if self._peek() in tuple(_OCTAL):
                    char += self._next("")
            return self._octal(char, start)
        if char.isascii() and char.isalnum():
            self._fail(f"bad escape \\{char}", start)
        return ord(char)

    def _hex(self, length: int, start: int) -> int:
        digits = self._peek(length)
        if len(digits) < length or not set(digits) <= set("0123456789abcdefABCDEF"):
            self._fail(f"incomplete escape \\{self._text[start + 1]}{digits}", start)
        self._at += length
        code = int(digits, 16)
        if code > LAST or 0xD800 <= code <= 0xDFFF:
            self._fail(f"escape \\{self._text[start + 1]}{digits} is no character", start)
        return code

    def _named(self, start: int) -> int:
        if not self._take("{"):
            self._fail("missing { behind \\N", start)
        name = self._until("}", "missing }, unterminated name")
        try:
            return ord(unicodedata.lookup(name))
        except (KeyError, TypeError):
            self._fail(f"undefined character name {name!r}", start)

    def _set(self, start: int, flags: _Flags) -> Ranges:
        is_negated = self._take("^")
        plain: list[tuple[int, int]] = []
        classes: list[Ranges] = []
        is_first = True
        while is_first or self._peek() != "]":
            is_first = False
            position = self._at
            low = self._member(start, flags)
            if self._peek(2) != "-]" and self._take("-"):
                high = self._member(start, flags)
                plain.append(self._range(low, high, position))
            elif isinstance(low, int):
                plain.append((low, low))
            else:
                classes.append(low)
        self._at += 1
        ranges = union(plain)
        if flags.ignore_case:
            ranges = ignore_case(ranges, is_ascii=flags.is_ascii)
        ranges = union(ranges, *classes)
        return complement(ranges) if is_negated else ranges

    def _range(self, low: int | Ranges, high: int | Ranges, position: int) -> tuple[int, int]:
        if not isinstance(low, int) or not isinstance(high, int) or high < low:
            self._fail(f"bad character range {self._text[position : self._at]}", position)
        return low, high

    def _member(self, start: int, flags: _Flags) -> int | Ranges:
        """A character of a set, or a class like `\\d` in it."""
        char = self._next("unterminated character set")
        if char != "\\":
            return ord(char)
        position = self._at - 1
        char = self._next("unterminated character set")
        if char in tuple("dDsSwW"):
            return category(char, is_ascii=flags.is_ascii)
        return 8 if char == "b" else self._code(char, position)


def _literal(code: int, flags: _Flags) -> Chars:
    ranges = union([(code, code)])
    if flags.ignore_case:
        ranges = ignore_case(ranges, is_ascii=flags.is_ascii)
    return Chars(ranges)
