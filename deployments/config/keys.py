"""Keys of the config tree as people write them on a command line: with dots.

`target.model_path=/models/x` is the key `model_path` of the section `target`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deployments.config.strict_yaml import read_yaml


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree with every dotted key put where its path leads.

    Strings under dotted keys are read as YAML, so that 4, null and true are no strings.

    Raises:
        ValueError: a path leads through a value without keys of its own, or one is not YAML.
    """
    tree = {key: value for key, value in values.items() if "." not in str(key)}
    for key, value in values.items():
        if "." in str(key):
            put(tree, str(key).split("."), _read(key, value) if isinstance(value, str) else value)
    return tree


def _read(key: str, text: str) -> Any:
    try:
        return read_yaml(text)
    except ValueError as error:
        reason = str(error).removeprefix("line 1: ")
        raise ValueError(f"{key}: {text!r} cannot be read: {reason}") from None


def put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    """Set the value at `path`; sections on the way are copied, or made where there are none.

    Raises:
        ValueError: a path leads through a value that has no keys of its own.
    """
    inner = tree
    for number, part in enumerate(path[:-1], 1):
        section = inner.get(part)
        if section is None:
            section = {}
        if not isinstance(section, Mapping):
            raise ValueError(f"{'.'.join(path)}: {'.'.join(path[:number])} has no keys of its own")
        inner[part] = dict(section)
        inner = inner[part]
    inner[path[-1]] = value


def assignments(words: Iterable[str]) -> dict[str, Any]:
    """`KEY=VALUE` words as a mapping, values read as YAML.

    Raises:
        ValueError: a word has no `=`, or a value is not YAML.
    """
    found: dict[str, Any] = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator or not key:
            raise ValueError(f"{word!r} is not KEY=VALUE")
        found[key] = _read(key, value)
    return found
