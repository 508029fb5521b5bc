"""Turns the formats of a structural tag into expressions.

A format is built for what follows it (`After`): free text ends there, so it needs to know. Where
that is the end of a tag, the free text takes the end with it (`Built.took_after`).

| format | served |
|---|---|
| const_string, regex (Python's), grammar (EBNF), json_schema (`style` json) | all |
| any_text, any_tokens | at the end of the text or of a tag; `excludes` as strings |
| sequence, or, optional, plus, star, repeat, tag, tags_with_separator | all |
| triggered_tags, dispatch, token_triggered_tags | where free text is |
| token | special tokens |
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from models.grammar.limits import (
    MAX_DEPTH,
    MAX_REPEAT,
    MAX_RULES,
    MAX_SCHEMAS,
    JsonValue,
    SchemaLimits,
    refuse,
)
from models.grammar.patterns.parser import parse_regex
from models.grammar.patterns.tree import NOTHING
from models.grammar.regex import expanded_size, simplified
from models.grammar.rules import ebnf
from models.grammar.rules.fields import Fields
from models.grammar.rules.free_text import (
    END_OF_TEXT,
    After,
    Built,
    dispatch,
    marks,
    refuse_endless,
    token_triggered_tags,
    triggered_tags,
)
from models.grammar.rules.tree import (
    EMPTY,
    Expr,
    Group,
    Json,
    Ref,
    Regular,
    Repeated,
    Rules,
    Special,
    Until,
    Without,
    choice,
    literal_text,
    repeated,
    sequence,
)
from models.grammar.schema.source import SchemaSource, schema_source
from models.protocol.errors import UnsupportedGrammar

_MAX_FORMATS = 1_000
_REGEX_DEPTH = 50  # as far as the tree of a regular expression is nested at most


class FormatReader:
    """Builds expressions; `rules` and `schemas` are what it met within."""

    def __init__(
        self, schema_limits: SchemaLimits, special_id: Callable[[str | int], int | None]
    ) -> None:
        self._schema_limits = schema_limits
        self._special_id = special_id
        self._num_formats = 0
        self._depth = 0
        self.rules: Rules = {}
        self.schemas: list[tuple[str, SchemaSource]] = []  # with their places
        self._builders: dict[str, Callable[[Fields, After | None], Built]] = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "regex": self._regex,
            "grammar": self._grammar,
            "any_text": self._any_text,
            "any_tokens": self._any_tokens,
            "sequence": self._sequence,
            "or": self._or,
            "optional": lambda fields, _: self._repeated(fields, 0, 1),
            "plus": lambda fields, _: self._repeated(fields, 1, None),
            "star": lambda fields, _: self._repeated(fields, 0, None),
            "repeat": self._repeat,
            "tag": lambda fields, _: Built(self._tag(fields)),
            "tags_with_separator": self._tags_with_separator,
            "triggered_tags": partial(triggered_tags, self),
            "dispatch": partial(dispatch, self),
            "token": lambda fields, _: Built(self.token(fields.take("token"), fields)),
            "token_triggered_tags": partial(token_triggered_tags, self),
        }

    def whole(self, value: JsonValue, path: str) -> Expr:
        """Translate the format of a whole text.

        Raises:
            UnsupportedGrammar: with the place.
        """
        return self._build(value, path, END_OF_TEXT).expression

    def _build(self, value: JsonValue, path: str, after: After | None) -> Built:
        fields = Fields(value, path)
        kind = fields.text("type")
        builder = self._builders.get(kind)
        if builder is None:
            refuse(f"the format {kind[:40]!r} is not supported", path=f"{path}.type")
        self._num_formats += 1
        if self._num_formats > _MAX_FORMATS:
            refuse(f"more than {_MAX_FORMATS} formats, which is the limit", path=path)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            refuse(f"formats nest more than {MAX_DEPTH} deep, the limit", path=path)
        built = builder(fields, after)
        fields.finish()
        self._depth -= 1
        return built

    def plain(self, value: JsonValue, path: str) -> Expr:
        """Translate a format that does not need to know what follows."""
        return self._build(value, path, None).expression

    # --- one fragment -------------------------------------------------------------------------

    def _const_string(self, fields: Fields, after: After | None) -> Built:
        return Built(literal_text(fields.text("value")))

    def _json_schema(self, fields: Fields, after: After | None) -> Built:
        fields.unset("style", "json")
        fields.unset("any_order", False)
        path = fields.place("json_schema")
        if len(self.schemas) == MAX_SCHEMAS:
            refuse(f"more than {MAX_SCHEMAS} schemas, which is the limit", path=path)
        try:
            source = schema_source(json.dumps(fields.take("json_schema")), self._schema_limits)
        except UnsupportedGrammar as error:
            refuse(error.message, path=path)
        self.schemas.append((path, source))
        return Built(Json(source.text))

    def _regex(self, fields: Fields, after: After | None) -> Built:
        path = fields.place("pattern")
        fields.unset("excludes", [])
        try:
            tree = parse_regex(fields.text("pattern"))
            tree = simplified(tree, at_start=True, at_end=True)
        except UnsupportedGrammar as error:
            refuse(error.message, path=path)
        if tree == NOTHING:
            refuse("no text matches this pattern", path=path)
        return Built(Regular(tree, expanded_size(tree), _REGEX_DEPTH))

    def _grammar(self, fields: Fields, after: After | None) -> Built:
        path = fields.place("grammar")
        try:
            rules = ebnf.parse_ebnf(fields.text("grammar"))
        except UnsupportedGrammar as error:
            refuse(error.message, path=path)
        prefix = f"{path}: "
        for name, expression in rules.items():
            self.rules[prefix + name] = _renamed(expression, prefix)
        if len(self.rules) > MAX_RULES:
            refuse(f"more than {MAX_RULES} rules, which is the limit", path=path)
        return Built(Ref(prefix + ebnf.START))

    def _any_text(self, fields: Fields, after: After | None) -> Built:
        fields.unset("max_tokens")
        fields.unset("max_chars")
        excludes = marks(fields.texts("excludes", []), fields.place("excludes"))
        if after is None:
            refuse_endless(fields)
        if after.ends:
            return Built(Until(after.ends, excludes), took_after=True)
        return Built(Without(excludes))

    def _any_tokens(self, fields: Fields, after: After | None) -> Built:
        fields.unset("max_tokens")
        self.check_excluded(fields)
        if after is None or after.ends:
            refuse_endless(fields)
        return Built(Without())

    def token(self, token: JsonValue, fields: Fields, name: str = "token") -> Special:
        if isinstance(token, bool) or not isinstance(token, str | int):
            refuse("must be a special token's name or number", path=fields.place(name))
        found = self._special_id(token)
        if found is None:
            what = str(token)[:80]
            refuse(f"{what} is no special token within a text", path=fields.place(name))
        return Special(f"<[{found}]>")

    def check_excluded(self, fields: Fields) -> None:
        """Check that excluded tokens are special, which free text never has."""
        for token in fields.items("exclude_tokens", []):
            if isinstance(token, bool) or not isinstance(token, str | int):
                refuse("must be tokens' names or numbers", path=fields.place("exclude_tokens"))
            if self._special_id(token) is None:
                what = str(token)[:80]
                refuse(f"{what} is no special token", path=fields.place("exclude_tokens"))

    # --- compositions -------------------------------------------------------------------------

    def _sequence(self, fields: Fields, after: After | None) -> Built:
        elements = fields.items("elements")
        path = fields.place("elements")
        parts = [self.plain(one, f"{path}[{i}]") for i, one in enumerate(elements[:-1])]
        if not elements:
            return Built(EMPTY)
        last = self._build(elements[-1], f"{path}[{len(elements) - 1}]", after)
        return Built(sequence([*parts, last.expression]), last.took_after)

    def _or(self, fields: Fields, after: After | None) -> Built:
        elements = fields.items("elements")
        path = fields.place("elements")
        if not elements:
            refuse("must have one element at least", path=path)
        return Built(choice(self.plain(one, f"{path}[{i}]") for i, one in enumerate(elements)))

    def _repeated(self, fields: Fields, low: int, high: int | None) -> Built:
        content = self.plain(fields.take("content"), fields.place("content"))
        return Built(repeated(content, low, high) if high != 0 else EMPTY)

    def _repeat(self, fields: Fields, after: After | None) -> Built:
        low, high = fields.number("min"), fields.number("max")
        if not 0 <= low <= MAX_REPEAT or not -1 <= high <= MAX_REPEAT or -1 < high < low:
            refuse(f"min and max must be 0 to {MAX_REPEAT}, min the smaller", path=fields.path)
        return self._repeated(fields, low, None if high == -1 else high)

    # --- tags ---------------------------------------------------------------------------------

    def _tag(self, fields: Fields) -> Expr:
        begin = fields.take("begin")
        if isinstance(begin, dict):
            opening: Expr = self.token_of(begin, fields, "begin")
        elif isinstance(begin, str):
            opening = literal_text(begin)
        else:
            refuse("must be a string or a token", path=fields.place("begin"))
        return sequence([opening, self.content(fields)])

    def content(self, fields: Fields) -> Expr:
        """Translate the rest of a tag after its beginning."""
        fields.unset("type", "tag")
        end = fields.take("end", "")
        path = fields.place("end")
        closing: Expr
        if isinstance(end, dict):
            special = self.token_of(end, fields, "end")
            after: After | None = After(token=special.name)
            closing = special
        else:
            texts = [end] if isinstance(end, str) else end
            if not isinstance(texts, list) or not texts:
                refuse("must be a string, a list of strings or a token", path=path)
            ends = tuple(text for text in texts if isinstance(text, str))
            if len(ends) < len(texts):
                refuse("must be strings", path=path)
            closing = choice(map(literal_text, ends))
            after = After(ends=marks(ends, path)) if all(ends) else None
        content = self._build(fields.take("content"), fields.place("content"), after)
        if content.took_after:
            return content.expression
        return sequence([content.expression, closing])

    def token_of(self, value: JsonValue, fields: Fields, name: str) -> Special:
        inner = Fields(value, fields.place(name))
        if inner.text("type") != "token":
            refuse("must be 'token'", path=inner.place("type"))
        token = self.token(inner.take("token"), inner)
        inner.finish()
        return token

    def tags(self, fields: Fields) -> list[Fields]:
        tags = fields.items("tags")
        path = fields.place("tags")
        if not tags:
            refuse("must have one tag at least", path=path)
        return [Fields(tag, f"{path}[{i}]") for i, tag in enumerate(tags)]

    def _tags_with_separator(self, fields: Fields, after: After | None) -> Built:
        separator = literal_text(fields.text("separator"))
        one = choice(self._finished_tag(tag) for tag in self.tags(fields))
        at_least_one = fields.flag("at_least_one")
        all_tags = one
        if not fields.flag("stop_after_first"):
            all_tags = sequence([one, repeated(sequence([separator, one]), 0, None)])
        return Built(all_tags if at_least_one else repeated(all_tags, 0, 1))

    def _finished_tag(self, fields: Fields) -> Expr:
        built = self._tag(fields)
        fields.finish()
        return built


def _renamed(expression: Expr, prefix: str) -> Expr:
    match expression:
        case Ref():
            return Ref(prefix + expression.name)
        case Group():
            return Group(expression.kind, tuple(_renamed(one, prefix) for one in expression.parts))
        case Repeated():
            part = _renamed(expression.part, prefix)
            return Repeated(part, expression.low, expression.high)
        case _:
            return expression
