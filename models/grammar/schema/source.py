"""Turns a checked schema into what the compiler is given, and its complaints into refusals.

A schema stands alone or within a grammar with rules (`%json`); both ways it has the same options,
none of which can come from the schema itself. Whitespace is that of `json.dumps`: one space after
`,` and `:`, none elsewhere, on one line; a request may ask for none at all, or for a pattern.
Sources: llguidance 1.9 docs/json_schema.md; vLLM's `StructuredOutputsParams`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NoReturn

from models.grammar.limits import RegexLimits, Schema, SchemaLimits, locate, parse_schema, refuse
from models.grammar.pattern import parse_regex
from models.grammar.pattern_tree import Chars, Choice, Node, Repeat, Sequence
from models.grammar.regex import simplified, spelt_node
from models.grammar.schema.keywords import expand
from models.grammar.schema.rewrite import ALLOWED_ESCAPES, close_objects, rewrite
from models.protocol.errors import UnsupportedGrammar

_SPACE = frozenset(map(ord, " \t\n\r"))
_OPTION = "whitespace_pattern"
_ONE_OF = "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate "
_ONE_OF += "oneOf with anyOf"
_OUR_ONE_OF = "it cannot be told that no value fits two of these schemas; use anyOf if none can"
_FUEL_IS_SPENT = "too many expressions constructed"


@dataclass(frozen=True)
class SchemaSource:
    """A schema as the compiler takes it."""

    text: str  # JSON, with the options
    schema: Schema
    patterns: dict[str, str]  # as they were written, by what they became

    def refuse(self, complaint: str, fuel: int) -> NoReturn:
        """Refuse the schema with the compiler's `complaint`, in the client's words.

        Raises:
            UnsupportedGrammar: with the place in the schema, where it can be found.
        """
        path = locate(self.schema, complaint)
        complaint = complaint.replace(_ONE_OF, _OUR_ONE_OF)
        if _FUEL_IS_SPENT in complaint:
            complaint += f"; the limit is {fuel} units of work (initial_lexer_fuel)"
        for rust, pattern in self.patterns.items():
            complaint = complaint.replace(rust, pattern)
            path = path.replace(json.dumps(rust), json.dumps(pattern))
        refuse(one_line(complaint), path=path)


def schema_source(
    text: str, limits: SchemaLimits, whitespace: str | None = None, *, is_closed: bool = False
) -> SchemaSource:
    """Check and rewrite the JSON text of a schema.

    Args:
        text: the schema.
        limits: of the schema.
        whitespace: a pattern for the whitespace wherever JSON allows some, "" for none; None: as
            `json.dumps` writes it.
        is_closed: objects that declare properties and do not say whether they may have others
            may not.

    Raises:
        UnsupportedGrammar: with the place in the schema.
    """
    schema = parse_schema(text, limits)
    if is_closed:
        close_objects(schema)
    expand(schema)
    patterns = rewrite(schema)
    options = _options(whitespace)
    # The schema may have been `true`; the parsed object also drops duplicate keys.
    written = json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)
    if not _is_text(written):
        refuse("the schema is not JSON: a lone surrogate is not text")
    return SchemaSource(written, schema, patterns)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _options(whitespace: str | None) -> dict[str, object]:
    """Every option that the compiler knows."""
    space = " " if whitespace is None else ""
    return {
        "item_separator": f",{space}",
        "key_separator": f":{space}",
        "whitespace_flexible": False,
        "whitespace_pattern": _space_pattern(whitespace) if whitespace else None,
        "coerce_one_of": False,  # anyOf in place of oneOf would pass texts that are invalid
        "lenient": False,  # unsupported keywords are refused, never ignored
        "json_allowed_escapes": ALLOWED_ESCAPES,
        "json_allow_general_unicode_escapes": False,
    }


def _space_pattern(pattern: str) -> str:
    """A pattern of whitespace as the compiler takes it. It takes none at all everywhere too."""
    try:
        tree = simplified(parse_regex(pattern, RegexLimits()), at_start=True, at_end=True)
    except UnsupportedGrammar as error:
        refuse(error.message, path=_OPTION)
    if not _is_space(tree):
        refuse("may match only space, tab, line feed and carriage return", path=_OPTION)
    if not _may_be_empty(tree):
        refuse("must match the empty text too", path=_OPTION)
    return spelt_node(tree)


def _is_space(node: Node) -> bool:
    match node:
        case Chars():
            return all(
                set(range(low, min(high, low + 64) + 1)) <= _SPACE for low, high in node.ranges
            )
        case Sequence():
            return all(map(_is_space, node.parts))
        case Choice():
            return all(map(_is_space, node.options))
        case Repeat():
            return _is_space(node.part)
        case _:
            return False


def _may_be_empty(node: Node) -> bool:
    match node:
        case Sequence():
            return all(map(_may_be_empty, node.parts))
        case Choice():
            return any(map(_may_be_empty, node.options))
        case Repeat():
            return node.low == 0 or _may_be_empty(node.part)
        case _:
            return False


def one_line(complaint: str) -> str:
    """llguidance's complaint without its state dump and with its lines joined."""
    lines = [line.strip() for line in complaint.replace("<non-verbose/>", "").splitlines()]
    return " ".join(line for line in lines if line)
