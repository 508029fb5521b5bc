"""Functions as one conversation has them: a kind's names and schema as clients write them.

Knows nothing about chat turns, and of kinds only their shape (`tool_kinds` has them).
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from models.demo.data.words import Pools, made_up, random_word

Values = dict[str, Any]


@dataclass(frozen=True)
class Parameter:
    """One parameter under any of `names`; `choices` makes it an enumeration."""

    names: Sequence[str]
    type: str
    about: str
    choices: Sequence[str] = ()
    is_required: bool = True


@dataclass(frozen=True)
class ToolKind:
    """A function as people name it, and requests that need it.

    Attributes:
        names: names it may have.
        about: its description.
        parameters: by the slot of `draw` that each takes its value from.
        draw: values of all slots.
        requests: with slots in braces.
        results: JSON texts of what it returns, and what then is said, with slots in braces.
    """

    names: Sequence[str]
    about: str
    parameters: dict[str, Parameter]
    draw: Callable[[random.Random, Pools], Values]
    requests: Sequence[str]
    results: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Tool:
    """A function as one conversation has it: its kind, its name and its parameters' names."""

    kind: ToolKind
    name: str
    keys: dict[str, str]  # by slot
    function: dict[str, Any]  # as the API's `tools[].function`

    def arguments(self, values: Values) -> Values:
        """Return the arguments of a call, in the order of the parameters."""
        return {key: values[slot] for slot, key in self.keys.items() if slot in values}


def _made_up_kind(rng: random.Random, pools: Pools) -> ToolKind:
    """Make up a function, so that names are copied and not known by heart."""
    name = "_".join(random_word(rng) for _ in range(rng.randint(1, 2)))
    keys = list(dict.fromkeys(made_up(rng, pools).lower() for _ in range(rng.randint(1, 3))))
    types = {f"s{number}": rng.choice(("string", "integer")) for number in range(len(keys))}
    said = " and ".join(f"{key} {{s{number}}}" for number, key in enumerate(keys))

    def draw(rng: random.Random, pools: Pools) -> Values:
        return {
            slot: made_up(rng, pools) if kind == "string" else rng.randint(0, 999)
            for slot, kind in types.items()
        }

    parameters = {
        slot: Parameter((key,), types[slot], key) for slot, key in zip(types, keys, strict=True)
    }
    requests = (f"Call {name} with {said}.", f"Use {name}: {said}.", f"Run {name} with {said}.")
    return ToolKind((name,), f"Does {name}.", parameters, draw, requests, (("ok", "Done."),))


def _schema(rng: random.Random, kind: ToolKind, keys: dict[str, str]) -> Values:
    """Write the parameters' schema like clients do: with or without descriptions and titles."""
    has_about, has_title = rng.random() < 0.4, rng.random() < 0.2
    properties: Values = {}
    for slot, key in keys.items():
        parameter = kind.parameters[slot]
        properties[key] = {
            **({"title": key.title()} if has_title else {}),
            "type": parameter.type,
            **({"enum": list(parameter.choices)} if parameter.choices else {}),
            **({"description": parameter.about} if has_about else {}),
        }
    required = [key for slot, key in keys.items() if kind.parameters[slot].is_required]
    schema: Values = {"type": "object", "properties": properties, "required": required}
    if rng.random() < 0.4:
        schema["additionalProperties"] = False
    return schema


def _tool(rng: random.Random, kind: ToolKind) -> Tool:
    name = rng.choice(kind.names)
    keys: dict[str, str] = {}
    for slot, parameter in kind.parameters.items():
        if not parameter.is_required and rng.random() < 0.5:
            continue
        free = [key for key in parameter.names if key not in keys.values()]
        keys[slot] = free[0] if rng.random() < 0.5 else rng.choice(free)
    function: Values = {"name": name}
    if rng.random() < 0.7:
        function["description"] = kind.about
    function["parameters"] = _schema(rng, kind, keys)
    if rng.random() < 0.2:
        function["strict"] = True
    return Tool(kind, name, keys, function)


def draw_tools(rng: random.Random, pools: Pools, known: Sequence[ToolKind]) -> list[Tool]:
    """Return one to three functions of different `known` kinds, and now and then a made-up one."""
    kinds = rng.sample(known, rng.choice((1, 1, 1, 2, 2, 3)))
    if rng.random() < 0.3:
        kinds.append(_made_up_kind(rng, pools))
        rng.shuffle(kinds)
    return [_tool(rng, kind) for kind in kinds]
