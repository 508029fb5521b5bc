"""Reads YAML as Ray Serve does, and refuses by line what that reading would change silently.

Serve reads a file by YAML 1.1. There a key that is given twice loses its first value. 01024 is 532,
1:30 is 90, no is false and 2024-01-01 is a date. The command that checks a file reads it here. A
file that is read here without a refusal is read alike by Serve.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

_MERGE = "tag:yaml.org,2002:merge"
_MAX_NODES = 100_000  # anchors repeat what they name: some short texts are gigabytes of tree
_PLAIN_BOOLS = ("true", "false")


def read_yaml(text: str) -> Any:
    """Read a YAML text.

    Raises:
        ValueError: it is no YAML, a key is given twice, or a value means something else than it
            looks like; names the line.
    """
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        where = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise ValueError(f"{where}{error.problem or error}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"no YAML: {' '.join(str(error).split())}") from None


class _StrictLoader(yaml.SafeLoader):
    """Safe types; refuses what `read_yaml` says."""

    def get_single_node(self) -> Node | None:
        node = super().get_single_node()
        if node is not None:
            _refuse_endless(node)
        return node

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        first: dict[Hashable, Node] = {}
        for key, _ in node.value:
            if not isinstance(key, ScalarNode) or key.tag == _MERGE:
                continue
            name = self.construct_object(key)
            if name in first:
                line = first[name].start_mark.line + 1
                raise _refusal(key, f"key {key.value!r} is given twice, first in line {line}")
            first[name] = key
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: ScalarNode) -> int:
        value: int = super().construct_yaml_int(node)
        plain = node.value.replace("_", "").lstrip("+-")
        if ":" in plain or (plain.isdigit() and int(plain) != abs(value)):
            raise _refusal(node, f"{node.value} is {value} in YAML 1.1; {_hint(plain)}")
        return value

    def construct_yaml_float(self, node: ScalarNode) -> float:
        value: float = super().construct_yaml_float(node)
        if ":" in node.value:
            raise _refusal(node, f"{node.value} is {value:g} in YAML 1.1; put it in quotes")
        if not math.isfinite(value):
            raise _refusal(node, f"{node.value} is no finite number, and no key takes another")
        return value

    def construct_yaml_bool(self, node: ScalarNode) -> bool:
        value: bool = super().construct_yaml_bool(node)
        if node.value.lower() not in _PLAIN_BOOLS:
            word = str(value).lower()
            raise _refusal(
                node, f"{node.value} is {word} in YAML 1.1; write {word}, or the word in quotes"
            )
        return value

    def construct_yaml_timestamp(self, node: ScalarNode) -> Any:
        raise _refusal(node, f"{node.value} is a date in YAML 1.1; put it in quotes")


for _kind in ("int", "float", "bool", "timestamp"):
    _StrictLoader.add_constructor(
        f"tag:yaml.org,2002:{_kind}", getattr(_StrictLoader, f"construct_yaml_{_kind}")
    )


def _hint(plain: str) -> str:
    if ":" in plain:
        return "put it in quotes"
    return f"write {int(plain)} without zeros in front, or put it in quotes"


def _refusal(node: Node, text: str) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, text, node.start_mark)


def _refuse_endless(root: Node) -> None:
    """Check that no anchor holds itself, and that all anchors together repeat no endless text."""
    num_nodes = 0

    def walk(node: Node, above: tuple[int, ...]) -> None:
        nonlocal num_nodes
        num_nodes += 1
        if id(node) in above:
            raise _refusal(node, "what an anchor (&) names holds itself")
        if num_nodes > _MAX_NODES:
            raise _refusal(node, f"with all anchors written out it has over {_MAX_NODES} values")
        inner: list[Node] = []
        if isinstance(node, MappingNode):
            inner = [part for pair in node.value for part in pair]
        elif isinstance(node, SequenceNode):
            inner = node.value
        for part in inner:
            walk(part, (*above, id(node)))

    walk(root, ())
