"""Prompts in JSON lines: what they become in a request, and what is refused by its line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import jsonschema
import pytest

from loadtest.client.prompt_file import read_prompts, tasks_of


def write(folder: Path, *lines: object) -> Path:
    path = folder / "prompts.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def test_the_default_set_has_distinct_prompts_of_seven_tasks_with_valid_schemas() -> None:
    prompts = read_prompts()
    assert tasks_of(prompts) == ["json", "code", "edit", "summary", "story", "question", "chat"]
    assert min(Counter(prompt.task for prompt in prompts).values()) >= 4
    assert len({json.dumps(prompt.chat_fields()) for prompt in prompts}) == len(prompts)
    for prompt in prompts:
        assert (prompt.schema is not None) == (prompt.task == "json")
        if prompt.schema is not None:
            jsonschema.Draft202012Validator.check_schema(prompt.schema)


def test_a_text_is_a_chat_of_one_turn_or_a_plain_completion(tmp_path: Path) -> None:
    schema = {"type": "object"}
    path = write(tmp_path, {"task": "json", "prompt": "Say it", "schema": schema}, "")
    [prompt] = read_prompts(path)
    described = {"name": "answer", "schema": schema, "strict": True}
    form = {"response_format": {"type": "json_schema", "json_schema": described}}
    message = {"role": "user", "content": "Say it"}
    assert prompt.chat_fields() == {"messages": [message], **form}
    assert prompt.completion_fields() == {"prompt": "Say it", **form}


def test_a_chat_is_kept_as_it_is_and_is_no_plain_completion(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    [prompt] = read_prompts(write(tmp_path, {"task": "chat", "messages": turns}))
    assert prompt.chat_fields() == {"messages": turns}
    with pytest.raises(ValueError, match="chat 1 is a chat"):
        prompt.completion_fields()


def test_the_first_of_each_task_are_taken_and_numbered(tmp_path: Path) -> None:
    lines = [{"task": task, "prompt": f"{task}{n}"} for n in range(3) for task in ("a", "b")]
    prompts = read_prompts(write(tmp_path, *lines), per_task=2)
    assert [(one.name, one.text) for one in prompts] == [
        ("a 1", "a0"),
        ("b 1", "b0"),
        ("a 2", "a1"),
        ("b 2", "b1"),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "Expecting"),
        ([1], r"must be an object, got \[1\]"),
        ({"prompt": "x"}, "task: must be a name without /, got null"),
        ({"task": "a/b", "prompt": "x"}, 'task: must be a name without /, got "a/b"'),
        ({"task": "a"}, "prompt, messages: give exactly one"),
        ({"task": "a", "prompt": "x", "messages": []}, "prompt, messages: give exactly one"),
        ({"task": "a", "prompt": ""}, "prompt: must be a text that is not empty"),
        ({"task": "a", "prompt": None}, "prompt: must be a text that is not empty"),
        ({"task": "a", "messages": []}, "messages: must be a list that is not empty"),
        ({"task": "a", "messages": ["x"]}, r"messages\[0\]: must be an object"),
        ({"task": "a", "messages": [{"role": "user"}]}, r"messages\[0\].content: must be a text"),
        ({"task": "a", "prompt": "x", "schema": "y" * 99}, 'schema: .* got "y+...$'),
        ({"task": "a", "prompt": "x", "text": "x"}, "text: unknown field, known are messages"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(tmp_path: Path, line: object, reason: str) -> None:
    path = write(tmp_path, {"task": "a", "prompt": "x"}, line)
    with pytest.raises(ValueError, match=rf"prompts.jsonl, line 2: .*{reason}"):
        read_prompts(path)


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no prompts"):
        read_prompts(write(tmp_path, ""))
