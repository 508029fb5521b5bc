"""Prompts to distil on, written from templates: for those who have no log of requests yet.

    python -m models.distill.prompts --count 4000 --output build/prompts.jsonl

They ask for the things that assistants are asked for: stories, letters, explanations, code, sums,
advice. The words come from the demo's lists. `--corpus` adds word problems
(`gsm8k_train_sample.jsonl`) and passages of stories (`asp_pb_stories_ccby.jsonl`) to summarise and
to ask about. `--answered` writes those problems and stories with their own answers. The target did
not write these texts, but can be asked about them. A line is a JSON object with `messages`, as in a
request. The same arguments write the same lines.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from models.arguments import output_file, positive

_STORIES, _PROBLEMS = "asp_pb_stories_ccby.jsonl", "gsm8k_train_sample.jsonl"
_MAX_PASSAGE_CHARS = 700

_LISTS = json.loads((Path(__file__).parents[1] / "demo" / "word_lists.json").read_text())
_TEMPLATES = _LISTS["templates"]["prompts"]
_WRITING = _TEMPLATES["writing"]
_KNOWLEDGE = _TEMPLATES["knowledge"]
_ADVICE = _TEMPLATES["advice"]
_CODING = _TEMPLATES["coding"]
_REASONING = _TEMPLATES["reasoning"]
_PASSAGES = _TEMPLATES["passages"]


class _Words(NamedTuple):
    """Words and passages that fill templates."""

    lists: dict[str, list[str]]
    passages: list[str]
    problems: list[str]


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description="Write prompts to distil on.")
    parser.add_argument("--count", type=positive, default=4000)
    parser.add_argument("--corpus", type=Path, help="folder with word problems and stories")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=output_file, required=True)
    parser.add_argument("--answered", type=output_file, help="file for the corpus's own answers")
    arguments = parser.parse_args()
    words = _Words(_LISTS | _TEMPLATES["words"], *_outside(arguments.corpus))
    prompts = make_prompts(words, arguments.count, arguments.seed)
    _write(arguments.output, ([{"role": "user", "content": prompt}] for prompt in prompts))
    if arguments.answered is not None and arguments.corpus is not None:
        _write(arguments.answered, _answered(arguments.corpus))


def _write(path: Path, chats: Iterable[list[dict[str, str]]]) -> None:
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))


def _answered(corpus: Path) -> Iterator[list[dict[str, str]]]:
    """Conversations with the corpus's own answers, without the marks of a calculator."""
    for line in _lines(corpus / _PROBLEMS):
        answer = re.sub("<<.*?>>", "", line["answer"])
        yield [{"role": "user", "content": line["question"]}, _reply(answer)]
    for line in _lines(corpus / _STORIES):
        asked = f"Write a story with the title {line['title']!r}."
        yield [{"role": "user", "content": asked}, _reply(line["text"])]


def _reply(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def make_prompts(words: _Words, count: int, seed: int) -> list[str]:
    """`count` prompts, no two alike, kinds by turns.

    Raises:
        ValueError: the templates have not so many.
    """
    rng = random.Random(f"prompts:{seed}")
    kinds = [_WRITING, _KNOWLEDGE, _ADVICE, _CODING, _REASONING]
    makers: list[Callable[[], str]] = [
        lambda kind=kind: _filled(rng.choice(kind), words, rng)  # type: ignore[misc]
        for kind in kinds
    ]
    if words.passages:
        makers.append(lambda: rng.choice(_PASSAGES).format(passage=rng.choice(words.passages)))
    if words.problems:
        makers.append(lambda: rng.choice(words.problems))
    found: dict[str, None] = {}
    for number in range(20 * count):
        found.setdefault(makers[number % len(makers)]())
        if len(found) == count:
            return list(found)
    raise ValueError(f"count must be at most {len(found)} with these words, got {count}")


def _filled(template: str, words: _Words, rng: random.Random) -> str:
    def one(name: str) -> str:
        return rng.choice(words.lists[name])

    small = rng.randint(2, 9)
    return template.format(
        animal=_with_article(one("animals")),
        second_animal=_with_article(one("animals")),
        animal_bare=one("animals"),
        thing=_with_article(one("things")),
        thing_bare=_with_article(one("toys")),
        name=one("girls"),
        other=one("boys"),
        third=one("girls"),
        job=_with_article(one("jobs")),
        city=one("cities"),
        place=one("places"),
        event=_with_article(one("events")),
        item=one("items"),
        adjective=one("adjectives"),
        topic=one("topic"),
        machine=one("machine"),
        second_machine=one("machine"),
        skill=one("skill"),
        code=one("code"),
        code_idea=one("code_idea"),
        second_code_idea=one("code_idea"),
        number=rng.randint(3, 12),
        small=small,
        double=2 * small,
        triple=3 * small,
        price=rng.randint(15, 90),
        hour=f"{rng.randint(5, 11)} in the morning",
    )


def _with_article(noun: str) -> str:
    if noun.split()[0] in ("a", "an", "the"):
        return noun
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _outside(corpus: Path | None) -> tuple[list[str], list[str]]:
    """Passages and word problems of a folder; none without one."""
    if corpus is None:
        return [], []
    stories = _lines(corpus / _STORIES)
    problems = [line["question"] for line in _lines(corpus / _PROBLEMS)]
    return [line["text"][:_MAX_PASSAGE_CHARS] for line in stories], problems


def _lines(path: Path) -> list[dict[str, str]]:
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line.strip()]


if __name__ == "__main__":
    main()
