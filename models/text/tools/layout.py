"""Formats in which models write tool calls: the text around names and arguments.

All formats here are one shape, in which the arguments of a call are one JSON object:

    text, TRIGGER...OPENING, BEFORE_NAME name BEFORE_ARGUMENTS {...} AFTER,
    SEPARATOR and the next call ..., CLOSING

A format is data (`formats.py`). `grammar.py` makes the grammar of a turn of it, and `reader.py`
reads the turn. So the allowed texts and the understood texts are the same by construction.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass

NAME_PATTERN = r"[a-zA-Z0-9_-]{1,64}"  # a function's, as OpenAI has it; the layouts rely on it
MAX_CALLS = 32  # in one turn: a model that does not find an end would fill the answer with calls

_NAME = re.compile(NAME_PATTERN)
_ID_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLayout:
    """One format, under vLLM's name for its parser.

    Attributes:
        trigger: the text by which a call is known to begin: the beginning of `opening` and
            `before_name`. From there on only a call can follow.
        opening, closing: around all calls of a turn.
        before_name, before_arguments, after: around name and arguments of each.
        separator: between calls.
        begins_line: whether the trigger counts at the beginning of a line only.
        is_parallel: whether a turn may have several calls.
        id_prefix, num_id_chars: of the ids that calls are given.
        has_strict_ids: whether the template refuses ids of other services.
    """

    name: str
    trigger: str
    opening: str = ""
    before_name: str
    before_arguments: str
    after: str
    separator: str = "\n"
    closing: str = ""
    begins_line: bool = False
    is_parallel: bool = True
    id_prefix: str = "call_"
    num_id_chars: int = 24
    has_strict_ids: bool = False

    def __post_init__(self) -> None:
        if not (self.trigger and (self.opening + self.before_name).startswith(self.trigger)):
            raise ValueError(f"{self.name}: no call begins with the trigger {self.trigger!r}")
        if _NAME.fullmatch(self.before_arguments[:1]):
            raise ValueError(f"{self.name}: no name ends before {self.before_arguments!r}")

    def written(self, calls: Sequence[tuple[str, str]]) -> str:
        """Write a turn's calls, names and JSON texts of arguments, as the model does."""
        bodies = [
            f"{self.before_name}{name}{self.before_arguments}{arguments}{self.after}"
            for name, arguments in calls
        ]
        return self.opening + self.separator.join(bodies) + self.closing

    def taken_id(self, call_id: str) -> str:
        """Return an id that the template accepts: itself, or one that is always the same for it."""
        is_own = len(call_id) == self.num_id_chars and _NAME.fullmatch(call_id)
        if not self.has_strict_ids or (is_own and call_id.isalnum()):
            return call_id
        digest = hashlib.sha256(call_id.encode(errors="replace")).digest()
        return "".join(_ID_LETTERS[byte % len(_ID_LETTERS)] for byte in digest[: self.num_id_chars])

    def new_id(self) -> str:
        """Return a random id for a call."""
        letters = (secrets.choice(_ID_LETTERS) for _ in range(self.num_id_chars))
        return self.id_prefix + "".join(letters)
