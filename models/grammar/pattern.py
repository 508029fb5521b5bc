r"""Reads a regular expression as Python's `re` would, as far as constraints can serve it.

The result is a tree of five kinds of nodes. What a matcher of whole texts cannot honour token by
token (look-around, back references, word boundaries, atomic groups) is refused by name and
position; what is no difference to whole texts (lazy quantifiers, groups that capture, comments)
is left out. Positions count characters from 0, as in `re.error.pos`. Standard library only.

Source of the syntax: Python 3.11-3.13, Lib/re/_parser.py and docs of `re`.
"""

from __future__ import annotations

from dataclasses import replace

from models.grammar.charsets import LAST, Ranges, class_of, complement
from models.grammar.limits import RegexLimits, refuse
from models.grammar.pattern_escapes import (
    CLASS_LETTERS,
    Flags,
    literal,
    read_code,
    read_octal,
    read_set,
)
from models.grammar.pattern_reader import PatternReader
from models.grammar.pattern_tree import Anchor, Chars, Choice, Node, Repeat, Sequence

_ANY = ((0, LAST),)
_NOT_NEWLINE = complement(((10, 10),))
_NOT_LINE_END = complement(((10, 10), (13, 13), (0x2028, 0x2029)))  # ECMA 262's dot
_UNSERVED_GROUPS = {
    "=": "look-ahead",
    "!": "negative look-ahead",
    "<=": "look-behind",
    "<!": "negative look-behind",
    "P=": "a back reference",
    "(": "a conditional group",
    ">": "an atomic group",
}


def parse_regex(text: str, limits: RegexLimits, *, is_shared: bool = False) -> Node:
    """The tree of a pattern.

    `is_shared`: it must mean the same to Python and to ECMA 262. A set is then what both take for
    it, and what they read differently is refused.

    Raises:
        UnsupportedGrammar: too long or too deep, no pattern of Python's, or with a feature that
            is not served; with the position.
    """
    num_bytes = len(text.encode("utf-8", "surrogatepass"))
    if num_bytes > limits.max_pattern_bytes:
        refuse(f"the pattern has {num_bytes} bytes, the limit is {limits.max_pattern_bytes}")
    return _Parser(text, limits, Flags(reading="both" if is_shared else "python")).parse()


def _any(flags: Flags) -> Ranges:
    if flags.dot_all:
        return _ANY
    return _NOT_LINE_END if flags.is_shared else _NOT_NEWLINE


class _Parser:
    """One pass from left to right; one method for each kind of construct."""

    def __init__(self, text: str, limits: RegexLimits, flags: Flags) -> None:
        self._flags = flags
        self._reader = PatternReader(text)
        self._limits = limits
        self._depth = 0
        self._names: set[str] = set()

    def parse(self) -> Node:
        node = self._alternatives(self._global_flags())
        if not self._reader.is_at_end:
            self._reader.fail("unbalanced ')'", self._reader.at)
        return node

    # --- structure ----------------------------------------------------------------------------

    def _alternatives(self, flags: Flags) -> Node:
        options = [self._sequence(flags)]
        while self._reader.take("|"):
            options.append(self._sequence(flags))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self, flags: Flags) -> Node:
        parts: list[Node] = []
        while not self._reader.is_at_end and self._reader.peek() not in "|)":
            start = self._reader.at
            char = self._reader.next("")
            if char in "*+?{":
                self._quantifier(char, start, parts, flags)
            elif char == "(":
                group = self._group(start, flags)
                if group is not None:
                    parts.append(group)
            else:
                parts.append(self._one(char, start, flags))
        return Sequence(tuple(parts))

    def _one(self, char: str, start: int, flags: Flags) -> Node:
        if char == "\\":
            return self._escape(start, flags)
        if char == "[":
            return Chars(read_set(self._reader, start, flags))
        if char == ".":
            return Chars(_any(flags))
        if char in "^$":
            return Anchor(char, start)
        return literal(ord(char), flags)

    def _escape(self, start: int, flags: Flags) -> Node:
        char = self._reader.next("bad escape (end of pattern)")
        if char in "AZ":
            if flags.is_shared:
                self._reader.unserved("an anchor that not all validators read alike", start)
            return Anchor("\\" + char, start)
        if char in "bB":
            self._reader.unserved("a word boundary", start)
        if char in CLASS_LETTERS:
            return Chars(class_of(char, is_ascii=flags.is_ascii, reading=flags.reading))
        if char in tuple("123456789"):
            return literal(read_octal(self._reader, char, start), flags)
        return literal(read_code(self._reader, char, start, flags), flags)

    def _quantifier(self, char: str, start: int, parts: list[Node], flags: Flags) -> None:
        bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(char) or self._braces(start)
        if bounds is None:
            parts.append(literal(ord(char), flags))
            return
        low, high = bounds
        if not parts or isinstance(parts[-1], Anchor):
            self._reader.fail("nothing to repeat", start)
        if isinstance(parts[-1], Repeat):
            self._reader.fail("multiple repeat", start)
        if self._reader.take("+"):
            self._reader.unserved("a possessive quantifier", start)
        self._reader.take("?")  # lazy or not, the same texts match as a whole
        parts[-1] = Repeat(parts[-1], low, high)

    def _braces(self, start: int) -> tuple[int, int | None] | None:
        """The bounds behind `{`; None, and nothing taken, when it is an ordinary character."""
        after = self._reader.at
        if self._reader.peek() == "}":
            return None
        low = high = self._reader.digits()
        if self._reader.take(","):
            high = self._reader.digits()
        if not self._reader.take("}"):
            self._reader.at = after
            return None
        if not low and self._flags.is_shared:
            self._reader.unserved("a repeat without its least number", start)
        limit = self._limits.max_repeat
        bounds = int(low or 0), int(high) if high else None
        for count in bounds:
            if count is not None and count > limit:
                self._reader.fail(f"repeat count {count} is over the limit of {limit}", start)
        if bounds[1] is not None and bounds[1] < bounds[0]:
            self._reader.fail(f"repeat from {bounds[0]} to {bounds[1]}: min is above max", start)
        return bounds

    # --- groups -------------------------------------------------------------------------------

    def _group(self, start: int, flags: Flags) -> Node | None:
        """The node of a group; None for a comment."""
        if self._reader.take("?"):
            if self._reader.take("#"):
                self._reader.until(")", "missing ), unterminated comment")
                return None
            flags = self._group_kind(start, flags)
        self._depth += 1
        if self._depth > self._limits.max_depth:
            self._reader.fail(
                f"groups nest more than {self._limits.max_depth} deep, the limit", start
            )
        inner = self._alternatives(flags)
        self._depth -= 1
        if not self._reader.take(")"):
            self._reader.fail("missing ), unterminated group", start)
        return Sequence((inner,))  # so that (a*)* is not a multiple repeat

    def _group_kind(self, start: int, flags: Flags) -> Flags:
        """The flags within a group that began with `(?`."""
        if self._reader.take(":"):
            return flags
        if self._reader.take("P<"):
            self._name(start)
            return flags
        for sign, feature in _UNSERVED_GROUPS.items():
            if self._reader.take(sign):
                self._reader.unserved(feature, start)
        if self._reader.peek() in tuple("aiLmsux-"):
            return self._scoped_flags(start, flags)
        self._reader.fail(f"unknown extension ?{self._reader.peek()}", start + 1)

    def _name(self, start: int) -> None:
        name = self._reader.until(">", "missing >, unterminated name")
        if not name.isidentifier():
            self._reader.fail(f"bad group name {name!r}", start)
        if name in self._names:
            self._reader.fail(f"redefinition of group name {name!r}", start)
        self._names.add(name)

    def _global_flags(self) -> Flags:
        """The flags of groups like `(?i)`, which may stand at the beginning only."""
        letters = ""
        while True:
            start = self._reader.at
            if self._reader.take("(?#"):
                self._reader.until(")", "missing ), unterminated comment")
                continue
            end = self._reader.text.find(")", start)
            found = self._reader.text[start + 2 : max(end, start)]
            if not self._reader.take("(?") or not found or not set(found) <= set("aiLmsux"):
                self._reader.at = start
                return self._changed(self._flags, letters, "", 0)
            self._reader.at = end + 1
            letters += found

    def _scoped_flags(self, start: int, flags: Flags) -> Flags:
        position = self._reader.at
        letters = self._reader.until(":", "missing :, or global flags not at the start")
        if set(letters) - set("aiLmsux-"):
            self._reader.fail("bad inline flags, or global flags not at the start", position)
        on, dash, off = letters.partition("-")
        if dash and (not off or set(off) - set("imsx") or set(off) & set(on)):
            self._reader.fail(f"bad inline flags {letters}", position)
        return self._changed(flags, on, off, start)

    def _changed(self, flags: Flags, on: str, off: str, start: int) -> Flags:
        if "x" in on:
            self._reader.unserved("flag x", start)
        if "L" in on or {"a", "u"} <= set(on):
            self._reader.fail(f"flags {on} do not go together or not with text", start)
        # m only concerns ^ and $ within a text; those are refused in any case.
        if "i" in on or "i" in off:
            flags = replace(flags, ignore_case="i" in on)
        if "s" in on or "s" in off:
            flags = replace(flags, dot_all="s" in on)
        if "a" in on or "u" in on:
            flags = replace(flags, is_ascii="a" in on)
        return flags
