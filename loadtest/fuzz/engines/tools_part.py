"""Part `tools`: no schema of a tool refuses a request, and what is enforced is true.

Each case draws schemas of all drafts, right and wrong. The schema is of a tool that is not strict,
so it must be served. Random texts under its masks must obey the rest of it. The same schema of a
strict tool must be served exactly or refused by a place.
"""

from __future__ import annotations

import json
import random
import re

from loadtest.fuzz.cases import Outcome
from loadtest.fuzz.engines.pair import with_grammars
from loadtest.fuzz.engines.tool_schemas import disobeyed_schema, random_tool_schema
from models.grammar.compiler import GrammarCompiler
from models.grammar.host import GrammarHost
from models.grammar.state import CompiledGrammar, MatcherBroken
from models.protocol.errors import UnsupportedGrammar
from models.protocol.messages import Grammar

_NUM_SCHEMAS = 6
_NUM_TEXTS = 2
_MAX_TOKENS = 160
_FREE_TOKENS = 40  # then a text hurries to its end
_HAS_PLACE = re.compile(r"\$|the schema |no text obeys it")


async def _case(seed: int, host: GrammarHost) -> Outcome:
    rng = random.Random(seed)
    outcome = Outcome()
    outcome.counts["cases"] += 1
    for _ in range(_NUM_SCHEMAS):
        draft, schema = random_tool_schema(rng)
        outcome.add(_tried(rng, host.compiler, draft, schema, is_loose=True))
        outcome.add(_tried(rng, host.compiler, draft, schema, is_loose=False))
    return outcome


open_tools = with_grammars(_case)


def _tried(
    rng: random.Random, compiler: GrammarCompiler, draft: str, schema: object, *, is_loose: bool
) -> Outcome:
    outcome = Outcome()
    text = json.dumps(schema)
    kind = "loose" if is_loose else "strict"
    grammar = Grammar(kind="json_schema", text=text, loose=(0,) if is_loose else ())
    try:
        compiled = compiler.compile(grammar)
    except UnsupportedGrammar as error:
        outcome.counts[f"{kind} refused"] += 1
        if is_loose:
            outcome.complaints.append(f"draft {draft}: {text} was refused: {error.message}")
        elif not _HAS_PLACE.match(error.message):
            outcome.complaints.append(f"draft {draft}: {text} has no place: {error.message}")
        return outcome
    outcome.counts[f"{kind} served"] += 1
    outcome.counts["loosened"] += bool(compiled.loosened)
    for _ in range(_NUM_TEXTS):
        written = _written(rng, compiled)
        if written is None:
            outcome.counts["texts without an end"] += 1
            continue
        outcome.counts["texts"] += 1
        is_object = isinstance(schema, dict) and schema.get("type") == "object"
        if not is_loose and not is_object:
            continue  # any JSON: what is left of such a schema is judged by its own tests
        wrong = disobeyed_schema(draft, schema, compiled.dropped, written)
        if wrong:
            outcome.complaints.append(f"draft {draft}, {kind}, from {text}: {wrong}")
    return outcome


def _written(rng: random.Random, compiled: CompiledGrammar) -> str | None:
    """Return a random text under the masks; None if it found no end."""
    state = compiled.start()
    ids: list[int] = []
    try:
        while len(ids) < _MAX_TOKENS:
            row = int.from_bytes(state.row(), "little")
            allowed = [i for i in range(row.bit_length()) if row >> i & 1]
            ends = [token for token in allowed if token in state.eos_ids]
            if ends and (len(allowed) == len(ends) or rng.random() < 0.5):
                return str(compiled.tokenizer.decode_bytes(ids).decode())
            inner = [token for token in allowed if token not in state.eos_ids]
            if not inner:
                return None
            if len(ids) > _FREE_TOKENS:
                closing = [t for t in inner if compiled.tokenizer.decode_bytes([t]) in _CLOSING]
                inner = closing or inner
            token = rng.choice(inner)
            if not state.advance(token):
                return None
            ids.append(token)
    except (MatcherBroken, UnicodeDecodeError):
        return None
    return None


_CLOSING = (b'"', b"}", b"]", b"0", b"1", b"a")
