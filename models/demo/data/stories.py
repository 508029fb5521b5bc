"""Short stories: some read from a corpus folder, some made from templates of our own, each with an
instruction line.

Read stories are varied by changing names and topic nouns throughout. The instruction names the
changed words, so a model cannot recite, it must look at its instruction. Text that is read is used
for training alone and never written to the repository. Knows nothing about tokens.
"""

import random
import re
from dataclasses import dataclass

from models.demo.data.chat import Conversation, ask, plain
from models.demo.data.words import (
    ANIMALS,
    BOYS,
    GIRLS,
    PLACES,
    THINGS,
    TOYS,
    article,
    plural,
    random_word,
    templates,
)

_CATEGORIES = (ANIMALS, TOYS, PLACES, THINGS)
_CATEGORY_OF = {noun: group for group in _CATEGORIES for noun in group}
_GIRLS, _BOYS = frozenset(GIRLS), frozenset(BOYS)
_WORD = re.compile(r"[A-Za-z]+")
_TEMPLATES = templates("stories")
_PARTS = ("openings", "likes", "problems", "help", "fixes", "endings")


@dataclass(frozen=True)
class Story:
    """A story's text and its title, where it has one."""

    text: str
    title: str | None = None


def _swap(text: str, old: str, new: str) -> str:
    """Replace a noun throughout: singular and plural, either case, with the article before it."""
    for before, after in ((plural(old), plural(new)), (old, new)):
        for first, second in ((before, after), (before.capitalize(), after.capitalize())):
            text = re.sub(rf"\b{first}\b", second, text)
    if old[0] not in "aeiou" and new[0] in "aeiou":
        text = re.sub(rf"\b([Aa]) {new}\b", rf"\1n {new}", text)
    if old[0] in "aeiou" and new[0] not in "aeiou":
        text = re.sub(rf"\b([Aa])n {new}\b", rf"\1 {new}", text)
    return text


def vary(rng: random.Random, text: str) -> str:
    """Change most of a story's names, and some of its topic nouns, for others of the same sort."""
    words = set(_WORD.findall(text))
    for name in sorted(words & (_GIRLS | _BOYS)):
        if rng.random() < 0.7:
            pool = GIRLS if name in _GIRLS else BOYS
            other = random_word(rng).capitalize() if rng.random() < 0.1 else rng.choice(pool)
            if other not in words:
                text = re.sub(rf"\b{name}\b", other, text)
    for noun in _topics(text)[:3]:
        if rng.random() < 0.6:
            other = rng.choice(_CATEGORY_OF[noun])
            if other not in words and plural(other) not in words:
                text = _swap(text, noun, other)
    return text


def _topics(text: str) -> list[str]:
    """Return the story's topic nouns, the most frequent first."""
    counts: dict[str, int] = {}
    for word in _WORD.findall(text.lower()):
        noun = word if word in _CATEGORY_OF else word.removesuffix("s")
        if noun in _CATEGORY_OF:
            counts[noun] = counts.get(noun, 0) + 1
    return sorted(counts, key=lambda noun: (-counts[noun], noun))


def _names(text: str) -> list[str]:
    words = _WORD.findall(text)
    found = {word for word in words if word in _GIRLS or word in _BOYS}
    return sorted(found, key=lambda name: (-words.count(name), name))


def instruction(rng: random.Random, story: Story) -> str:
    """Return a request that names one to three of the story's own words."""
    if story.title is not None and rng.random() < 0.5:
        return f'Write a story with the title "{story.title}".'
    nouns = _topics(story.text)[:4]
    chosen = nouns[: rng.choice((1, 1, 2, 2, 2, 3))]
    if rng.random() < 0.2:
        rng.shuffle(nouns)
        chosen = nouns[:2]
    topics = [article(noun) for noun in chosen]
    names = _names(story.text)[:2]
    if names and rng.random() < 0.35:
        girl = names[0] in _GIRLS
        shown = (
            names[0] if rng.random() < 0.6 else f"a {'girl' if girl else 'boy'} named {names[0]}"
        )
        topics.insert(0, shown)
        topics = topics[:3]
    if not topics or rng.random() < 0.06:
        return rng.choice(_TEMPLATES["about_nothing"])
    joined = topics[0] if len(topics) == 1 else ", ".join(topics[:-1]) + " and " + topics[-1]
    return rng.choice(_TEMPLATES["about"]).format(topics=joined)


def make_story(rng: random.Random, stories: list[Story], harder: list[Story]) -> Conversation:
    """Return a story, four times in five as the answer to an instruction.

    Args:
        rng: source of every choice.
        stories: simple stories read from a corpus; may be empty.
        harder: stories in richer language, drawn less often; may be empty.
    """
    kind = rng.random()
    if harder and kind < 0.12:
        story = rng.choice(harder)
    elif stories and kind < 0.8:
        story = Story(vary(rng, rng.choice(stories).text))
    else:
        story = Story(template_story(rng))
    if len(story.text) > 1700:
        lines = story.text.split("\n")
        start = rng.randrange(max(1, len(lines) - 4))
        return plain("\n".join(lines[start:])[:1800])
    if rng.random() < 0.2:
        return plain(story.text)
    return ask(instruction(rng, story), story.text)


def template_story(rng: random.Random) -> str:
    """Return a story from our own templates; no outside text is used."""
    name, friend = rng.sample(GIRLS + BOYS, 2)
    animal, other = rng.sample(ANIMALS, 2)
    person = rng.random() < 0.4
    kind = ("girl" if name in _GIRLS else "boy") if person else animal
    size = rng.choice(("little ", "small ", "kind ", "happy ", ""))
    words = {
        "name": name,
        "friend": friend,
        "animal": kind,
        "other": other,
        "toy": rng.choice(TOYS),
        "look": rng.choice(_TEMPLATES["looks"]),
        "place": rng.choice(PLACES),
        "thing": rng.choice(("bed", "table", "chair", "tree", "box", "stairs")),
        "a_thing": article(rng.choice(THINGS)),
        "a_kind": article(size + kind),
    }
    words["hero"] = f"{words['a_kind']} named {name}"
    parts = [rng.choice(_TEMPLATES[part]) for part in _PARTS]
    joiner = rng.choice((" ", " ", "\n"))
    return joiner.join(parts).format(**words)
