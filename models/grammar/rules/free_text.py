"""Free text with constrained parts in it: the formats of structural tags that wait for a trigger.

Each trigger is found wherever it stands first. The part that belongs to it must follow there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, Protocol

from models.grammar.limits import JsonValue, refuse
from models.grammar.rules.fields import Fields
from models.grammar.rules.tree import (
    EMPTY,
    Expr,
    Special,
    Until,
    Without,
    choice,
    literal_text,
    repeated,
    sequence,
)

_MAX_MARKS = 64  # triggers, ends and excluded texts of one format
_MAX_MARK_CHARS = 256


@dataclass(frozen=True, slots=True)
class After:
    """The text after a format: one of `ends`, a special token, or (neither) the end of the text."""

    ends: tuple[str, ...] = ()
    token: str = ""


END_OF_TEXT = After()


@dataclass(frozen=True, slots=True)
class Built:
    """An expression; `took_after`: what follows the format is part of it."""

    expression: Expr
    took_after: bool = False


class Reader(Protocol):
    """The part of the reader of formats (`formats`) that a format may use."""

    def plain(self, value: JsonValue, path: str) -> Expr:
        """Translate a format that does not need to know what follows."""

    def tags(self, fields: Fields) -> list[Fields]:
        """Return the tags in the field `tags`."""

    def content(self, fields: Fields) -> Expr:
        """Translate the rest of a tag after its beginning."""

    def token(self, token: JsonValue, fields: Fields, name: str = "token") -> Special:
        """Return a special token, named in a field."""

    def token_of(self, value: JsonValue, fields: Fields, name: str) -> Special:
        """Return a special token given as a format, in a field."""

    def check_excluded(self, fields: Fields) -> None:
        """Take the tokens that free text may not hold."""


def triggered_tags(reader: Reader, fields: Fields, after: After | None) -> Built:
    """Build free text in which a trigger begins a tag."""
    triggers = marks(fields.texts("triggers"), fields.place("triggers"))
    bodies: dict[str, list[Expr]] = {trigger: [] for trigger in triggers}
    whole: list[Expr] = []
    for tag in reader.tags(fields):
        begin = tag.text("begin")
        own = [trigger for trigger in triggers if begin.startswith(trigger)]
        if not own:
            refuse("must begin with one of the triggers", path=tag.place("begin"))
        rest = reader.content(tag)
        tag.finish()
        bodies[own[0]].append(sequence([literal_text(begin[len(own[0]) :]), rest]))
        whole.append(sequence([literal_text(begin), rest]))
    for trigger, body in bodies.items():
        if not body:
            refuse(f"no tag begins with {trigger[:80]!r}", path=fields.place("triggers"))
    return _triggered(
        fields, after, {trigger: choice(body) for trigger, body in bodies.items()}, whole
    )


def dispatch(reader: Reader, fields: Fields, after: After | None) -> Built:
    """Build free text in which each trigger has a format of its own."""
    bodies: dict[str, Expr] = {}
    path = fields.place("rules")
    for i, rule in enumerate(fields.items("rules")):
        if not isinstance(rule, list) or len(rule) != 2 or not isinstance(rule[0], str):
            refuse("must be a pair of a string and a format", path=f"{path}[{i}]")
        if rule[0] in bodies:
            refuse("the same string again", path=f"{path}[{i}]")
        bodies[rule[0]] = reader.plain(rule[1], f"{path}[{i}][1]")
    if not bodies:
        refuse("must have one rule at least", path=path)
    marks(tuple(bodies), path)
    loops = fields.take("loop", True)
    if not isinstance(loops, bool):
        refuse("must be true or false", path=fields.place("loop"))
    return _free(fields, after, bodies, stops=not loops)


def _triggered(
    fields: Fields, after: After | None, bodies: dict[str, Expr], whole: list[Expr]
) -> Built:
    at_least_one = fields.flag("at_least_one")
    stops = fields.flag("stop_after_first")
    if not at_least_one:
        return _free(fields, after, bodies, stops=stops)
    first = choice(whole)
    if stops:
        fields.unset("excludes", [])
        return Built(first)
    rest = _free(fields, after, bodies, stops=False)
    return Built(sequence([first, rest.expression]), rest.took_after)


def _free(fields: Fields, after: After | None, bodies: dict[str, Expr], *, stops: bool) -> Built:
    """Build free text with what follows each trigger in it."""
    path = fields.place("excludes")
    texts = marks(fields.texts("excludes", []), path)
    if after is None:
        refuse_endless(fields)
    ends = after.ends
    excludes = tuple(text for text in texts if text not in ends)
    marks((*bodies, *excludes, *ends), fields.path)
    parts = [
        sequence([Until((trigger,), (*excludes, *ends)), body]) for trigger, body in bodies.items()
    ]
    closing = choice(map(literal_text, ends)) if ends else EMPTY
    last: Expr = Without((*bodies, *excludes))
    if ends:
        last = Until(ends, (*bodies, *excludes))
    if stops:
        whole = choice([last, *(sequence([part, closing]) for part in parts)])
    else:
        whole = sequence([repeated(choice(parts), 0, None), last])
    return Built(whole, took_after=bool(ends))


def token_triggered_tags(reader: Reader, fields: Fields, after: After | None) -> Built:
    """Build free text in which a special token begins a tag."""
    reader.check_excluded(fields)
    named = [
        reader.token(token, fields, "trigger_tokens").name
        for token in fields.items("trigger_tokens")
    ]
    path = fields.place("tags")
    tags = []
    for i, tag in enumerate(reader.tags(fields)):
        opening = reader.token_of(tag.take("begin"), tag, "begin")
        if opening.name not in named:
            refuse("must be one of the trigger tokens", path=f"{path}[{i}].begin")
        tags.append(sequence([opening, reader.content(tag)]))
        tag.finish()
    at_least_one = fields.flag("at_least_one")
    stops = fields.flag("stop_after_first")
    if at_least_one and stops:
        return Built(choice(tags))
    if after is None or after.ends:
        refuse_endless(fields)
    one: Expr = sequence([Without(), choice(tags)])
    if stops:
        return Built(choice([Without(), one]))
    rest = sequence([repeated(one, 0, None), Without()])
    return Built(sequence([choice(tags), rest]) if at_least_one else rest)


def marks(texts: tuple[str, ...], path: str) -> tuple[str, ...]:
    """Return texts to look for in free text: each is found for sure, wherever it stands."""
    if len(texts) > _MAX_MARKS:
        refuse(f"{len(texts)} texts, the limit is {_MAX_MARKS}", path=path)
    for i, text in enumerate(texts):
        if not text or len(text) > _MAX_MARK_CHARS:
            refuse(f"must have 1 to {_MAX_MARK_CHARS} characters", path=f"{path}[{i}]")
        for other in texts[:i]:
            if other in text or text in other:
                refuse(f"{other[:80]!r} and {text[:80]!r} overlap", path=path)
    return texts


def refuse_endless(fields: Fields) -> NoReturn:
    """Refuse free text whose end nothing marks."""
    refuse(
        "free text is only supported at the end of the text, or of a tag with an `end`",
        path=fields.path,
    )
