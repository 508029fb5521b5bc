"""The request fields about tools: which functions there are, and whether one must be called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, ValidationInfo

from deployments.api.schemas.strict_fields import (
    StrictFields,
    at_most,
    nests_deeper,
    refuse_value,
    shown,
    without_nulls,
)
from models.protocol.errors import InvalidRequest
from models.text.tools.layout import NAME_PATTERN

MAX_TOOLS = 128
MAX_DEPTH = 48  # depth of a schema or of arguments; the same as a schema of a response may have
MAX_DESCRIPTION = 16_384  # characters
CHOICES = ("none", "auto", "required")
_MAX_NAMED = 8  # names that a message lists
_NAME = re.compile(NAME_PATTERN)

# Clients send these along with tools; they do not change which tool may be called.
_NOTES = frozenset(
    {"cache_control", "defer_loading", "annotations", "metadata", "output_schema", "outputSchema"}
    | {"allowed_callers", "id"}
)

FunctionName = Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]


# Stands for all that nests deeper: nothing walks it far, and the grammar service says what it is.
_DEEPER: dict[str, Any] = reduce(lambda inner, _: {"not": inner}, range(MAX_DEPTH), {})


def is_deep(value: Any) -> bool:
    """Return whether JSON is nested too deep for recursive walks."""
    return nests_deeper(value, MAX_DEPTH)


def check_depth(value: Any) -> Any:
    """Refuse JSON that nests too deep, before anything walks it recursively."""
    if is_deep(value):
        refuse_value(f"nests more than {MAX_DEPTH} levels deep, which is the limit")
    return value


def _read_parameters(content: Any, info: ValidationInfo) -> Any:
    """Check the schema of a `strict` function; leave any other as it was sent."""
    if info.data.get("strict") is not True:
        return _DEEPER if is_deep(content) else content
    if not isinstance(content, dict):
        refuse_value("must be an object")
    check_depth(content)
    kind = content.get("type", "object")
    if kind != "object":
        refuse_value(f"type: must be 'object' (got {kind!r})")
    return content


class FunctionDefinition(StrictFields):
    """A function that may be called.

    Arguments obey the schema. A `strict` function whose schema cannot be served refuses the
    request. Another one's unsupported parts are loosened, place by place
    (`models/grammar/loose.py`).
    """

    ignored = _NOTES

    name: FunctionName
    description: Annotated[str, Field(max_length=MAX_DESCRIPTION)] | None = None
    strict: bool | None = None  # before the parameters, whose reading depends on it
    parameters: Annotated[
        Any, PlainValidator(_read_parameters, json_schema_input_type=dict[str, Any] | None)
    ] = None

    @property
    def is_strict(self) -> bool:
        """True if the schema is served exactly or the request is refused."""
        return self.strict is True


class Tool(StrictFields):
    """One tool; only functions are served."""

    ignored = _NOTES

    type: Literal["function"]
    function: FunctionDefinition

    def as_template_reads_it(self) -> dict[str, Any]:
        """Return the tool for a chat template, in OpenAI's order of keys."""
        function: dict[str, Any] = {"name": self.function.name}
        if self.function.description is not None:
            function["description"] = self.function.description
        schema = self.function.parameters
        is_schema = isinstance(schema, dict) and bool(schema) and schema is not _DEEPER
        function["parameters"] = schema if is_schema else {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


class ChosenFunction(StrictFields):
    """The name of a tool."""

    name: FunctionName


class ToolChoice(StrictFields):
    """The one tool that must be called."""

    type: Literal["function"]
    function: ChosenFunction


class AllowedTools(StrictFields):
    """The tools that may be called; the model sees the others too."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolChoice], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(StrictFields):
    """Some of the tools, called as `mode` says."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def allowed_choice(mode: object, names: Sequence[object]) -> str | None:
    """`MODE=NAME,NAME`: a choice that lets only some tools be called; None: it is no such."""
    if mode not in ("auto", "required") or not 0 < len(names) <= MAX_TOOLS:
        return None
    if not all(isinstance(name, str) and _NAME.fullmatch(name) for name in names):
        return None
    return f"{mode}={','.join(map(str, names))}"


def mode_and_names(choice: str) -> tuple[str, tuple[str, ...]]:
    """Split a choice into its mode and the allowed names.

    The mode is a word of `CHOICES`, or "" if a function must be called. If no names are given, all
    functions are allowed.
    """
    mode, _, names = choice.partition("=")
    return mode, tuple(filter(None, names.split(",")))


def callable_tools(tools: Sequence[Tool], choice: str) -> list[tuple[int, Tool]]:
    """Return the tools that a choice allows, with their places in the list."""
    mode, names = mode_and_names(choice)
    if mode == "none":
        return []
    return [
        (index, tool)
        for index, tool in enumerate(tools)
        if not names or tool.function.name in names
    ]


def _read_choice(choice: Any) -> str:
    """Read a choice: a word of `CHOICES`, or `=` and the name of the required tool.

    Several tools are written like `allowed_choice` does.
    """
    choice = without_nulls(choice)
    if isinstance(choice, str) and choice in CHOICES:
        return choice
    if (name := _named(choice)) is not None:
        return f"={name}"
    if isinstance(choice, dict) and choice.keys() == {"type", "allowed_tools"}:
        allowed = choice["allowed_tools"]
        if choice["type"] == "allowed_tools" and isinstance(allowed, dict):
            tools = allowed.get("tools")
            if isinstance(tools, list) and allowed.keys() == {"mode", "tools"}:
                read = allowed_choice(allowed["mode"], [_named(tool) for tool in tools])
                if read is not None:
                    return read
    words = ", ".join(CHOICES)
    refuse_value(
        f'must be {words}, {{"type": "function", "function": {{"name": ...}}}} or {{"type": '
        '"allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": [{"type": '
        f'"function", "function": {{"name": ...}}}}, ...]}}}} with 1 to {MAX_TOOLS} tools '
        f"(got {shown(choice)})"
    )


def _named(content: Any) -> str | None:
    """Return the name in `{"type": "function", "function": {"name": ...}}`; None for others."""
    if not isinstance(content, dict) or content.keys() != {"type", "function"}:
        return None
    function = content["function"]
    if content["type"] != "function" or not isinstance(function, dict):
        return None
    name = function.get("name")
    return name if isinstance(name, str) and function.keys() == {"name"} else None


# The OpenAPI page shows this shape; the validator above accepts the same, and returns a text.
ToolChoiceField = Annotated[
    str,
    PlainValidator(
        _read_choice,
        json_schema_input_type=Literal["none", "auto", "required"]
        | ToolChoice
        | AllowedToolsChoice,
    ),
]
ToolList = Annotated[list[Tool], Field(max_length=MAX_TOOLS), at_most(MAX_TOOLS)]


def check_tools(tools: Sequence[Tool], choice: str) -> None:
    """Check the fields about tools against each other.

    Raises:
        InvalidRequest: two tools of one name, or a choice of none that is there.
    """
    seen: dict[str, int] = {}
    for index, tool in enumerate(tools):
        first = seen.setdefault(tool.function.name, index)
        if first != index:
            field = f"tools[{index}].function.name"
            raise InvalidRequest(
                f"{field}: {shown(tool.function.name)} is the name of tools[{first}] already",
                param=field,
            )
    mode, names = mode_and_names(choice)
    for index, name in enumerate(names):
        if name not in seen:
            field = "tool_choice" + (f".allowed_tools.tools[{index}]" if mode else "")
            field += ".function.name"
            there = f"there are {', '.join(seen)}" if 0 < len(seen) <= _MAX_NAMED else ""
            there = there or f"there are {len(seen) or 'none'}"
            raise InvalidRequest(
                f"{field}: no tool has the name {shown(name)}; {there}", param=field
            )
    if choice == "required" and not tools:
        raise InvalidRequest("tools: must not be empty with tool_choice 'required'", param="tools")
