"""Reads prompts with their tasks from JSON lines; `prompts.jsonl` next to it is the default set.

A line is an object. It has `task`, a label that groups figures, and `prompt`, a text, or
`messages`, a chat in OpenAI's shape. `schema`, a JSON schema that the answer must obey, is
optional. Empty lines count for nothing. The default set is of our own words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_PROMPTS = Path(__file__).with_name("prompts.jsonl")
_KEYS = {"task", "prompt", "messages", "schema"}
_SHOWN = 60  # characters of a wrong value

Body = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt of a file.

    Attributes:
        task: what kind of work it is.
        number: of the prompt among those of its task, from 1.
        messages: a chat of one turn where the file has a plain text.
        text: that plain text; None where the file has a chat.
        schema: what the answer must obey; None: any text.
    """

    task: str
    number: int
    messages: tuple[Mapping[str, str], ...]
    text: str | None = None
    schema: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """The task and the number within it."""
        return f"{self.task} {self.number}"

    def chat_fields(self) -> Body:
        """Return the fields of a chat's body that hold the prompt and its schema."""
        return {"messages": [dict(one) for one in self.messages], **self._format()}

    def completion_fields(self) -> Body:
        """Return those of a plain completion's body.

        Raises:
            ValueError: the prompt is a chat.
        """
        if self.text is None:
            raise ValueError(f"{self.name} is a chat, which a plain completion cannot hold")
        return {"prompt": self.text, **self._format()}

    def _format(self) -> Body:
        if self.schema is None:
            return {}
        described = {"name": "answer", "schema": dict(self.schema), "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": described}}


def read_prompts(path: Path = DEFAULT_PROMPTS, *, per_task: int | None = None) -> list[Prompt]:
    """Return the prompts of a file in its order, of each task the first `per_task`; None: all.

    Raises:
        OSError: the file cannot be read.
        ValueError: names the line and what is wrong with it; or the file has no prompts.
    """
    prompts: list[Prompt] = []
    num_seen: dict[str, int] = {}
    for index, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            fields = _checked(line)
        except ValueError as error:
            raise ValueError(f"{path.name}, line {index}: {error}") from error
        task = fields["task"]
        num_seen[task] = num_seen.get(task, 0) + 1
        if per_task is None or num_seen[task] <= per_task:
            prompts.append(_prompt(fields, num_seen[task]))
    if not prompts:
        raise ValueError(f"{path.name} holds no prompts")
    return prompts


def tasks_of(prompts: Sequence[Prompt]) -> list[str]:
    """Return the tasks in the order in which they first come."""
    return list(dict.fromkeys(prompt.task for prompt in prompts))


def _prompt(fields: Mapping[str, Any], number: int) -> Prompt:
    text = fields.get("prompt")
    messages = fields.get("messages") or [{"role": "user", "content": text}]
    return Prompt(
        task=fields["task"],
        number=number,
        messages=tuple(messages),
        text=text,
        schema=fields.get("schema"),
    )


def _checked(line: str) -> dict[str, Any]:
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError(f"must be an object, got {_shown(fields)}")
    if unknown := sorted(fields.keys() - _KEYS):
        raise ValueError(f"{unknown[0]}: unknown field, known are {', '.join(sorted(_KEYS))}")
    task = fields.get("task")
    if not isinstance(task, str) or not task.strip() or "/" in task:
        raise ValueError(f"task: must be a name without /, got {_shown(task)}")
    if ("prompt" in fields) == ("messages" in fields):
        raise ValueError("prompt, messages: give exactly one of them")
    prompt = fields.get("prompt", "unused")
    if not isinstance(prompt, str) or not prompt:
        raise ValueError(f"prompt: must be a text that is not empty, got {_shown(prompt)}")
    if not isinstance(fields.get("schema", {}), dict):
        raise ValueError(f"schema: must be an object, got {_shown(fields['schema'])}")
    if "messages" in fields:
        _check_chat(fields["messages"])
    return fields


def _check_chat(messages: object) -> None:
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"messages: must be a list that is not empty, got {_shown(messages)}")
    for index, one in enumerate(messages):
        if not isinstance(one, dict):
            raise ValueError(f"messages[{index}]: must be an object, got {_shown(one)}")
        for key in ("role", "content"):
            if not isinstance(one.get(key), str):
                place, value = f"messages[{index}].{key}", _shown(one.get(key))
                raise ValueError(f"{place}: must be a text, got {value}")


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
