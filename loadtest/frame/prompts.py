"""The prompts of a study, each with its task.

A file has one JSON object a line: `task`, then `prompt` (raw text) or `messages` (a chat), and
optionally `schema`. The section on structure holds the answer to this JSON schema:

    {"task": "code", "messages": [{"role": "user", "content": "Sort a list in Python."}]}

Three sets have names. `demo` has held-out chats of the kinds that the demo pair was trained on.
`kinds` has this project's prompts for real models (`kinds.json`). `tasks` has seven tasks of our
own words.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from loadtest.report.prompts import Message, held_out_chats
from models.text.tokenizer import Tokenizer

_KINDS = Path(__file__).with_name("kinds.json")
TASKS = Path(__file__).parents[1] / "client" / "prompts.jsonl"

# Kinds of the demo's held-out texts, by task.
DEMO_TASKS = {"code": "code", "json": "extraction", "text": "short", "creative": "story"}
_FIELDS = ("task", "prompt", "messages", "schema")
_SCHEMA_MARK = "Schema: "  # where the demo's orders carry their schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt: raw text, or messages of a chat; `schema` is JSON text."""

    task: str
    text: str | None = None
    messages: tuple[Message, ...] = ()
    schema: str | None = None

    def encode(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Token ids.

        Raises:
            ValueError: it is a chat, and the model has no chat template.
        """
        if self.text is not None:
            return tuple(tokenizer.encode(self.text))
        if not tokenizer.has_chat_template:
            raise ValueError("the target has no chat template: give prompt in place of messages")
        return tuple(tokenizer.encode_chat(self.messages))

    def chat(self) -> list[Message]:
        """Return the messages; raw text is a chat of one turn."""
        return list(self.messages) or [{"role": "user", "content": self.text or ""}]


def load_prompts(
    name: str, num_prompts: int, seed: int, tasks: Sequence[str] | None = None
) -> list[Prompt]:
    """Load at most `num_prompts` of each task, of a set by its name or of a file.

    Raises:
        ValueError: the file is missing, empty or wrong, and the message names line, field and
            value; or one of `tasks` has no prompt.
    """
    sets: Mapping[str, Callable[[], list[Prompt]]] = {
        "demo": lambda: list(_demo_prompts(num_prompts, seed)),
        "kinds": lambda: list(_kinds_prompts()),
        "tasks": lambda: read_prompts(TASKS),
    }
    prompts = sets[name]() if name in sets else read_prompts(Path(name))
    by_task: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_task.setdefault(prompt.task, []).append(prompt)
    for task in tasks or ():
        if task not in by_task:
            raise ValueError(f"tasks: no prompt is of {task!r}, there are {', '.join(by_task)}")
    return [prompt for task in tasks or by_task for prompt in by_task[task][:num_prompts]]


def read_prompts(path: Path) -> list[Prompt]:
    """Read all prompts of a file.

    Raises:
        ValueError: as `load_prompts`.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"prompts {str(path)!r} cannot be read: {error}") from error
    prompts = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                prompts.append(_parse(line))
            except ValueError as error:
                raise ValueError(f"{path.name}, line {number}: {error}") from error
    if not prompts:
        raise ValueError(f"{path.name} has no prompts")
    return prompts


def _parse(line: str) -> Prompt:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(entry, dict):
        raise ValueError(f"must be an object, got {_shown(entry)}")
    for field in entry:
        if field not in _FIELDS:
            raise ValueError(f"{field}: unknown field, known are {', '.join(_FIELDS)}")
    task = entry.get("task")
    if not isinstance(task, str) or not task.strip() or "/" in task:
        raise ValueError(f"task: must be a name without /, got {_shown(task)}")
    if ("prompt" in entry) == ("messages" in entry):
        raise ValueError("prompt, messages: give exactly one of them")
    schema = entry.get("schema")
    if schema is not None and not isinstance(schema, dict):
        raise ValueError(f"schema: must be an object, got {_shown(schema)}")
    return Prompt(
        task=task,
        text=_text(entry["prompt"]) if "prompt" in entry else None,
        messages=_messages(entry["messages"]) if "messages" in entry else (),
        schema=None if schema is None else json.dumps(schema),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"prompt: must be a text that is not empty, got {_shown(value)}")
    return value


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"messages: must be a list that is not empty, got {_shown(value)}")
    for index, message in enumerate(value):
        place = f"messages[{index}]"
        if not isinstance(message, dict):
            raise ValueError(f"{place}: must be an object, got {_shown(message)}")
        for field in ("role", "content"):
            if not isinstance(message.get(field), str):
                raise ValueError(
                    f"{place}.{field}: must be a text, got {_shown(message.get(field))}"
                )
    return tuple({"role": one["role"], "content": one["content"]} for one in value)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_kinds() -> dict[str, list[str]]:
    """Read this project's prompts for real models, by kind."""
    content: dict[str, list[str]] = json.loads(_KINDS.read_text(encoding="utf-8"))
    return content


def _kinds_prompts() -> Iterator[Prompt]:
    for task, texts in read_kinds().items():
        for text in texts:
            yield Prompt(task=task, messages=({"role": "user", "content": text},))


def _demo_prompts(num_prompts: int, seed: int) -> Iterator[Prompt]:
    for task, kind in DEMO_TASKS.items():
        drawn = (
            Prompt(task=task, messages=tuple(chat), schema=_schema_in(chat[-1]["content"]))
            for chat in held_out_chats(random.Random(f"study:{seed}:{kind}"), kind)
        )
        yield from islice((one for one in drawn if task != "json" or one.schema), num_prompts)


def _schema_in(text: str) -> str | None:
    """Return the JSON schema that a prompt of the demo quotes."""
    _, mark, rest = text.partition(_SCHEMA_MARK)
    if not mark:
        return None
    try:
        schema, _ = json.JSONDecoder().raw_decode(rest)
    except json.JSONDecodeError:
        return None
    return json.dumps(schema)
