"""Grammars as they cross process borders, and texts that are compared with them."""

from __future__ import annotations

from typing import Literal

import msgspec

from models.protocol.parts import OfSession


class Loosened(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a schema that is not enforced.

    `line`: of the grammar that has the schema, from 1; 0: the grammar is the schema. `steps`: the
    keys that lead to the part; none: the whole schema, of which any object is left. `field`: of
    the request, where that is known.
    """

    line: int = 0
    steps: tuple[str | int, ...] = ()
    path: str  # the same as a JSON path
    reason: str
    field: str = ""


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """A constraint on the generated text.

    `text` is the JSON text of the schema (`json_schema`) or empty (`json_object`). It may be the
    pattern that the whole text must match (`regex`). It may be the JSON text of a list of strings
    (`choice`) or of a structural tag (`structural_tag`). A grammar with rules is `ebnf` or `lark`,
    in which `%json {...}` stands for JSON that obeys a schema.
    """

    kind: Literal["json_schema", "json_object", "regex", "choice", "lark", "ebnf", "structural_tag"]
    text: str
    # JSON kinds take a pattern for whitespace, "" for none; None: as `json.dumps` writes it.
    whitespace: str | None = None
    is_closed: bool = False  # JSON kinds: declared properties are all that an object may have
    # Lines whose schema may be loosened where it cannot be served, from 1; 0: the grammar itself.
    loose: tuple[int, ...] = ()
    dropped: tuple[Loosened, ...] = ()  # parts loosened so far
    is_settled: bool = False  # nothing else needs to be loosened


class GrammarCheck(OfSession, frozen=True, kw_only=True, tag="grammar_check"):
    """Compare `text` with `grammar`, for no session: nothing is opened. Idempotent."""

    grammar: Grammar
    text: str


class GrammarChecked(msgspec.Struct, frozen=True, kw_only=True, tag="grammar_checked"):
    """The length to which a text obeys the grammar: `num_bytes` of its UTF-8.

    `may_end`: that part is a whole text of the grammar. `expected`: some texts that may come next.
    `loosened`: the parts of the grammar that are not enforced.
    """

    session_id: str
    num_bytes: int
    may_end: bool
    expected: list[str] = []
    loosened: tuple[Loosened, ...] = ()
