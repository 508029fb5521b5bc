"""Refuses by name what must not reach a grammar's compiler. Standard library only.

The compiler has limits of its own (fuel, states, items). The constraint child has a deadline and a
memory limit. The checks here answer the common ways to exceed them within microseconds. The
sentence names the field, the place in the schema, the limit and the value.

Places are written as JSON paths: `$.properties.age.multipleOf`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NoReturn

from models.protocol.errors import UnsupportedGrammar
from models.protocol.messages import MAX_DRAFT_TOKENS, Grammar

# Names of grammars in messages.
NOUNS = {
    "json_schema": "schema",
    "json_object": "schema",
    "regex": "pattern",
    "choice": "list of choices",
    "lark": "grammar",
    "ebnf": "grammar",
    "structural_tag": "structural tag",
}

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]
Schema = dict[str, JsonValue]

# Bounds on one regular expression, and but for the first on one grammar with rules.
MAX_PATTERN_BYTES = 4096
MAX_REPEAT = 10_000  # times of one part
MAX_EXPANDED = 100_000  # characters of what is regular, with its repeats written out
MAX_DEPTH = 48  # groups within groups

# Bounds on one grammar with rules, beside its size (`SchemaLimits.max_schema_bytes`).
MAX_RULES = 1_000
MAX_SCHEMAS = 128

# Bounds on one list of choices. Every byte is a state of the lexer, which all texts under one list
# share: the total stays below `ParserLimits.max_lexer_states`.
MAX_CHOICES = 1024
MAX_CHOICE_BYTES = 4096  # UTF-8, each
MAX_CHOICES_BYTES = 32_768  # all together

_PLAIN_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")


@dataclass(frozen=True)
class SchemaLimits:
    """Bounds on one schema. Generous for tool schemas; the worst allowed compiles in ~0.3 s."""

    max_schema_bytes: int = 65_536
    max_depth: int = 48  # JSON nesting; llguidance itself stops at 128
    max_properties: int = 1_000  # over the whole schema; compile time grows with the square
    max_enum_values: int = 5_000  # over the whole schema
    # Sums over the distinct values of the whole schema, because each costs as much as it is high:
    # digits of multipleOf (10,000: 20 ms, 2 MB; 1,000,000: 11 s, 400 MB), bounds of arrays
    # (900 of 90,000: 1.6 s, 90 MB).
    max_multiple_of: int = 10_000
    max_items: int = 1_000_000


@dataclass(frozen=True)
class ParserLimits:
    """Work bounds of one compile or one mask, below llguidance's defaults where that is safe."""

    initial_lexer_fuel: int = 500_000  # about 10 ms
    step_lexer_fuel: int = 200_000  # about 15 ms per mask
    step_max_items: int = 50_000  # for JSON, patterns and choices, which stay far below
    # The limit for grammars with rules, where each may take 4 us: a mask with 50,000 took 0.2 s.
    step_max_rule_items: int = 10_000
    max_lexer_states: int = 50_000  # 1-2 kB each
    max_grammar_size: int = 200_000  # symbols


@dataclass(frozen=True)
class HostLimits:
    """Bounds of one `GrammarHost`."""

    max_cached_grammars: int = 128
    max_sessions: int = 256
    session_idle_s: float = 600.0  # a session may be dropped for another after this
    max_rows: int = MAX_DRAFT_TOKENS + 1  # per mask request


MAX_CHECKED_BYTES = 65_536  # size of a text that is compared with a grammar


def refuse(message: str, *, path: str = "") -> NoReturn:
    """Raise `UnsupportedGrammar` that names the place in the grammar.

    The request field is not named: the API, which knows how the client spelt it, adds it.
    """
    error = UnsupportedGrammar(f"{path}: {message}" if path else message)
    error.place = path
    raise error


def check_size(grammar: Grammar, limits: SchemaLimits) -> None:
    """Refuse a grammar text that is too long to be sent or parsed.

    Raises:
        UnsupportedGrammar: over `max_schema_bytes`.
    """
    text = grammar.text
    num_bytes = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if num_bytes > limits.max_schema_bytes:
        refuse(
            f"the {NOUNS[grammar.kind]} has {num_bytes} bytes, "
            f"the limit is {limits.max_schema_bytes}"
        )


def json_path(name: str) -> str:
    """Return one step of a JSON path."""
    return f".{name}" if _PLAIN_NAME.fullmatch(name) else f"[{json.dumps(name)}]"
