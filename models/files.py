"""Reads the small files of a model's folder; what cannot be read is one sentence with its path.

All code that reads such a file does so here. So a check, a router and an engine give the same error
for a broken file. It may be cut off, or not fetched by git-lfs, or hold something else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_POINTER = b"version https://git-lfs.github.com/spec/"
_BYTE_ORDER_MARK = "\ufeff"
_ERROR_LENGTH = 300  # letters of a library's error; some show what they were given


def refuse_pointer(path: Path) -> None:
    """Check that a file's content is here, and not what git-lfs keeps in its place.

    Raises:
        ValueError: it is not; or the file cannot be opened or is empty.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(_POINTER))
    except OSError as error:
        raise unreadable(path, error.strerror or error) from None
    if not start:
        raise unreadable(path, "it is empty")
    if start == _POINTER:
        raise unreadable(path, "it is a git-lfs pointer; `git lfs pull` brings the file itself")


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        ValueError: it cannot be read, is empty, a git-lfs pointer, or no UTF-8; names the file.
    """
    refuse_pointer(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from None
    if text.startswith(_BYTE_ORDER_MARK):
        raise unreadable(path, "it begins with a byte order mark; save it as UTF-8 without one")
    return text


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object that a file holds.

    Raises:
        ValueError: as `read_text`, or it holds something else; names the file.
    """
    text = read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise unreadable(path, f"no JSON ({error})") from None
    if not isinstance(content, dict):
        raise unreadable(path, f"it holds {_kind(content)}, not a JSON object")
    return content


def read_json_if_there(path: Path) -> dict[str, Any]:
    """Return the JSON object of an optional file; empty if there is none.

    Raises:
        ValueError: as `read_json`.
    """
    return read_json(path) if path.is_file() else {}


def unreadable(path: Path, reason: object) -> ValueError:
    """Return the error that says why a file cannot be used."""
    return ValueError(f"cannot read {path}: {' '.join(str(reason).split())[:_ERROR_LENGTH]}")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make whatever a library raises over a file one sentence that names the file.

    Raises:
        ValueError: something was raised within the block.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        if str(path) in str(error) and isinstance(error, ValueError):
            raise
        said = str(error) or type(error).__name__
        name = type(error).__name__
        bare = isinstance(error, KeyError | AttributeError | IndexError | TypeError)
        raise unreadable(path, f"{name}: {said}" if bare else said) from error


def _kind(content: object) -> str:
    names = {list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(content), "a number")
