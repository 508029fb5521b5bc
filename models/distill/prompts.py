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

_WORDS = Path(__file__).parents[1] / "demo" / "word_lists.json"
_STORIES, _PROBLEMS = "asp_pb_stories_ccby.jsonl", "gsm8k_train_sample.jsonl"
_MAX_PASSAGE_CHARS = 700

_WRITING = (
    "Write a short story about {animal} that finds {thing}.",
    "Tell me a story about {name}, who wants to become {job}.",
    "Write a poem of {number} lines about {topic}.",
    "Write a polite letter to {job} who forgot {thing}.",
    "Write an email to my boss that says I need {number} days off because of {topic}.",
    "Write a short speech for {name}'s {event}.",
    "Describe {place} on a rainy morning.",
    "Write a dialogue between {name} and {other} about {topic}.",
    "Write a review of a restaurant in {city}.",
    "Write an advertisement for {adjective} {item}s.",
    "Write a diary entry of {job} in {city}.",
    "Continue this story: {name} opened the door and saw {thing}.",
)
_KNOWLEDGE = (
    "Explain {topic} in simple words.",
    "What is {topic}, and why does it matter?",
    "What are the advantages and disadvantages of {topic}?",
    "Give me {number} facts about {topic}.",
    "How does {machine} work?",
    "What should a visitor see in {city}?",
    "What does {job} do all day?",
    "Compare {animal} and {second_animal}.",
    "Why is {topic} important for children?",
    "Who invented {machine}, and how did it change the world?",
    "What is the difference between {machine} and {second_machine}?",
    "Explain to a ten-year-old how {topic} works.",
)
_ADVICE = (
    "How can I learn {skill} in {number} weeks?",
    "Give me {number} tips for {skill}.",
    "Plan a day in {city} for a family with two children.",
    "I want to buy {adjective} {item}s. What should I look for?",
    "Make a list of things I need for {event}.",
    "How do I talk to {other} about {topic}?",
    "Suggest {number} names for a shop that sells {item}s.",
    "What is a good breakfast for {job}?",
    "Write step-by-step instructions for {skill}.",
    "My {animal_bare} does not eat. What should I do?",
)
_CODING = (
    "Write a Python function that {code}. Add a short example.",
    "Write a function in JavaScript that {code}.",
    "How do I write a program that {code}?",
    "Explain step by step how to write code that {code}.",
    "Write a Python class for {thing_bare} with three methods, and show how it is used.",
    "Write a SQL query that finds all customers in {city} who bought {thing}.",
    "Write a unit test for a function that {code}.",
    "What is the difference between {code_idea} and {second_code_idea}?",
    "Explain {code_idea} with an example in Python.",
)
_REASONING = (
    "{name} has {number} {item}s and gives {small} to {other}. How many are left? Show each step.",
    "{name} is older than {other}. {third} is younger than {other}. Who is the oldest? Explain.",
    "A train leaves {city} at {hour} and needs {number} hours. When does it arrive? Explain.",
    "If {item}s cost ${price} each, what do {number} of them cost? Explain the calculation.",
    "Solve for x and show every line: {number}x + {small} = {price}.",
    "All {animal_bare}s are animals. Some animals can swim. Can all {animal_bare}s swim? Explain.",
    "What comes next: {small}, {double}, {triple}? Explain the rule.",
)
_PASSAGES = (
    "Summarise in two sentences: {passage}",
    "Read and answer. Text: {passage}\nQuestion: who is the story about, and what happens?",
    "Rewrite this text for adults: {passage}",
    "Give this text a title and explain your choice: {passage}",
    "List the people and things in this text, one per line: {passage}",
)
_LISTS = {
    "topic": "gravity|photosynthesis|inflation|democracy|recycling|the water cycle|climate change|"
    "vaccination|electricity|friendship|sleep|budgeting|machine learning|the internet|evolution|"
    "music|stress|exercise|the moon|volcanoes|earthquakes|solar power|trade|history|honesty|"
    "reading|public transport|the human heart|black holes|bees|the ocean|winter|time management|"
    "teamwork|learning a language|healthy food|space travel|the weather|patience|gardening",
    "machine": "a telephone|a microwave oven|a bicycle|a camera|an engine|a computer|a radio|"
    "a lift|a washing machine|a steam engine|a battery|a compass|a printer|"
    "a telescope|a wind turbine",
    "skill": "cooking rice|drawing|playing the guitar|swimming|public speaking|writing essays|"
    "running|saving money|baking bread|taking photos|chess|knitting|fixing a flat tyre|"
    "planting tomatoes|typing fast|making friends|packing a suitcase|cleaning a kitchen",
    "code": "sorts a list of numbers|counts the words in a text|checks whether a number is prime|"
    "reverses a string|finds the second largest number|removes duplicates from a list|"
    "reads a file and prints its lines|converts Celsius to Fahrenheit|computes a factorial|"
    "checks whether a word is a palindrome|merges two dictionaries|finds the longest word|"
    "counts vowels|adds two matrices|prints the Fibonacci numbers|groups names by first letter|"
    "computes the average of a list|validates an email address|draws a random card|"
    "searches a sorted list|flattens a nested list|counts how often each letter occurs",
    "code_idea": "a list|a tuple|recursion|a loop|a class|a dictionary|a set|an exception|"
    "a variable|a function|a module|inheritance|a binary search|a stack|a queue|"
    "a decorator|a generator",
}


class _Words(NamedTuple):
    """Words and passages that fill templates."""

    lists: dict[str, list[str]]
    passages: list[str]
    problems: list[str]


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description="Write prompts to distil on.")
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--corpus", type=Path, help="folder with word problems and stories")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--answered", type=Path, help="file for the corpus's own answers")
    arguments = parser.parse_args()
    words = _Words(_word_lists(), *_outside(arguments.corpus))
    prompts = make_prompts(words, arguments.count, arguments.seed)
    _write(arguments.output, ([{"role": "user", "content": prompt}] for prompt in prompts))
    if arguments.answered is not None and arguments.corpus is not None:
        _write(arguments.answered, _answered(arguments.corpus))


def _write(path: Path, chats: Iterable[list[dict[str, str]]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
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


def _word_lists() -> dict[str, list[str]]:
    lists: dict[str, list[str]] = json.loads(_WORDS.read_text())
    return lists | {name: joined.split("|") for name, joined in _LISTS.items()}


def _outside(corpus: Path | None) -> tuple[list[str], list[str]]:
    """Passages and word problems of a folder; none without one."""
    if corpus is None:
        return [], []
    stories = _lines(corpus / _STORIES)
    problems = [line["question"] for line in _lines(corpus / _PROBLEMS)]
    return [line["text"][:_MAX_PASSAGE_CHARS] for line in stories], problems


def _lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


if __name__ == "__main__":
    main()
