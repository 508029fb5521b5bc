"""Answers to learn from: read in both shapes, written by the target, continued."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from models.distill.answers import Answer, Sampling, read_answers, read_prompts, write_answers
from models.distill.vocabulary import frequent_ids

TARGET = Path(__file__).parents[3] / "models" / "demo" / "target"
CHAT = [{"role": "user", "content": "Write a short story about a dog."}]


@pytest.fixture(scope="module")
def tokenizer():  # type: ignore[no-untyped-def]
    return AutoTokenizer.from_pretrained(TARGET)


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_prompts_are_encoded_as_requests_are(tokenizer, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = written(tmp_path / "p", {"messages": CHAT})
    path.write_text(f'{path.read_text()}\n{{"prompt": "One\u2028day"}}\n', encoding="utf-8")
    chat, text = read_prompts(path, tokenizer)
    expected = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
    assert tokenizer.decode(chat) == expected
    assert tokenizer.decode(text) == "One\u2028day"


@pytest.mark.parametrize("line", [{"text": "x"}, 3, {"messages": 3}])
def test_a_prompt_of_another_shape_is_refused_by_its_line(  # type: ignore[no-untyped-def]
    line: object, tokenizer, tmp_path: Path
) -> None:
    path = written(tmp_path / "p", {"prompt": "x"}, line)
    with pytest.raises(ValueError, match=r"line 2: wanted messages or prompt"):
        read_prompts(path, tokenizer)


def test_answers_are_ids_or_conversations(tokenizer, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    reply = {"role": "assistant", "content": "A dog ran."}
    path = written(
        tmp_path / "a",
        {"prompt_ids": [1, 2], "answer_ids": [3]},
        {"messages": [*CHAT, reply]},
    )
    with path.open("a") as file:
        file.write('{"prompt_ids": [1')  # cut off
    ids, chat = read_answers(path, tokenizer)
    assert ids == Answer([1, 2], [3])
    whole = tokenizer.apply_chat_template([*CHAT, reply], tokenize=False)
    assert tokenizer.decode(chat.prompt_ids + chat.answer_ids).strip() == whole.strip()
    for wrong in ({"question": "x"}, {"prompt_ids": [1], "answer_ids": [4096]}):
        written(path, wrong, {"prompt_ids": [1], "answer_ids": [2]})
        with pytest.raises(ValueError, match="line 1: wanted an answer"):
            read_answers(path, tokenizer)


def test_the_target_answers_what_has_no_answer_yet(tokenizer, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Greedy answers are what the target says alone; a cut-off line is answered again."""
    target = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    prompts = [tokenizer(text)["input_ids"] for text in ("One day", "The dog and the cat", "A")]
    output = written(tmp_path / "a", {"prompt_ids": prompts[0], "answer_ids": [7]})
    with output.open("a") as file:
        file.write('{"prompt_ids": [1')
    sampling = Sampling(max_new_tokens=6, batch_size=2)
    write_answers(target, prompts, {tuple(prompts[0])}, output, sampling)
    answers = {tuple(each.prompt_ids): each.answer_ids for each in read_answers(output, tokenizer)}
    assert answers.pop(tuple(prompts[0])) == [7]
    assert len(answers) == 2
    for prompt, found in answers.items():
        ids = torch.tensor([prompt])
        own = target.generate(input_ids=ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
        assert found == own[0, len(prompt) :].tolist()


def test_the_most_frequent_ids_of_answers_are_drafted() -> None:
    answers = [Answer([9, 9, 9], [5, 5, 2]), Answer([1], [7, 5, 2])]
    assert frequent_ids(answers, 2).tolist() == [2, 5]
    assert frequent_ids(answers, 10).tolist() == [2, 5, 7]
