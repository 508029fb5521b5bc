"""Random damage to the folder of a checkpoint, as copies, downloads and editors do it.

Bits of weights are left alone: no header says what they were, so nothing can tell.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
CONFIG, GENERATION = "config.json", "generation_config.json"
WORDS, SETTINGS, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
_JSON = (CONFIG, GENERATION, WORDS, SETTINGS)
_ALL = (*_JSON, WEIGHTS)
_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 1\n"
_VALUES: Sequence[Any] = (
    *(None, True, False, 0, 1, -1, 7, 10**9, 2**70, 0.5, -0.0, 1e308, "", "7", "nonsense"),
    *([], [1], [[]], {}, {"a": 1}, ["a"]),
)
_TEMPLATES = (
    "{% for m in messages %}{{ m.content }}",
    "{{ messages[0].content }",
    "{{ raise_exception('no') }}",
    "{{ messages[0].content | no_such_filter }}",
    "{{ messages[0]['role'] + 1 }}",
    "{{ 1 / 0 }}{{ messages[0].content }}",
    "{% if tools %}{{ tools[0].no.no.no }}{% endif %}{{ messages[-1].content }}",
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{{ messages[-1].content }}",
    "",
    " ",
    "plain",
)


def damage(rng: random.Random, folder: Path) -> list[str]:
    """Damage one or two things in a folder; the files that a refusal may name."""
    named: list[str] = []
    for _ in range(rng.choice((1, 1, 1, 2))):
        named += rng.choice(_KINDS)(rng, folder)
    return named


def cut(rng: random.Random, folder: Path, names: Sequence[str] = _ALL) -> list[str]:
    """End a file early."""
    name = rng.choice(names)
    path = folder / name
    whole = path.read_bytes() if path.is_file() else b""
    path.write_bytes(whole[: rng.randrange(len(whole) + 1)])
    return [name]


def _empty(rng: random.Random, folder: Path) -> list[str]:
    name = rng.choice(_ALL)
    (folder / name).write_bytes(b"")
    return [name]


def _pointer(rng: random.Random, folder: Path) -> list[str]:
    name = rng.choice(_ALL)
    (folder / name).write_bytes(_POINTER % 0)
    return [name]


def _flip(rng: random.Random, folder: Path) -> list[str]:
    """Flip some bits of a small file, or of the weights' header."""
    name = rng.choice(_ALL)
    path = folder / name
    content = bytearray(path.read_bytes() if path.is_file() else b"")
    length = len(content)
    if name == WEIGHTS and length >= 8:
        length = min(length, 8 + struct.unpack("<Q", content[:8])[0])
    for _ in range(rng.randint(1, 4) if length else 0):
        content[rng.randrange(length)] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return [name]


def _missing(rng: random.Random, folder: Path) -> list[str]:
    name = rng.choice(_ALL)
    (folder / name).unlink(missing_ok=True)
    return [name, *((WEIGHTS, "*.safetensors") if name == WEIGHTS else ())]


def _mark(rng: random.Random, folder: Path) -> list[str]:
    name = rng.choice(_JSON)
    path = folder / name
    path.write_bytes(b"\xef\xbb\xbf" + (path.read_bytes() if path.is_file() else b""))
    return [name]


def _other_kind(rng: random.Random, folder: Path) -> list[str]:
    """Replace a whole file with another JSON value."""
    name = rng.choice(_JSON)
    (folder / name).write_text(json.dumps(rng.choice(_VALUES)))
    return [name]


def _other_value(rng: random.Random, folder: Path) -> list[str]:
    """Change or remove the value of a key."""
    name = rng.choice((CONFIG, CONFIG, CONFIG, GENERATION, SETTINGS, WORDS))
    content = _read(folder / name)
    if not content:
        return [name]
    within = content
    inner = [value for value in content.values() if isinstance(value, dict) and value]
    if inner and rng.random() < 0.3:
        within = rng.choice(inner)
    key = rng.choice(list(within))
    if rng.random() < 0.2:
        del within[key]
    else:
        within[key] = rng.choice(_VALUES)
    (folder / name).write_text(json.dumps(content))
    return [name, *((WEIGHTS, WORDS) if name == CONFIG else ())]


def _twice(rng: random.Random, folder: Path) -> list[str]:
    """Repeat a key, like merges of two edits do."""
    name = rng.choice((CONFIG, GENERATION, SETTINGS))
    content = _read(folder / name)
    if content:
        key = rng.choice(list(content))
        again = f"{json.dumps(key)}: {json.dumps(rng.choice(_VALUES))}, "
        text = json.dumps(content)
        (folder / name).write_text("{" + again + text[1:])
    return [name]


def _template(rng: random.Random, folder: Path) -> list[str]:
    template = rng.choice(_TEMPLATES)
    if rng.random() < 0.5:
        (folder / TEMPLATE).write_text(template)
        return [TEMPLATE]
    content = _read(folder / SETTINGS)
    as_list = [
        {"name": "default", "template": template},
        {"name": "tool_use", "template": template},
    ]
    content["chat_template"] = rng.choice((template, as_list, as_list[:1], [template]))
    (folder / SETTINGS).write_text(json.dumps(content))
    return [SETTINGS]


def _shards(rng: random.Random, folder: Path) -> list[str]:
    """Move the weights to another name, with an index that is right, wrong or absent."""
    name = rng.choice(
        ("model-00001-of-00001.safetensors", "weights.safetensors", "model.safetensor")
    )
    path = folder / WEIGHTS
    if not path.is_file():
        return [WEIGHTS]
    path.rename(folder / name)
    named = [WEIGHTS, INDEX, name, "*.safetensors"]
    if rng.random() < 0.2:
        return named
    keys = ["no.such.weight"] if rng.random() < 0.3 else ["model.norm.weight"]
    file = rng.choice((name, name, "another.safetensors", 7))
    index: Any = {"weight_map": dict.fromkeys(keys, file)}
    if rng.random() < 0.2:
        index = rng.choice(_VALUES)
    (folder / INDEX).write_text(json.dumps(index))
    return [*named, "another.safetensors"]


def _swap(rng: random.Random, folder: Path) -> list[str]:
    """Replace the tokenizer by one with more or fewer words, or other ends of a text."""
    content = _read(folder / WORDS)
    vocab = (
        content.get("model", {}).get("vocab") if isinstance(content.get("model"), dict) else None
    )
    if not isinstance(vocab, dict) or not vocab:
        return [WORDS]
    if rng.random() < 0.5:
        vocab |= {f"more{i}": len(vocab) + i for i in range(rng.randint(1, 600))}
    else:
        keys = list(vocab)
        first, second = rng.sample(keys, 2)
        vocab[first], vocab[second] = vocab[second], vocab[first]
    (folder / WORDS).write_text(json.dumps(content))
    return [WORDS]


_KINDS: Sequence[Callable[[random.Random, Path], list[str]]] = (
    *(cut, _empty, _pointer, _flip, _missing, _mark, _other_kind),
    *(_other_value, _other_value, _other_value, _twice, _template, _shards, _swap),
)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
