"""OpenAI's own client: tools and formats that pydantic makes of all usual types."""

from __future__ import annotations

import datetime
import enum
import ipaddress
import json
import pathlib
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple

import openai
from pydantic import AnyUrl, Base64Bytes, BaseModel, ConfigDict, Field, SecretStr, create_model

from loadtest.clients.scripts.checks import CheckFailed, Checks, Service, expect
from loadtest.clients.scripts.openai_parts.client import asked, client_of

checks = Checks()

SEVERAL = 6  # as many as the demo's window has room for
ASKED = "Record that Imogen from Delhi wants 6 blue lamps at $62.29 each."
PLAIN: Any = {
    "type": "function",
    "function": {
        "name": "plain",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 10}},
            "required": ["city"],
        },
    },
}


class Colour(enum.Enum):
    """Two colours."""

    BLUE = "blue"
    RED = "red"


class Size(enum.IntEnum):
    """Two sizes."""

    SMALL = 1
    LARGE = 2


class Place(BaseModel):
    """A city."""

    city: Annotated[str, Field(max_length=10)]


class Cat(BaseModel):
    """One of two kinds."""

    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    """The other."""

    kind: Literal["dog"]
    name: str


class Point(NamedTuple):
    """Two numbers."""

    x: int
    y: float


class Tree(BaseModel):
    """A value and what is below it."""

    value: int
    children: list[Tree] = []


class Strict(BaseModel):
    """A model that OpenAI's own helpers make strict; every field is served as declared."""

    name: Annotated[str, Field(max_length=12)]
    colour: Colour
    only: Literal["order"]
    quantity: int
    price: float
    paid: bool
    note: Literal["soon", "late"] | None
    sizes: Annotated[list[Size], Field(max_length=2)]
    place: Place
    either: bool | Literal["yes", "no"]


USUAL: dict[str, Any] = {
    "string": str,
    "short": Annotated[str, Field(min_length=1, max_length=20)],
    "pattern": Annotated[str, Field(pattern=r"^[a-z]+\d{2,4}$")],
    "password": Annotated[str, Field(json_schema_extra={"format": "password"})],
    "secret": SecretStr,
    "integer": int,
    "bounded": Annotated[int, Field(ge=-(2**63), le=2**63 - 1)],
    "open_bounds": Annotated[float, Field(gt=0, lt=1e20)],
    "step": Annotated[float, Field(multiple_of=0.25)],
    "number": float,
    "decimal": Decimal,
    "exact": Annotated[Decimal, Field(max_digits=6, decimal_places=2)],
    "boolean": bool,
    "bytes": bytes,
    "base64": Base64Bytes,
    "date": datetime.date,
    "time": datetime.time,
    "datetime": datetime.datetime,
    "duration": datetime.timedelta,
    "uuid": uuid.UUID,
    "uuid4": Annotated[uuid.UUID, Field(json_schema_extra={"format": "uuid4"})],
    "url": AnyUrl,
    "path": pathlib.Path,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "network": ipaddress.IPv4Network,
    "colour": Colour,
    "size": Size,
    "literal": Literal["a", 1, None],
    "optional": str | None,
    "union": str | int | list[str],
    "discriminated": Annotated[Cat | Dog, Field(discriminator="kind")],
    "list": list[str],
    "bounded_list": Annotated[list[int], Field(min_length=1, max_length=3)],
    "tuple": tuple[str, int],
    "many": tuple[int, ...],
    "set": set[str],
    "frozen": frozenset[int],
    "point": Point,
    "dict": dict[str, int],
    "by_colour": dict[Colour, float],
    "anything": Any,
    "object": dict,
    "place": Place,
    "tree": Tree,
}


def tool_of(name: str, model: type[BaseModel]) -> Any:
    parameters = model.model_json_schema()
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def model_of(**kinds: Any) -> type[BaseModel]:
    fields: dict[str, Any] = {name: (kind, ...) for name, kind in kinds.items()}
    return create_model("Odd", __config__=ConfigDict(extra="forbid"), **fields)


def body(service: Service, **options: Any) -> dict[str, Any]:
    return asked(service, ASKED, **{"temperature": 0, **options})


@checks.named("pydantic: a strict tool of the types that OpenAI's helper takes")
def strict(service: Service) -> str:
    record: Any = openai.pydantic_function_tool(Strict, name="record")
    choice: Any = {"type": "function", "function": {"name": "record"}}
    answer = client_of(service).chat.completions.parse(
        **body(service, tools=[record], tool_choice=choice, max_tokens=300)
    )
    found = (answer.choices[0].message.tool_calls or [])[0].function.parsed_arguments
    if not isinstance(found, Strict):
        raise CheckFailed(f"parsed {found!r}")
    return found.model_dump_json()


@checks.named("pydantic: a response format")
def response_format(service: Service) -> str:
    answer = client_of(service).chat.completions.parse(
        **body(service, response_format=Strict, max_tokens=300)
    )
    found = answer.choices[0].message.parsed
    expect(isinstance(found, Strict), f"parsed {found!r}")
    return str(found)


@checks.named("pydantic: every usual type beside a plain tool")
def usual(service: Service) -> str:
    refused = []
    for name, kind in USUAL.items():
        tools = [tool_of("odd", model_of(value=kind)), PLAIN]
        try:
            client_of(service).chat.completions.create(**body(service, tools=tools, max_tokens=8))
        except openai.APIStatusError as error:
            refused.append(f"{name}: {error.message}")
    expect(not refused, f"{len(refused)} refused: {'; '.join(refused)}")
    return f"{len(USUAL)} types"


@checks.named("pydantic: a named call of every usual type parses")
def named(service: Service) -> str:
    choice: Any = {"type": "function", "function": {"name": "odd"}}
    wrong, num_whole = [], 0
    for name, kind in USUAL.items():
        model = model_of(value=kind)
        call_it = body(service, tools=[tool_of("odd", model)], tool_choice=choice, max_tokens=60)
        try:
            answer = client_of(service).chat.completions.create(**call_it)
            if answer.choices[0].finish_reason == "length":
                continue
            call: Any = (answer.choices[0].message.tool_calls or [])[0]
            json.loads(call.function.arguments)
            num_whole += 1
        except (openai.APIStatusError, ValueError, IndexError) as error:
            wrong.append(f"{name}: {error}")
    expect(not wrong, f"{len(wrong)} wrong: {'; '.join(wrong)}")
    return f"{num_whole} of {len(USUAL)} calls came to their end"


@checks.named("pydantic: tools of several types each")
def several(service: Service) -> str:
    kinds = list(USUAL.items())
    refused = []
    for first in range(0, len(kinds), SEVERAL):
        fields = dict(kinds[first : first + SEVERAL])
        tools = [tool_of("several", model_of(**fields)), PLAIN]
        try:
            client_of(service).chat.completions.create(**body(service, tools=tools, max_tokens=8))
        except openai.APIStatusError as error:
            refused.append(f"{', '.join(fields)}: {error.message}")
    expect(not refused, f"{len(refused)} refused: {'; '.join(refused)}")
    return f"{len(kinds)} types"
