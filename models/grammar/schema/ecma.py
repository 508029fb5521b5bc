r"""Writes ECMA 262's spellings in a pattern as Python's, where the two have the same thing.

| ECMA 262 | Python |
|---|---|
| `(?<year>...)` | a group without a name: nothing refers to it |
| `\p{L}`, `\P{Lu}`, `\p{Letter}` | the characters of the general category |
| `[\w-.]` | `[\w\-.]`: a hyphen beside a class is itself |
| `\u{1F600}`, `\ud83d\ude00` | the character |
| `\cA` | the character |

Categories are those of Python's `unicodedata`, up to U+3FFFF. Standard library only.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache

from models.grammar.charsets import Ranges, complement, intersection, union
from models.protocol.errors import UnsupportedGrammar

_CATEGORIES_END = 0x40000  # beyond it characters are in no category here, and in no other
_LONG_NAMES = {
    **{"Letter": "L", "Lowercase_Letter": "Ll", "Uppercase_Letter": "Lu", "Titlecase_Letter": "Lt"},
    **{"Modifier_Letter": "Lm", "Other_Letter": "Lo", "Mark": "M", "Combining_Mark": "M"},
    **{"Nonspacing_Mark": "Mn", "Spacing_Mark": "Mc", "Enclosing_Mark": "Me", "Number": "N"},
    **{"Decimal_Number": "Nd", "digit": "Nd", "Letter_Number": "Nl", "Other_Number": "No"},
    **{"Punctuation": "P", "punct": "P", "Symbol": "S", "Separator": "Z", "Space_Separator": "Zs"},
    **{"Dash_Punctuation": "Pd", "Currency_Symbol": "Sc", "Math_Symbol": "Sm"},
}
_TOKEN = re.compile(
    r"""
    (?P<named> \(\?< (?![=!]) [^>]* > )
    | (?P<pair> \\u [dD][89abAB][0-9a-fA-F]{2} \\u [dD][c-fC-F][0-9a-fA-F]{2} )
    | (?P<braced> \\u \{ [0-9a-fA-F]{1,6} \} )
    | (?P<category> \\[pP] (?: \{ [^}]* \} | [A-Z] ) )
    | (?P<control> \\c [A-Za-z] )
    | (?P<escape> \\. )
    | (?P<open> \[ \^? )
    | (?P<close> \] )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_CLASS = re.compile(r"\\[dDwWsSpP]")
_POSITION = re.compile(r"position (\d+)")


def python_spelling(text: str) -> tuple[str, list[int]]:
    """Return the pattern in Python's spelling, and the origin of each of its characters.

    Unknown parts stay.
    """
    if not re.search(r"\(\?<|\\[pPuc]|\[", text):
        return text, list(range(len(text) + 1))
    written: list[str] = []
    origins: list[int] = []
    before: re.Match[str] | None = None  # the member before, within a set
    is_in_set = False
    for token in _TOKEN.finditer(text):
        piece = _piece(token, is_in_set=is_in_set)
        if is_in_set and token[0] == "-" and _is_beside_class(text, token, before):
            piece = r"\-"
        if token.lastgroup == "open" and not is_in_set:
            is_in_set, before = True, None
        elif token.lastgroup == "close":
            is_in_set = False
        else:
            before = token
        written.append(piece)
        origins += [token.start()] * len(piece)
    return "".join(written), [*origins, len(text)]


def at_origin(error: UnsupportedGrammar, origins: list[int]) -> UnsupportedGrammar:
    """Move the error's position to the pattern as the client wrote it."""
    found = _POSITION.match(error.message)
    if found is None or int(found[1]) >= len(origins):
        return error
    place = f"position {origins[int(found[1])]}"
    moved = UnsupportedGrammar(place + error.message[found.end() :])
    moved.place = place
    return moved


def _piece(token: re.Match[str], *, is_in_set: bool) -> str:
    text = token[0]
    write = _WRITERS.get(token.lastgroup or "")
    if write is None or (token.lastgroup == "named" and is_in_set):
        return text
    return write(text, is_in_set)


def _category(text: str, is_in_set: bool) -> str:
    name = text[2:].strip("{}")
    name = name.removeprefix("General_Category=").removeprefix("gc=")
    ranges = category_ranges(_LONG_NAMES.get(name, name))
    if not ranges:
        return text  # another kind: Python's parser refuses it by its position
    if text[1] == "P":
        ranges = intersection(complement(ranges), ((0, _CATEGORIES_END - 1),))
    members = "".join(
        f"\\U{low:08x}-\\U{high:08x}" if high > low else f"\\U{low:08x}" for low, high in ranges
    )
    members = _SPELT.sub(lambda found: _char(chr(int(found[1], 16))), members)
    return members if is_in_set else f"[{members}]"


_SPELT = re.compile(r"\\U([0-9a-f]{8})")


def _char(char: str) -> str:
    """Spell a character.

    The spelling is valid in a set and elsewhere.
    """
    code = ord(char)
    if char.isascii() and not char.isalnum():
        return f"\\x{code:02x}"
    return char


@lru_cache(maxsize=64)
def category_ranges(name: str) -> Ranges:
    """Return the characters of a general category by its short name; none if it does not exist."""
    if len(name) not in (1, 2) or name[0] not in "LMNPSZ":  # C has what is not assigned
        return ()
    runs = _runs()
    return union(*(ranges for one, ranges in runs.items() if one.startswith(name)))


@lru_cache(maxsize=1)
def _runs() -> dict[str, Ranges]:
    """Return all characters by category."""
    found: dict[str, list[tuple[int, int]]] = {}
    for code in range(_CATEGORIES_END):
        runs = found.setdefault(unicodedata.category(chr(code)), [])
        if runs and runs[-1][1] == code - 1:
            runs[-1] = (runs[-1][0], code)
        else:
            runs.append((code, code))
    return {name: tuple(runs) for name, runs in found.items()}


def warm_up() -> None:
    """Find out about all categories now, so that no pattern has to wait for it."""
    _runs()


def _pair(text: str, is_in_set: bool) -> str:
    high, low = int(text[2:6], 16), int(text[8:12], 16)
    return _char(chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)))


def _braced(text: str, is_in_set: bool) -> str:
    code = int(text[3:-1], 16)
    return _char(chr(code)) if code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF else text


_WRITERS: dict[str, Callable[[str, bool], str]] = {
    "named": lambda text, is_in_set: "(",
    "category": _category,
    "pair": _pair,
    "braced": _braced,
    "control": lambda text, is_in_set: _char(chr(ord(text[2]) % 32)),
}


def _is_beside_class(text: str, token: re.Match[str], before: re.Match[str] | None) -> bool:
    """Return whether a hyphen in a set cannot be a range's, because one of its sides is a class."""
    after = text[token.end() :]
    if before is None or after.startswith("]") or before[0] == "-":
        return False
    return bool(_CLASS.match(before[0]) or _CLASS.match(after))
