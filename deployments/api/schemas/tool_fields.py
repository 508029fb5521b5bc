"""The request fields about tools: which functions there are, and whether one must be called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from deployments.api.schemas.strict_fields import (
    StrictFields,
    at_most,
    refuse_value,
    shown,
    without_nulls,
    wrong_field,
)
from models.text.tools.layout import NAME_PATTERN

MAX_TOOLS = 128
MAX_DEPTH = 48  # depth of a schema or of arguments; the same as a schema of a response may have
MAX_DESCRIPTION = 16_384  # characters
_MAX_NAMED = 8  # names that a message lists
_NAME = re.compile(f"^{NAME_PATTERN}$")

# Clients send these along with tools; they do not change which tool may be called.
_NOTES = frozenset(
    {"cache_control", "defer_loading", "annotations", "metadata", "output_schema", "outputSchema"}
    | {"allowed_callers", "id"}
)

FunctionName = Annotated[str, Field(pattern=_NAME.pattern)]


# Stands for all that nests deeper: nothing walks it far, and the grammar service says what it is.
_DEEPER: dict[str, Any] = reduce(lambda inner, _: {"not": inner}, range(MAX_DEPTH), {})


def is_deep(value: Any) -> bool:
    """Return whether JSON is nested too deep for recursive walks; without recursion."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True


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


ChoiceWord = Literal["none", "auto", "required"]


class NamingChoice(StrictFields):
    """A choice that names tools."""

    def mode_and_names(self) -> tuple[str, tuple[str, ...]]:
        """Return the mode, "" if the one tool must be called, and the names."""
        raise NotImplementedError


Choice = ChoiceWord | NamingChoice


class ChosenFunction(StrictFields):
    """The name of a tool."""

    name: Annotated[str, Field(json_schema_extra={"pattern": _NAME.pattern})]


class ToolChoice(NamingChoice):
    """The one tool that must be called."""

    type: Literal["function"]
    function: ChosenFunction

    def mode_and_names(self) -> tuple[str, tuple[str, ...]]:
        """See `NamingChoice`."""
        return "", (self.function.name,)


class AllowedTools(StrictFields):
    """The tools that may be called; the model sees the others too."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolChoice], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(NamingChoice):
    """Some of the tools, called as `mode` says."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools

    def mode_and_names(self) -> tuple[str, tuple[str, ...]]:
        """See `NamingChoice`."""
        allowed = self.allowed_tools
        return allowed.mode, tuple(tool.function.name for tool in allowed.tools)


def mode_and_names(choice: Choice) -> tuple[str, tuple[str, ...]]:
    """Return a choice's mode and the allowed names.

    The mode is a word, or "" if the named function must be called. If no names are given, all
    functions are allowed.
    """
    return (choice, ()) if isinstance(choice, str) else choice.mode_and_names()


def callable_tools(tools: Sequence[Tool], choice: Choice) -> list[tuple[int, Tool]]:
    """Return the tools that a choice allows, with their places in the list."""
    mode, names = mode_and_names(choice)
    if mode == "none":
        return []
    return [
        (index, tool)
        for index, tool in enumerate(tools)
        if not names or tool.function.name in names
    ]


def choice_of(shapes: str) -> WrapValidator:
    """Return a validator that refuses a choice by one text, which lists the shapes."""

    def read(content: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            choice = handler(content)
            mode, names = mode_and_names(choice)
            # Another name of one tool is left to `check_tools`, which says what there is.
            if not mode or all(map(_NAME.fullmatch, names)):
                return choice
        except ValidationError:
            pass
        refuse_value(
            f"must be none, auto, required, {shapes} with 1 to {MAX_TOOLS} tools "
            f"(got {shown(without_nulls(content))})"
        )

    return WrapValidator(read)


ToolChoiceField = Annotated[
    ChoiceWord | ToolChoice | AllowedToolsChoice,
    choice_of(
        '{"type": "function", "function": {"name": ...}} or {"type": "allowed_tools", '
        '"allowed_tools": {"mode": "auto" or "required", "tools": [{"type": "function", '
        '"function": {"name": ...}}, ...]}}'
    ),
]
ToolList = Annotated[list[Tool], Field(max_length=MAX_TOOLS), at_most(MAX_TOOLS)]


def check_tools(tools: Sequence[Tool], choice: Choice) -> None:
    """Check the fields about tools against each other.

    Raises:
        InvalidRequest: two tools of one name, or a choice of none that is there.
    """
    seen: dict[str, int] = {}
    for index, tool in enumerate(tools):
        first = seen.setdefault(tool.function.name, index)
        if first != index:
            field = f"tools[{index}].function.name"
            raise wrong_field(
                field, f"{shown(tool.function.name)} is the name of tools[{first}] already"
            )
    mode, names = mode_and_names(choice)
    for index, name in enumerate(names):
        if name not in seen:
            field = "tool_choice" + (f".allowed_tools.tools[{index}]" if mode else "")
            field += ".function.name"
            there = f"there are {', '.join(seen)}" if 0 < len(seen) <= _MAX_NAMED else ""
            there = there or f"there are {len(seen) or 'none'}"
            raise wrong_field(field, f"no tool has the name {shown(name)}; {there}")
    if choice == "required" and not tools:
        raise wrong_field("tools", "must not be empty with tool_choice 'required'")
