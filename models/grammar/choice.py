"""A list of choices as a grammar: the text is exactly one of them.

All choices are one lexeme, a regular expression of literals. If one choice begins another, the end
of the text decides. Sources: llguidance docs/syntax.md (Lark form).
"""

from __future__ import annotations

import json

from models.grammar.limits import (
    MAX_CHOICE_BYTES,
    MAX_CHOICES,
    MAX_CHOICES_BYTES,
    refuse,
)


def choice_grammar(text: str) -> str:
    """Return Lark text for the choices; `text` is the JSON text of a list of strings.

    Raises:
        UnsupportedGrammar: not such a list, empty or repeated choices, or over a limit.
    """
    options = " | ".join(f"/{literal(choice)}/" for choice in checked_choices(_listed(text)))
    return f"start: TEXT\nTEXT: {options}\n"


def literal(text: str) -> str:
    """Return a regular expression for just this text, in the characters a-f, 0-9 and `\\x{}`."""
    return "".join(f"\\x{{{ord(char):x}}}" for char in text)


def _listed(text: str) -> list[str]:
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError) as error:
        refuse(f"the list of choices is not JSON: {error}")
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        refuse("must be a list of strings")
    return choices


def checked_choices(choices: list[str]) -> list[str]:
    """Return the choices, each of which may be served.

    Raises:
        UnsupportedGrammar: there are none, empty or repeated ones, or more than a limit.
    """
    if not 1 <= len(choices) <= MAX_CHOICES:
        refuse(f"{len(choices)} choices, there must be 1 to {MAX_CHOICES}")
    seen: dict[str, int] = {}
    num_bytes = 0
    for index, choice in enumerate(choices):
        num_bytes += _checked_bytes(choice, f"[{index}]")
        if seen.setdefault(choice, index) != index:
            refuse(f"the same as [{seen[choice]}]", path=f"[{index}]")
    if num_bytes > MAX_CHOICES_BYTES:
        refuse(f"the choices have {num_bytes} bytes, the limit is {MAX_CHOICES_BYTES}")
    return choices


def _checked_bytes(choice: str, path: str) -> int:
    if not choice:
        refuse("a choice must not be empty", path=path)
    try:
        num_bytes = len(choice.encode())
    except UnicodeEncodeError:
        refuse("a lone surrogate is not text", path=path)
    if num_bytes > MAX_CHOICE_BYTES:
        refuse(f"{num_bytes} bytes, the limit is {MAX_CHOICE_BYTES}", path=path)
    return num_bytes
