"""Loosens a schema that may be loosened until it can be served, place by place.

A part that a check of ours or the compiler refuses is removed at its place (`drops`). The rest is
tried again. A refusal that names no place, or several, needs a search. A part of the schema allows
everything first, then its content comes back by halves. The parts that make the compiler refuse
stay out. The number of trials has a limit, after which all that is not known to be served stays
out. The schema is any JSON object at the very worst.

The same schema is always loosened in the same way: no clock decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from models.grammar.limits import Schema, SchemaLimits
from models.grammar.schema.complaints import Complaints
from models.grammar.schema.drops import part_of, take_out
from models.grammar.schema.parse import parse_json
from models.grammar.schema.places import Steps, children, path_of, value_at
from models.grammar.schema.source import SchemaSource, options_of, rewritten_source
from models.protocol.errors import UnsupportedGrammar
from models.protocol.grammars import Loosened

Compiles = Callable[[SchemaSource], str]  # the compiler's complaint about a schema; "": none

_MAX_ROUNDS = 24  # rounds of refusals that name their place
# Compiles of one schema in a search, and the characters that all but the fewest may read together:
# the compiler takes up to 3 us for each, and patterns may be long when they are written for it.
_MIN_TRIALS, _MAX_TRIALS, _TRIED_CHARS = 8, 96, 1_000_000
_MAX_TOGETHER = 384  # compiles for all schemas of one grammar, where each has more than the least
# Keywords of which all that may be meant are taken out: `oneOf` becomes `anyOf`, which is the same
# where no value fits two; the same reference fails everywhere.
_ALL_AT_ONCE = frozenset({"oneOf", "$ref"})
_MAX_PARTS = 200  # that are named; one that loses more is any object
_MAX_REASON = 160
_NOTHING_LEFT = "any JSON object is left of the schema"


@dataclass(frozen=True)
class LooseSchema:
    """The rest of a schema as JSON text, and the removed parts.

    `is_least` False: the search met its limit, so more may be taken out than is refused.
    """

    text: str
    loosened: tuple[Loosened, ...]
    is_least: bool = True


def loosened_schema(
    text: str, limits: SchemaLimits, compiles: Compiles, *, line: int = 0, num_together: int = 1
) -> LooseSchema:
    """Loosen the schema of an object as far as it must be to be served.

    Args:
        text: its JSON text, whatever it is.
        limits: of schemas.
        compiles: tries one.
        line: that has it, for the notes.
        num_together: the schemas of the same grammar, which share the limits of the search.
    """
    try:
        parse_json(text, limits)
    except UnsupportedGrammar as error:
        return _bare(line, error.message)
    return _Loosening(text, limits, compiles, line, num_together).run()


def with_dropped(text: str, dropped: Iterable[Loosened], limits: SchemaLimits) -> str:
    """Return the JSON text of a schema without the parts that were removed before."""
    parts = [one.steps for one in dropped]
    if () in parts:
        return json.dumps({"type": "object"})
    return json.dumps(_without(text, parts, limits), ensure_ascii=False)


def _bare(line: int, reason: str) -> LooseSchema:
    note = Loosened(line=line, path="$", reason=_cut(f"{reason}; {_NOTHING_LEFT}"))
    return LooseSchema(json.dumps({"type": "object"}), (note,))


def _cut(reason: str) -> str:
    return reason if len(reason) <= _MAX_REASON else reason[: _MAX_REASON - 3] + "..."


def _without(text: str, parts: Iterable[Steps], limits: SchemaLimits) -> Schema:
    schema = parse_json(text, limits)
    for steps in sorted(parts, key=len, reverse=True):  # inner parts go first
        take_out(schema, steps)
    schema["type"] = "object"  # arguments are an object, whatever is left
    return schema


class _Loosening:
    def __init__(
        self, text: str, limits: SchemaLimits, compiles: Compiles, line: int, num_together: int
    ) -> None:
        self._text = text
        self._limits = limits
        self._compiles = compiles
        self._line = line
        self._reasons: dict[Steps, str] = {}  # by what is taken out
        self._max_trials = max(_MIN_TRIALS, min(_MAX_TRIALS, _MAX_TOGETHER // num_together))
        self._max_chars = _TRIED_CHARS // num_together
        self._num_trials = 0
        self._tried_chars = 0
        self._met_limit = False
        self._complaint = ""  # the compiler's latest

    def run(self) -> LooseSchema:
        whole = parse_json(self._text, self._limits)
        types = whole.get("type", "object")
        if types != "object" and not (isinstance(types, list) and "object" in types):
            return _bare(self._line, f"$.type: must be 'object' (got {_cut(json.dumps(types))})")
        found = self._round()
        for _ in range(_MAX_ROUNDS):
            if not found:
                break
            for part, reason in found.items():
                self._take_out(part, reason)
            found = self._round()
        if self._complaint or found:
            self._search(())
        return self._result()

    def _round(self) -> dict[Steps, str]:
        """Return the parts that refusals name, with the refusals.

        It is empty if the schema is served or no part is named.
        """
        source, refused = self._source(self._reasons)
        if source is None:
            return refused
        self._complaint = self._tried(source)
        if not self._complaint:
            return {}
        places = source.located(self._complaint)
        keywords = {place.rpartition(".")[2] for place in places}
        if len(places) != 1 and not keywords <= _ALL_AT_ONCE:
            return {}
        before = _without(self._text, self._reasons, self._limits)
        reason = source.told(self._complaint)
        return {part_of(before, source.places.find(place)): reason for place in places}

    def _source(self, parts: Iterable[Steps]) -> tuple[SchemaSource | None, dict[Steps, str]]:
        """Return the schema without some parts, or the refusals of our own checks."""
        complaints = Complaints(gathers=True)
        written = _without(self._text, parts, self._limits)
        options = options_of(None)
        try:
            source = rewritten_source(written, self._limits, options, complaints, is_loose=True)
        except UnsupportedGrammar as error:
            return None, {(): error.message}
        if not complaints.found:
            return source, {}
        before = _without(self._text, parts, self._limits)  # rewriting changed the other
        found: dict[Steps, str] = {}
        for refused in complaints.found:
            found.setdefault(part_of(before, source.places.find(refused.place)), refused.message)
        return None, found

    def _tried(self, source: SchemaSource) -> str:
        self._num_trials += 1
        self._tried_chars += len(source.text)
        return self._compiles(source)

    def _may_try(self) -> bool:
        if self._num_trials < _MIN_TRIALS:
            return True
        is_left = self._num_trials < self._max_trials and self._tried_chars < self._max_chars
        self._met_limit |= not is_left
        return is_left

    def _take_out(self, part: Steps, reason: str) -> None:
        """Take a part out, or the part around it if that was done and did not help."""
        while part in self._reasons and part:
            part = part[:-1]
        if any(_covers(known, part) for known in self._reasons):
            return
        for known in [one for one in self._reasons if _covers(part, one)]:
            del self._reasons[known]
        self._reasons[part] = reason

    # --- the search -------------------------------------------------------------------------------

    def _search(self, owner: Steps) -> None:
        """Take out what is refused within a subschema, outside of which nothing is."""
        reason = self._complaint
        parts = self._parts(owner) if self._may_try() else None
        if parts is None:
            self._reasons[owner] = reason
            return
        within, keywords = parts
        if not self._is_served({*self._reasons, *within}):
            for part in self._refused(keywords, set(within)):
                self._reasons[part] = reason
        refused = self._refused(within, set())
        self._reasons.update(dict.fromkeys(refused, reason))
        for part in refused:
            del self._reasons[part]
            self._complaint = reason
            self._search(part)

    def _parts(self, owner: Steps) -> tuple[list[Steps], list[Steps]] | None:
        """Return the subschemas directly within one that can be loosened alone, and its keywords.

        None means that it went with another part.
        """
        # A `oneOf` that became `anyOf` is as it was written, so that the steps lead through it.
        others = [part for part in self._reasons if part[-1:] != ("oneOf",) and part != owner]
        inner = value_at(_without(self._text, others, self._limits), owner)
        if not isinstance(inner, dict):
            return None
        within = [
            owner + below
            for below, child in children(inner)
            if child and isinstance(child, dict) and part_of(inner, (*below, "")) != below[:1]
        ]
        return within, [(*owner, keyword) for keyword in inner]

    def _refused(self, parts: list[Steps], others: set[Steps]) -> list[Steps]:
        """Return the refused ones of some parts, found by halves; `others` stay out."""
        refused: list[Steps] = []
        pending = [parts] if parts else []
        while pending:
            group = pending.pop()
            later = {part for others in pending for part in others}
            if self._is_served({*self._reasons, *others, *later, *refused}):
                continue
            if len(group) == 1:
                refused += group
            else:
                half = len(group) // 2
                pending += [group[half:], group[:half]]
        return refused

    def _is_served(self, parts: set[Steps]) -> bool:
        if not self._may_try():
            return False
        source, _ = self._source(parts)
        if source is None:
            return False
        complaint = self._tried(source)
        self._complaint = complaint and source.told(complaint)
        return not complaint

    def _result(self) -> LooseSchema:
        parts = self._reasons
        if () in parts or len(parts) > _MAX_PARTS:
            return _bare(self._line, parts.get((), f"{len(parts)} parts are refused"))
        source, _ = self._source(parts)
        complaint = "it is refused in parts" if source is None else self._compiles(source)
        if source is None or complaint:
            return _bare(self._line, complaint)
        notes = [
            Loosened(
                line=self._line,
                steps=part,
                path=path_of(part),
                reason=_cut(reason.removeprefix(path_of(part) + ": ")),
            )
            for part, reason in parts.items()
        ]
        text = json.dumps(_without(self._text, parts, self._limits), ensure_ascii=False)
        return LooseSchema(text, tuple(notes), is_least=not self._met_limit)


def _covers(outer: Steps, inner: Steps) -> bool:
    """Return whether one part contains another and nothing of it is left."""
    return outer != inner and inner[: len(outer)] == outer and outer[-1:] != ("oneOf",)
