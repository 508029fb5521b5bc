"""Turns a checked schema into what the compiler is given, and its complaints into refusals.

A schema stands alone or within a grammar with rules (`%json`). Both ways it has the same options,
none of which can come from the schema itself. Whitespace is that of `json.dumps`: one space after
`,` and `:`, none elsewhere, on one line. A request may ask for none at all, or for a pattern.
Sources: llguidance 1.9 docs/json_schema.md; vLLM's `StructuredOutputsParams`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import NoReturn

from models.grammar.limits import Schema, SchemaLimits, json_path, refuse
from models.grammar.patterns.languages import may_be_empty
from models.grammar.patterns.parser import parse_regex
from models.grammar.patterns.tree import Chars, walk
from models.grammar.regex import simplified, spelt_node
from models.grammar.schema.complaints import Complaints
from models.grammar.schema.drafts import modernise
from models.grammar.schema.endless import check_ends
from models.grammar.schema.keywords import UNENFORCED, expand
from models.grammar.schema.numbers import fit_bounds
from models.grammar.schema.parse import check_limits, check_values, parse_json
from models.grammar.schema.places import Places
from models.grammar.schema.rewrite import ALLOWED_ESCAPES, close_objects, rewrite
from models.protocol.errors import UnsupportedGrammar

_SPACE = frozenset(map(ord, " \t\n\r"))
_OPTION = "whitespace_pattern"
_ONE_OF = "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate "
_ONE_OF += "oneOf with anyOf"
_OUR_ONE_OF = "it cannot be told that no value fits two of these schemas; use anyOf if none can"
# Complaints of the compiler, and the keyword that each is about.
_COMPLAINTS = (
    (r"^oneOf ", "oneOf"),
    (r"Invalid type: (.*)", "type"),
    (r"Unknown format: (.*)", "format"),
    (r"Resource '([^']*)", "$ref"),
    (r"Pointer '([^']*)' does not exist", "$ref"),
    (r"Anchor '([^']*)' does not exist", "$ref"),
    (r"Unsatisfiable schema: required property '([^']*)'", "required"),
    (r"regex parse error:\n    (.*)", "pattern"),
    (r"patternProperty regexes", "patternProperties"),
)
_UNKNOWN = re.compile(r'Unimplemented keys: \["([^"]+)"')
NO_TEXT = "no text obeys it"
_NOTHING_FITS = "NoExtensionBias"  # the compiler's name for a first mask without a token
_FUEL_IS_SPENT = "too many expressions constructed"


@dataclass(frozen=True)
class SchemaSource:
    """A schema as the compiler takes it."""

    text: str  # JSON, with the options
    schema: Schema
    patterns: dict[str, str]  # as they were written, by what they became
    places: Places
    complaints: Complaints
    original: str = ""  # as it was written; "": it may be loosened, and refusals need no place

    def refuse(self, complaint: str, fuel: int, place: str = "") -> NoReturn:
        """Refuse the schema with the compiler's `complaint`, in the client's words.

        `place`: of what it is about, where it does not say so itself.

        Raises:
            UnsupportedGrammar: with the place in the schema, where it can be found.
        """
        told = self.told(complaint, fuel)
        path = next(iter(self.located(complaint)), place)
        for rust, pattern in self.patterns.items():
            path = path.replace(json.dumps(rust), json.dumps(pattern))
        refuse(told, path=path)

    def told(self, complaint: str, fuel: int = 0) -> str:
        """Translate the compiler's complaint to the client's words."""
        if _UNKNOWN.search(complaint):
            return UNENFORCED
        complaint = complaint.replace(_ONE_OF, _OUR_ONE_OF)
        if _FUEL_IS_SPENT in complaint and fuel:
            complaint += f"; the limit is {fuel} units of work (initial_lexer_fuel)"
        for rust, pattern in self.patterns.items():
            complaint = complaint.replace(rust, pattern)
        return one_line(complaint)

    def located(self, complaint: str) -> list[str]:
        """Return the places of the keywords that the compiler's `complaint` may be about."""
        unknown = _UNKNOWN.search(complaint)
        if unknown:
            return self._having(unknown[1], None)
        for pattern, keyword in _COMPLAINTS:
            found = re.search(pattern, complaint)
            if found:
                part = found[1] if found.groups() else None
                return self._having(keyword, part)
        return []

    def _having(self, keyword: str, part: str | None) -> list[str]:
        """Return the places of a keyword whose value contains `part` (any value if None)."""
        return [
            path + json_path(keyword)
            for path, inner in self.places.walk(self.schema)
            if keyword in inner and (part is None or part in str(inner[keyword]))
        ]


def schema_source(
    text: str,
    limits: SchemaLimits,
    whitespace: str | None = None,
    *,
    is_closed: bool = False,
    is_loose: bool = False,
) -> SchemaSource:
    """Check and rewrite the JSON text of a schema.

    Args:
        text: the schema.
        limits: of the schema.
        whitespace: a pattern for the whitespace wherever JSON allows some, "" for none; None: as
            `json.dumps` writes it.
        is_closed: objects that declare properties and do not say whether they may have others
            may not.
        is_loose: see `rewritten_source`.

    Raises:
        UnsupportedGrammar: with the place in the schema.
    """
    schema = parse_json(text, limits)
    options = options_of(whitespace)
    if is_closed:
        close_objects(schema)
    source = rewritten_source(schema, limits, options, Complaints(), is_loose=is_loose)
    return replace(source, original="" if is_loose else text)


def rewritten_source(
    schema: Schema,
    limits: SchemaLimits,
    options: dict[str, object],
    complaints: Complaints,
    *,
    is_loose: bool = False,
) -> SchemaSource:
    """Check and rewrite a schema, in place.

    Args:
        schema: as the client wrote it.
        limits: of the schema.
        options: of the compiler.
        complaints: takes the refusals.
        is_loose: what may be written may be more than the schema says; see `drafts`.

    Raises:
        UnsupportedGrammar: with the place in the schema.
    """
    places = Places(schema)
    modernise(schema, places, is_loose=is_loose)
    check_values(schema, places, complaints)
    check_limits(schema, limits, places, complaints)
    check_ends(schema, places, complaints)
    if complaints.found:  # the rest relies on right values
        return SchemaSource("", schema, {}, places, complaints)
    fit_bounds(schema, places, complaints)
    expand(schema, places, complaints)
    patterns = rewrite(schema, places, complaints)
    # The schema may have been `true`; the parsed object also drops duplicate keys.
    written = json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)
    if not _is_text(written):
        refuse("the schema is not JSON: a lone surrogate is not text")
    return SchemaSource(written, schema, patterns, places, complaints)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def options_of(whitespace: str | None) -> dict[str, object]:
    """Return every option that the compiler knows."""
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
    """Write a pattern of whitespace for the compiler.

    No whitespace at all is allowed everywhere too.
    """
    try:
        tree = simplified(parse_regex(pattern), at_start=True, at_end=True)
    except UnsupportedGrammar as error:
        refuse(error.message, path=_OPTION)
    ranges = [one for part in walk(tree) if isinstance(part, Chars) for one in part.ranges]
    if not all(_is_space(low, high) for low, high in ranges):
        refuse("may match only space, tab, line feed and carriage return", path=_OPTION)
    if not may_be_empty(tree):
        refuse("must match the empty text too", path=_OPTION)
    return spelt_node(tree)


def _is_space(low: int, high: int) -> bool:
    return set(range(low, min(high, low + 64) + 1)) <= _SPACE


def one_line(complaint: str) -> str:
    """Return llguidance's complaint without its state dump and with its lines joined."""
    lines = [line.strip() for line in complaint.replace("<non-verbose/>", "").splitlines()]
    joined = " ".join(line for line in lines if line)
    return NO_TEXT if joined == _NOTHING_FITS else joined
