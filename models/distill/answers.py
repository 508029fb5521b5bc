"""Text to learn from: a target's own answers to prompts, kept in a file that can be continued.

A drafter is asked about the text that its target writes. So it learns from that text and not from
others' (DistillSpec 2310.08461). A line of the file is one answer, as token ids:

    {"prompt_ids": [...], "answer_ids": [...]}

Answers come from Hugging Face's own `generate`; `router.capture` of a config keeps those of real
requests in the same shape.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

_SORTED_BATCHES = 16  # prompts of so many batches are sorted by length, so that little is padding


class Answer(NamedTuple):
    """One prompt and what the target wrote, as token ids; the end token is part of it."""

    prompt_ids: list[int]
    answer_ids: list[int]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Terms by which answers are sampled.

    Attributes:
        max_new_tokens: longest answer.
        temperature: of every other batch; the others are greedy, as most requests are.
        batch_size: answers that are written together.
        seed: of all draws.
    """

    max_new_tokens: int = 256
    temperature: float = 0.8
    batch_size: int = 64
    seed: int = 0


def read_prompts(path: Path, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Token ids of each line of a file: an object with `messages` or `prompt`, as in requests.

    Raises:
        ValueError: a line is something else; names the line.
    """
    found = []
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            found.append(_prompt_ids(json.loads(line), tokenizer))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}, line {number}: wanted messages or prompt: {error}") from None
    return found


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")  # a text may have U+2028


def _prompt_ids(asked: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    if "messages" in asked:
        encoded: Any = tokenizer.apply_chat_template(
            asked["messages"], add_generation_prompt=True, return_dict=True
        )
    else:
        encoded = tokenizer(asked["prompt"])
    ids: list[int] = encoded["input_ids"]
    return ids


def read_answers(path: Path, tokenizer: PreTrainedTokenizerBase) -> list[Answer]:
    """Read the answers of a file: token ids, or `messages` whose last one is the assistant's.

    All `*.jsonl` of a folder are read. A last line that was cut off is left out.

    Raises:
        ValueError: another line is something else; names the line.
    """
    if path.is_dir():
        return [
            each for one in sorted(path.glob("*.jsonl")) for each in read_answers(one, tokenizer)
        ]
    lines = _lines(path) if path.exists() else []
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(_answer(json.loads(line), tokenizer))
        except (ValueError, TypeError, KeyError) as error:
            if line.strip() and number < len(lines):
                raise ValueError(f"{path}, line {number}: wanted an answer: {error}") from None
    return found


def _answer(read: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> Answer:
    if "messages" not in read:
        ids = Answer(read["prompt_ids"], read["answer_ids"])
        if not all(
            isinstance(one, int) and 0 <= one < len(tokenizer) for one in [*ids[0], *ids[1]]
        ):
            raise ValueError(f"prompt_ids and answer_ids must be ids below {len(tokenizer)}")
        return ids
    *asked, reply = read["messages"]
    text = tokenizer(reply["content"], add_special_tokens=False)["input_ids"]
    return Answer(_prompt_ids({"messages": asked}, tokenizer), [*text, tokenizer.eos_token_id])


def write_answers(
    target: PreTrainedModel,
    prompts: Sequence[list[int]],
    answered: set[tuple[int, ...]],
    output: Path,
    sampling: Sampling,
) -> None:
    """Have the target answer the prompts that are not among those `answered`, and append these."""
    _drop_cut_line(output)
    left = [prompt for prompt in prompts if tuple(prompt) not in answered]
    output.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(sampling.seed + len(answered))
    bar = tqdm(total=len(prompts), initial=len(prompts) - len(left), unit="answer", mininterval=5)
    with bar, output.open("a") as file:
        for number, batch in enumerate(_batches(left, sampling.batch_size)):
            temperature = None if number % 2 == 0 else sampling.temperature
            replies = written(target, batch, sampling.max_new_tokens, temperature)
            for prompt, reply in zip(batch, replies, strict=True):
                file.write(json.dumps(Answer(prompt, reply)._asdict()) + "\n")
            file.flush()
            bar.update(len(batch))


def _drop_cut_line(path: Path) -> None:
    """Make room for whole lines behind what a run that was cut off left."""
    if path.exists():
        content = path.read_bytes()
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)


def _batches(prompts: Sequence[list[int]], size: int) -> Iterator[list[list[int]]]:
    for begin in range(0, len(prompts), size * _SORTED_BATCHES):
        near = sorted(prompts[begin : begin + size * _SORTED_BATCHES], key=len)
        yield from (near[at : at + size] for at in range(0, len(near), size))


@torch.inference_mode()
def written(
    model: Any,  # transformers' own type does not know that all of them generate
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    temperature: float | None = None,
) -> list[list[int]]:
    """Write a model's replies to a batch of prompts, each up to its end token and with it.

    Without a temperature they are greedy.
    """
    length = max(map(len, prompts))
    padded = torch.tensor([[0] * (length - len(ids)) + ids for ids in prompts])
    mask = torch.tensor([[0] * (length - len(ids)) + [1] * len(ids) for ids in prompts])
    drawn = {} if temperature is None else {"temperature": temperature, "top_k": 0, "top_p": 1.0}
    rows = model.generate(
        input_ids=padded.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=max_new_tokens,
        do_sample=temperature is not None,
        pad_token_id=0,
        **drawn,
    )
    ends = model.generation_config.eos_token_id
    end_ids = {ends} if isinstance(ends, int) else set(ends or ())
    return [_until_end(row, end_ids) for row in rows[:, length:].tolist()]


def _until_end(row: list[int], end_ids: set[int]) -> list[int]:
    for place, token in enumerate(row):
        if token in end_ids:
            return row[: place + 1]
    return row
