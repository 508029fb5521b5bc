"""Keys of the config tree as people write them: dotted on a command line, or by an older name.

`target.model_path=/models/x` is the key `model_path` of the section `target`. A key that has got
another name keeps its old one: `RENAMED` is the only table of them, for files, command lines and
`user_config` alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deployments.config.strict_yaml import read_yaml

# By the old path: the key's name today, in the same section.
RENAMED = {
    "target.max_batch_rows": "max_num_batched_tokens",
    "draft.max_batch_rows": "max_num_batched_tokens",
    "target.max_sessions": "max_num_seqs",
    "draft.max_sessions": "max_num_seqs",
}


def renewed(values: Mapping[str, Any], section: str = "") -> tuple[dict[str, Any], list[str]]:
    """The tree with every key under the name that it has today, and a note for each that had not.

    Args:
        values: a tree, or values by dotted keys.
        section: dotted path of the tree, where it is a part of the whole.

    Raises:
        ValueError: a key is given under both names.
    """
    tree: dict[str, Any] = {}
    notes: list[str] = []
    for key, value in values.items():
        path = f"{section}.{key}" if section else str(key)
        name = key
        if path in RENAMED:
            before, dot, _ = key.rpartition(".")
            name = f"{before}{dot}{RENAMED[path]}"
            if name in values:
                raise ValueError(f"{path} is an older name of {RENAMED[path]}; give only the new")
            notes.append(f"{path} is an older name, it is {RENAMED[path]} now")
        if isinstance(value, Mapping):
            value, more = renewed(value, path)
            notes += more
        tree[name] = value
    return tree, notes


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with every dotted key put where its path leads.

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
