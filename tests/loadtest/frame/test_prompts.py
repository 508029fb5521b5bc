"""Prompt files, good and bad, and the sets that have a name."""

from __future__ import annotations

import json
import shutil

import pytest

from loadtest.frame.prompts import DEMO_TASKS, Prompt, load_prompts, read_prompts
from models.text.tokenizer import Tokenizer
from tests.harness.local import DEMO, demo_tokenizer

GOOD = {"task": "code", "prompt": "def f"}


def written(tmp_path, *lines):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines))
    return path


def test_prompts_messages_and_schemas_are_read(tmp_path):
    chat = {"task": "json", "messages": [{"role": "user", "content": "Hi"}], "schema": {}}
    prompts = read_prompts(written(tmp_path, GOOD, "", chat))
    assert prompts == [
        Prompt(task="code", text="def f"),
        Prompt(task="json", messages=({"role": "user", "content": "Hi"},), schema="{}"),
    ]
    ids = [prompt.encode(demo_tokenizer()) for prompt in prompts]
    assert ids[0] == tuple(demo_tokenizer().encode("def f"))
    assert ids[1] == tuple(demo_tokenizer().encode_chat([{"role": "user", "content": "Hi"}]))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: must be an object, got [1]"),
        ({"prompt": "x"}, "line 2: task: must be a name without /, got null"),
        ({"task": "a/b", "prompt": "x"}, 'line 2: task: must be a name without /, got "a/b"'),
        ({"task": "a"}, "line 2: prompt, messages: give exactly one of them"),
        ({"task": "a", "prompt": 7}, "line 2: prompt: must be a text that is not empty, got 7"),
        ({"task": "a", "messages": []}, "line 2: messages: must be a list that is not empty"),
        (
            {"task": "a", "messages": [{"role": "user"}]},
            "line 2: messages[0].content: must be a text, got null",
        ),
        ({"task": "a", "prompt": "x", "schema": 3}, "line 2: schema: must be an object, got 3"),
        ({"task": "a", "prompt": "x", "tsak": 3}, "line 2: tsak: unknown field, known are task"),
    ],
)
def test_a_bad_line_is_named_with_field_and_value(tmp_path, line, message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011  # the message is what is tested
        read_prompts(written(tmp_path, GOOD, line))
    assert message in str(raised.value)


def test_a_file_without_prompts_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no prompts"):
        read_prompts(written(tmp_path, ""))


def test_the_sets_have_the_prompts_that_were_asked_for():
    demo = load_prompts("demo", 3, seed=1)
    assert [prompt.task for prompt in demo] == [task for task in DEMO_TASKS for _ in range(3)]
    assert all((prompt.schema is not None) == (prompt.task == "json") for prompt in demo)
    assert demo == load_prompts("demo", 3, seed=1)
    assert demo != load_prompts("demo", 3, seed=2)
    kinds = load_prompts("kinds", 2, seed=1)
    assert {"coding", "extraction"} <= {prompt.task for prompt in kinds}
    assert len(kinds) == 2 * len({prompt.task for prompt in kinds})
    some = load_prompts("kinds", 2, seed=1, tasks=["writing", "coding"])
    assert [prompt.task for prompt in some] == ["writing", "writing", "coding", "coding"]
    with pytest.raises(ValueError, match="tasks: no prompt is of 'cooking', there are extraction"):
        load_prompts("kinds", 2, seed=1, tasks=["cooking"])


def test_raw_text_needs_no_chat_template_and_a_chat_does(tmp_path):
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(DEMO / "target" / name, tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    raw, chat = read_prompts(
        written(tmp_path, GOOD, {"task": "a", "messages": [{"role": "user", "content": "Hi"}]})
    )
    assert raw.encode(tokenizer) == tuple(tokenizer.encode("def f"))
    with pytest.raises(ValueError, match="no chat template: give prompt"):
        chat.encode(tokenizer)
