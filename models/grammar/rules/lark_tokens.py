"""Cuts a grammar in Lark's notation into tokens. Standard library only.

Source: Lark's reference of its grammar notation; llguidance docs/syntax.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from models.grammar.limits import refuse

_TOKEN = re.compile(
    r"""
    (?P<space> [ \t\r\f]+ | \\\n )
    | (?P<newline> \n )
    | (?P<comment> (?: // | \# ) [^\n]* )
    | (?P<string> "(?: [^"\\\n] | \\[^\n] )*" i? )
    | (?P<regex> /(?! /) (?: [^/\\\n] | \\[^\n] )+ / [a-zA-Z]* )
    | (?P<directive> %[a-zA-Z_]+ )
    | (?P<special> <[^<>\s"]+> )
    | (?P<name> [A-Za-z_] (?: [A-Za-z0-9_] | -(?!>) )* )
    | (?P<number> [0-9]+ )
    | (?P<sign> \.\. | -> | :: | [:|()\[\]{},~*+?!.=&@] )
    """,
    re.VERBOSE,
)
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a grammar; `kind` is a group's name in the pattern above, or "json"."""

    kind: str
    text: str
    start: int  # in characters from 0


def tokens_of(text: str) -> Iterator[Token]:
    """Yield all tokens, space and comments included; their texts joined are the grammar.

    Raises:
        UnsupportedGrammar: a character that begins nothing, or JSON that is cut off; with its
            place.
    """
    at = 0
    is_json_next = False
    while at < len(text):
        if is_json_next and text[at] == "{":
            end = _json_end(text, at)
            yield Token("json", text[at:end], at)
            at, is_json_next = end, False
            continue
        found = _TOKEN.match(text, at)
        if found is None:
            refuse_at(text, at, f"{text[at]!r} begins nothing that a grammar can hold")
        kind = found.lastgroup or ""
        if kind == "directive":
            is_json_next = found[0] in ("%json", "%regex", "%llguidance")
        elif kind not in ("space", "newline", "comment"):
            is_json_next = False
        yield Token(kind, found[0], at)
        at = found.end()


def refuse_at(text: str, at: int, reason: str) -> NoReturn:
    """Refuse a grammar at a place, which is named by line and column, both from 1."""
    line = text.count("\n", 0, at) + 1
    column = at - (text.rfind("\n", 0, at) + 1) + 1
    refuse(reason, path=f"line {line}, column {column}")


def _json_end(text: str, at: int) -> int:
    try:
        _, end = _DECODER.raw_decode(text, at)
    except RecursionError:
        refuse_at(text, at, "this JSON nests too deep")
    except ValueError as error:
        refuse_at(text, at, f"this is not JSON: {error}")
    return end
