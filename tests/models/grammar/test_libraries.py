"""Schemas as zod and pydantic print them, of all usual types: served exactly, or loosened by name.

`tests/cases/tools/zod.json` is what `z.toJSONSchema` of zod 4 and `zod-to-json-schema` for zod 3
printed of an object with one property `v`; it names their versions. Pydantic's are made here.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import ipaddress
import json
import pathlib
import random
import uuid
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from pydantic import (
    AnyUrl,
    BaseModel,
    Field,
    HttpUrl,
    SecretStr,
    WithJsonSchema,
    conint,
    constr,
    create_model,
)

from models.grammar.compiler import GrammarCompiler
from models.protocol.errors import UnsupportedGrammar
from models.protocol.messages import Grammar
from tests.cases.grammar import Vocabulary, random_text
from tests.cases.rules import accepts

ZOD = json.loads(pathlib.Path("tests/cases/tools/zod.json").read_text(encoding="utf-8"))
ZOD_TYPES = [(version, name) for version in ("zod4", "zod3") for name in ZOD[version]]
# What is not enforced, by the type; formats that are unknown are notes and not listed.
NOT_ENFORCED = {"emoji": ["$.properties.v.pattern"], "set": ["$.properties.v.uniqueItems"]}


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Node(BaseModel):
    value: int
    children: list[Node] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
# As pydantic writes it where the package for e-mail addresses is installed.
Email = Annotated[str, WithJsonSchema({"type": "string", "format": "email"})]
PYDANTIC: dict[str, tuple[Any, Any]] = {
    "datetime": (datetime.datetime, "2026-11-25T10:00:00Z"),
    "date": (datetime.date, "2026-11-25"),
    "time": (datetime.time, "10:00:00Z"),
    "timedelta": (datetime.timedelta, "P1DT2H"),
    "decimal": (decimal.Decimal, "-12.50"),
    "decimal as a number": (decimal.Decimal, 12.5),
    "uuid": (uuid.UUID, str(uuid.UUID(int=7))),
    "email": (Email, "a.b@example.com"),
    "constr": (constr(min_length=1, max_length=5, pattern="^[a-z]+$"), "abc"),
    "conint": (conint(ge=0, lt=10), 9),
    "int64": (conint(ge=-(2**63), le=2**63 - 1), 2**53),
    "literal": (Literal["a", 1], 1),
    "enum": (Colour, "red"),
    "union": (int | str, "x"),
    "discriminated": (Pet, {"kind": "dog", "name": "Rex"}),
    "optional": (int | None, None),
    "dict": (dict[str, int], {"a": 1}),
    "dict of models": (dict[str, Cat], {"a": {"kind": "cat", "lives": 9}}),
    "tuple": (tuple[int, str], [1, "a"]),
    "tuple of any length": (tuple[int, ...], [1, 2]),
    "set": (set[int], [1, 2]),
    "path": (pathlib.Path, "/tmp"),
    "secret": (SecretStr, "s"),
    "bytes": (bytes, "b"),
    "url": (AnyUrl, "https://example.com/a"),
    "http url": (HttpUrl, "https://example.com/a"),
    "ipv4": (ipaddress.IPv4Address, "127.0.0.1"),
    "ipv6": (ipaddress.IPv6Address, "::1"),
    "any": (Any, [1]),
    "recursive": (Node, {"value": 1, "children": [{"value": 2, "children": []}]}),
}


def check(
    compiler: GrammarCompiler, vocabulary: Vocabulary, name: str, schema: dict[str, Any]
) -> None:
    """Check that a schema is served, strictly where nothing has to be loosened."""
    text = json.dumps(schema)
    left = NOT_ENFORCED.get(name, [])
    strict = Grammar(kind="json_schema", text=text)
    if left:
        with pytest.raises(UnsupportedGrammar) as refused:
            compiler.compile(strict)
        assert refused.value.message.startswith(left[0])
    else:
        rng = random.Random(name)
        compiled = compiler.compile(strict)
        validator = jsonschema.validators.validator_for(schema)(schema)
        for _ in range(2):
            try:
                ids = random_text(compiled, vocabulary, rng, max_tokens=150)
            except RuntimeError:  # too long
                continue
            validator.validate(json.loads(vocabulary.decode(ids)))
    loose = compiler.compile(Grammar(kind="json_schema", text=text, loose=(0,)))
    assert [part.path for part in loose.loosened if not part.path.endswith(".format")] == left


@pytest.mark.parametrize(("version", "name"), ZOD_TYPES)
def test_schemas_of_zod(
    vocabulary: Vocabulary, compiler: GrammarCompiler, version: str, name: str
) -> None:
    check(compiler, vocabulary, name, ZOD[version][name])


@pytest.mark.parametrize("name", PYDANTIC)
def test_schemas_of_pydantic_take_their_values(
    vocabulary: Vocabulary, compiler: GrammarCompiler, name: str
) -> None:
    kind, value = PYDANTIC[name]
    model: type[BaseModel] = create_model("Arguments", v=(kind, ...))
    schema = model.model_json_schema()
    check(compiler, vocabulary, name, schema)
    compiled = compiler.compile(Grammar(kind="json_schema", text=json.dumps(schema), loose=(0,)))
    text = json.dumps({"v": value})
    model.model_validate_json(text)
    assert accepts(compiled, vocabulary, text)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("email", "a.b@example.com", "a..b@example.com"),
        ("regex", "adm", "admin"),
        ("uuid", "586f17b3-4d4c-43d2-b3b0-3e56badf2c07", "0"),
        ("datetime", "2026-11-25T10:00:00Z", "2026-13-25T10:00:00Z"),
        ("duration", "P1DT2H", "P"),
        ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
        ("base64", "YWI=", "YWI"),
        ("safe", 2**53 - 1, 2**53),
    ],
)
def test_patterns_of_zod_hold(
    vocabulary: Vocabulary, compiler: GrammarCompiler, name: str, good: Any, bad: Any
) -> None:
    for version in ("zod4", "zod3"):
        text = json.dumps(ZOD[version][name])
        compiled = compiler.compile(Grammar(kind="json_schema", text=text))
        assert accepts(compiled, vocabulary, json.dumps({"v": good})), version
        if "pattern" in text or name == "safe":
            assert not accepts(compiled, vocabulary, json.dumps({"v": bad})), version
