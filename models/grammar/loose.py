"""Grammars some of whose schemas may be loosened: the calls of tools that are not `strict`.

Each such schema stands on a line of its own, after `%json`. Where the whole is refused, each is
loosened as far as it must be alone (`schema/loosen.py`). If together they are still too much, the
largest become any JSON object, until the grammar is served. A grammar that is still refused has its
fault in a part that may not be loosened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from models.grammar.limits import SchemaLimits, refuse
from models.grammar.schema.loosen import Compiles, LooseSchema, loosened_schema, with_dropped
from models.protocol.errors import UnsupportedGrammar
from models.protocol.grammars import Grammar, Loosened

Compiled = TypeVar("Compiled")

_MARK = " %json "
_ANY_OBJECT = json.dumps({"type": "object"})
_MAX_DROPPED_BYTES = 32_768  # notes on one grammar: they must pass through a pipe


def fitted(grammar: Grammar, limits: SchemaLimits) -> Grammar:
    """Shrink a grammar until it has few enough bytes to be sent and read.

    Its largest loose schemas are replaced by any object. It stays as it is if that does not help or
    is not needed.
    """
    over = _num_bytes(grammar.text) - limits.max_schema_bytes
    if over <= 0 or not grammar.loose:
        return grammar
    reason = f"the grammar has {limits.max_schema_bytes + over} bytes, the limit is "
    reason += f"{limits.max_schema_bytes}"
    bare: list[int] = []
    for line, text in _by_size(grammar):
        if over > 0:
            over -= _num_bytes(text) - len(_ANY_OBJECT)
            bare.append(line)
    return with_bare(grammar, bare, reason)


def with_bare(grammar: Grammar, lines: Iterable[int], reason: str) -> Grammar:
    """Return the grammar with the schemas of some lines replaced by any object."""
    lines = set(lines)
    left = tuple(one for one in grammar.dropped if one.line not in lines)
    notes = tuple(Loosened(line=line, path="$", reason=reason) for line in sorted(lines))
    text = _with_schemas(grammar, dict.fromkeys(lines, _ANY_OBJECT))
    return msgspec.structs.replace(grammar, text=text, dropped=(*left, *notes))


def all_bare(grammar: Grammar, reason: str) -> Grammar:
    """Return the grammar with any object in the place of every schema that may be loosened."""
    return with_bare(grammar, grammar.loose, reason)


def settled(
    grammar: Grammar,
    limits: SchemaLimits,
    compiles: Compiles,
    compile_whole: Callable[[Grammar], Compiled],
) -> tuple[Grammar, Compiled]:
    """Loosen a grammar as far as it must be, and compile it.

    Args:
        grammar: some of whose schemas are loose.
        limits: of schemas.
        compiles: tries a schema alone.
        compile_whole: compiles a grammar as it is, its text and nothing else.

    Returns:
        The grammar, with all that was taken out of it as `dropped`; and compiled.

    Raises:
        UnsupportedGrammar: what may not be loosened is refused.
    """
    grammar = fitted(grammar, limits)
    written = _with_schemas(
        grammar,
        {
            line: with_dropped(text, _of_line(grammar.dropped, line), limits)
            for line, text in _by_size(grammar)
            if _of_line(grammar.dropped, line)
        },
    )
    try:
        if not grammar.is_settled:
            _check_objects(grammar)
        made = compile_whole(msgspec.structs.replace(grammar, text=written))
    except UnsupportedGrammar:
        if grammar.is_settled:
            raise
        return _search(grammar, limits, compiles, compile_whole)
    return msgspec.structs.replace(grammar, is_settled=True), made


def _search(
    grammar: Grammar,
    limits: SchemaLimits,
    compiles: Compiles,
    compile_whole: Callable[[Grammar], Compiled],
) -> tuple[Grammar, Compiled]:
    schemas = [
        (line, text)
        for line, text in _by_size(grammar)
        if not any(not one.steps for one in _of_line(grammar.dropped, line))
    ]
    found = {
        line: loosened_schema(text, limits, compiles, line=line, num_together=len(schemas))
        for line, text in schemas
    }
    _cut_notes(found)
    dropped = [*grammar.dropped, *(note for one in found.values() for note in one.loosened)]
    loosened = msgspec.structs.replace(grammar, dropped=tuple(dropped), is_settled=True)
    text = _with_schemas(grammar, {line: one.text for line, one in found.items()})
    largest = [line for line, _ in _by_size(msgspec.structs.replace(grammar, text=text))]
    num_bare = 0
    while True:
        try:
            return loosened, compile_whole(msgspec.structs.replace(loosened, text=text))
        except UnsupportedGrammar as error:
            if num_bare == len(largest):
                raise
            num_bare = min(max(2 * num_bare, 1), len(largest))
            bare = largest[:num_bare]
            loosened = with_bare(loosened, bare, f"all tools together: {error.message[:120]}")
            text = _with_schemas(
                msgspec.structs.replace(grammar, text=text), dict.fromkeys(bare, _ANY_OBJECT)
            )


def _check_objects(grammar: Grammar) -> None:
    """Refuse schemas of anything but objects: what stands for a call's arguments must be one."""
    for line, text in _by_size(grammar):
        try:
            schema = json.loads(text)
        except (ValueError, RecursionError):
            schema = None
        if not isinstance(schema, dict) or schema.get("type") != "object":
            refuse("must be the schema of an object", path=f"line {line}")


def _cut_notes(found: dict[int, LooseSchema]) -> None:
    """Replace the schemas that lost most by any object, where there is too much to tell."""
    sizes = {line: len(msgspec.json.encode(one.loosened)) for line, one in found.items()}
    while sum(sizes.values()) > _MAX_DROPPED_BYTES:
        line = max(sizes, key=sizes.__getitem__)
        reason = f"{len(found[line].loosened)} parts of it are refused"
        found[line] = LooseSchema(_ANY_OBJECT, (Loosened(line=line, path="$", reason=reason),))
        size = len(msgspec.json.encode(found[line].loosened))
        if size >= sizes[line]:
            return
        sizes[line] = size


def _of_line(dropped: Iterable[Loosened], line: int) -> list[Loosened]:
    return [one for one in dropped if one.line == line]


def _by_size(grammar: Grammar) -> list[tuple[int, str]]:
    """Return the lines with loose schemas and these schemas, largest first."""
    if grammar.kind != "lark":
        return [(0, grammar.text)]
    lines = grammar.text.split("\n")
    found = [(line, lines[line - 1].partition(_MARK)[2]) for line in grammar.loose]
    return sorted(found, key=lambda one: (-len(one[1]), one[0]))


def _with_schemas(grammar: Grammar, texts: dict[int, str]) -> str:
    """Return the text of a grammar with other schemas on some lines."""
    if grammar.kind != "lark":
        return texts.get(0, grammar.text)
    lines = grammar.text.split("\n")
    for line, text in texts.items():
        lines[line - 1] = lines[line - 1].partition(_MARK)[0] + _MARK + text
    return "\n".join(lines)


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
