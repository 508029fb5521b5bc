"""Reads the files of a checkpoint that say how text becomes tokens, and which token ends it.

Each is checked for the keys that are read, and a fault names the file. Some of these keys are
looked at long after a service has started.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from models.files import read_json_if_there, read_text, unreadable

SETTINGS_NAMES = ("special_tokens_map.json", "tokenizer_config.json")  # the later one counts
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
SPECIAL_NAMES = tuple(f"{role}_token" for role in _ROLES)


def read_backend(file: Path) -> tokenizers.Tokenizer:
    """Read the tokenizer of a tokenizer.json.

    Raises:
        ValueError: it cannot be read, or a text cannot be encoded and decoded with it.
    """
    text = read_text(file)
    try:
        backend = tokenizers.Tokenizer.from_str(text)
        backend.decode(backend.encode("Hello, 1 world").ids)
    except BaseException as error:  # its library panics over some files, which is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise unreadable(file, error) from None
    return backend


def tokenizer_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of tokenizer_config.json, completed by special_tokens_map.json.

    Raises:
        ValueError: a file cannot be read, or one of its values has another type.
    """
    settings: dict[str, Any] = {}
    for name in SETTINGS_NAMES:
        path = folder / name
        found = read_json_if_there(path)
        for key in SPECIAL_NAMES:
            if not _is_token(found.get(key)):
                raise unreadable(path, f"{key} must be a text or an object, got {found[key]!r:.80}")
        if not isinstance(found.get("add_bos_token"), bool | None):
            got = found["add_bos_token"]
            raise unreadable(path, f"add_bos_token must be true or false, got {got!r:.80}")
        settings |= found
    return settings


def template_files(folder: Path) -> list[Path]:
    """Return the files of chat templates that are used: the default one, and that with tools."""
    files = (folder / "chat_template.jinja", folder / "additional_chat_templates/tool_use.jinja")
    return [path for path in files if path.is_file()]


def model_eos_ids(folder: Path) -> tuple[int, ...]:
    """Ids that end a text, by generation_config.json, else by config.json; empty: they do not say.

    Raises:
        ValueError: a file cannot be read, or they are no token ids.
    """
    found: dict[str, tuple[int, ...] | None] = {}
    for name in ("config.json", "generation_config.json"):
        content = read_json_if_there(folder / name)
        nested = content.get("text_config")  # of a model that reads more than text
        if content.get("eos_token_id") is None and isinstance(nested, dict):
            content = nested
        if "eos_token_id" in content:
            found[name] = _ids(folder / name, content["eos_token_id"])
    return found.get("generation_config.json") or found.get("config.json") or ()


def _ids(path: Path, value: Any) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise unreadable(
                path, f"eos_token_id must be a token id or a list of such, got {value!r:.80}"
            )
    return tuple(ids)


def _is_token(value: Any) -> bool:
    if isinstance(value, Mapping):
        return isinstance(value.get("content"), str)
    return value is None or isinstance(value, str)
