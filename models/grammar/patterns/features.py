r"""Refuses what a pattern may not contain, by name and position, before it is parsed.

This scan of the text is not a parser. It cuts the pattern into escapes, sets, group openings and
quantifiers, which is enough to name a feature's position. Syntax errors are left to Python's
parser. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NoReturn

from models.grammar.limits import MAX_DEPTH, MAX_REPEAT, refuse

_MAX_REASON = 160  # characters: names and numbers in a pattern may be long

# An unclosed part is a syntax error, and nothing after it is looked at.
_TOKEN = re.compile(
    r"""
    (?P<escape> \\ (?: [0-9]+ | [uU][0-9a-fA-F]* | . ) )
    | (?P<set> \[ \^? \]? (?: \\. | [^\]\\] )* \]? )
    | (?P<comment> \(\?\# (?: \\. | [^)\\] )* \)? )
    | (?P<group> \( (?: \? (?: <[=!] | P= | [=!>(] | [aiLmsux-]+ [:)]? )? )? )
    | (?P<end> \) )
    | (?P<repeat> (?: [*+?] | \{ (?!\}) [0-9]* (?: ,[0-9]* )? \} ) [?+]? )
    """,  # {} is two ordinary characters
    re.VERBOSE | re.DOTALL,
)
# Only escapes have a special meaning in a set.
_MEMBER = re.compile(r"\\(?:[uU][0-9a-fA-F]*|.)", re.DOTALL)

_Feature = tuple[str, str, str]  # the kind of token, what it is called, how it is written
# Surrogates, which no text has, and codes over 10FFFF: on some, Python's parser overflows.
_NO_CHARACTER = r"\\(?:(?:u|U0000)[dD][89a-fA-F][0-9a-fA-F]{2}|U(?!000|0010)[0-9a-fA-F]{8})"
_LOOKS: tuple[_Feature, ...] = (  # served where they can be resolved, see `lookahead`
    ("group", "look-ahead", r"\(\?="),
    ("group", "negative look-ahead", r"\(\?!"),
    ("escape", "a word boundary", r"\\[bB]"),
)
_UNSERVED: tuple[_Feature, ...] = (
    ("group", "look-behind", r"\(\?<="),
    ("group", "negative look-behind", r"\(\?<!"),
    ("group", "a back reference", r"\(\?P="),
    ("group", "a conditional group", r"\(\?\("),
    ("group", "an atomic group", r"\(\?>"),
    ("group", "flag x", r"\(\?[a-zA-Z]*x.*"),
    ("repeat", "a possessive quantifier", r".+\+"),
    ("escape", "a back reference", r"\\(?![1-7][0-7]{2})[1-9]"),  # three octal digits: a character
    ("escape", "an escape that is no character", _NO_CHARACTER),
    ("member", "an escape that is no character", _NO_CHARACTER),
)
_ALIKE = "that not all validators read alike"
_READ_DIFFERENTLY: tuple[_Feature, ...] = (  # by Python and by ECMA 262
    ("escape", f"an anchor {_ALIKE}", r"\\[AZ]"),
    ("escape", f"an escape {_ALIKE}", r"\\[aUN]"),
    ("member", f"an escape {_ALIKE}", r"\\[aUN]"),
    ("set", "a set that begins with ]", r"\[\^?\]"),
    ("repeat", "a repeat without its least number", r"\{,[0-9]*\}"),
)


class _Features:
    """The refused features by the kind of token."""

    def __init__(self, features: Iterable[_Feature]) -> None:
        self._by_kind: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
        for kind, name, written in features:
            self._by_kind.setdefault(kind, []).append((name, re.compile(written, re.DOTALL)))

    def refuse(self, kind: str, token: re.Match[str], position: int) -> None:
        for name, pattern in self._by_kind.get(kind, ()):
            found = pattern.match(token[0])
            if found:
                refuse_at(position, f"{name} ({found[0]}) is not supported")


# The keys say if the pattern is shared, and if look-ahead is served.
_FEATURES = {
    (is_shared, has_looks): _Features(
        (*(() if has_looks else _LOOKS), *_UNSERVED, *(_READ_DIFFERENTLY if is_shared else ()))
    )
    for is_shared in (False, True)
    for has_looks in (False, True)
}


def refuse_unserved(text: str, *, is_shared: bool, allows_looks: bool) -> None:
    """Refuse the first thing in a pattern that is not served or over a limit.

    `is_shared`: and what Python and ECMA 262 read differently. `allows_looks`: but not look-ahead.

    Raises:
        UnsupportedGrammar: the pattern contains such a thing; with the position.
    """
    features = _FEATURES[is_shared, allows_looks]
    depth = 0
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup or ""
        features.refuse(kind, token, token.start())
        if kind == "set":
            for member in _MEMBER.finditer(token[0]):
                features.refuse("member", member, token.start() + member.start())
        elif kind == "repeat":
            _check_counts(token)
        depth += (kind == "group") - (kind == "end")
        if depth > MAX_DEPTH:
            refuse_at(token.start(), f"groups nest more than {MAX_DEPTH} deep, the limit")


def refuse_at(position: int, reason: str) -> NoReturn:
    """Refuse the pattern at a position, in characters from 0; a long reason is cut."""
    shown = reason if len(reason) <= _MAX_REASON else reason[: _MAX_REASON - 3] + "..."
    refuse(shown, path=f"position {position}")


def _check_counts(repeat: re.Match[str]) -> None:
    for count in map(int, re.findall("[0-9]+", repeat[0])):
        if count > MAX_REPEAT:
            refuse_at(repeat.start(), f"repeat count {count} is over the limit of {MAX_REPEAT}")
