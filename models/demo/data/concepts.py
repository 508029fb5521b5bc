"""Concept sets, and sentences that use all of one: "dog, park, run", "A dog runs through the park."

They follow CommonGen (arXiv 1911.03705), with words and sentences of our own. A sentence is made
first, of one to three actions in one of several frames. Its concepts are some of its words, in any
order, so that the rest of it was not asked for. Invariants: a word keeps its stem in every written
form, so every pair meets the reward `concepts`. A set is held out by a checksum of its words in
sorted order. So no seed and no order can bring it into training.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from models.demo.data.chat import Conversation, ask
from models.demo.data.words import article, is_held_out, plural

MIN_CONCEPTS, MAX_CONCEPTS = 3, 5
_MAX_OTHERS = 2  # words of a sentence that could be concepts and are none
MEAN_TOKENS = 48  # tokens of a request and its sentence, by the shipped tokenizer

_LISTS = json.loads((Path(__file__).parents[1] / "concept_words.json").read_text(encoding="utf-8"))
PEOPLE: tuple[str, ...] = tuple(_LISTS["people"])
ANIMALS: tuple[str, ...] = tuple(_LISTS["animals"])
THINGS: tuple[str, ...] = tuple(_LISTS["things"])
FOODS: tuple[str, ...] = tuple(_LISTS["foods"])
VEHICLES: tuple[str, ...] = tuple(_LISTS["vehicles"])
NOUNS = PEOPLE + ANIMALS + THINGS + FOODS + VEHICLES
# Phrases for being there and for the way through: "in" and "through" of the park.
PLACES: dict[str, tuple[str, str]] = {name: tuple(how) for name, how in _LISTS["places"].items()}
MOODS: tuple[str, ...] = tuple(_LISTS["moods"])  # adjectives of who acts
LOOKS: tuple[str, ...] = tuple(_LISTS["looks"])  # adjectives of what is there
# Verbs by what they take.
MOVING: tuple[str, ...] = tuple(_LISTS["moving"])
RESTING: tuple[str, ...] = tuple(_LISTS["resting"])
HANDLING: tuple[str, ...] = tuple(_LISTS["handling"])
EATING: tuple[str, ...] = tuple(_LISTS["eating"])
MEETING: tuple[str, ...] = tuple(_LISTS["meeting"])
RIDING: tuple[str, ...] = tuple(_LISTS["riding"])
VERBS = MOVING + RESTING + HANDLING + EATING + MEETING + RIDING
_NO_PLURAL = frozenset(_LISTS["no_plural"])
_NO_PAST = frozenset(_LISTS["irregular"])
_OF_ANIMALS = (MOVING, RESTING, ("throw", "catch", "find", "hide"), ("eat", "smell"))
_NUMBERS = ("two", "three", "some", "many", "the")


@dataclass(frozen=True)
class _Part:
    """A piece of a sentence, and the words in it that may be concepts."""

    text: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class _Agent(_Part):
    """The agent of a sentence."""

    is_plural: bool
    is_animal: bool


@dataclass(frozen=True)
class _Action:
    """A verb and what comes behind it, with a space before it where there is something."""

    verb: str
    rest: _Part
    has_object: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        return (self.verb, *self.rest.words)

    def ing(self) -> str:
        """Return the form as in "is throwing a ball"."""
        return ing_form(self.verb) + self.rest.text

    def base(self) -> str:
        """Return the form as in "wants to throw a ball"."""
        return self.verb + self.rest.text


def s_form(verb: str) -> str:
    """Return the third person: "run" to "runs"."""
    return plural(verb)


def _doubles(verb: str) -> bool:
    """Return whether a verb doubles its last letter before an ending: "stop", not "play"."""
    if len(verb) < 3 or sum(letter in "aeiou" for letter in verb) != 1:
        return False
    return verb[-2] in "aeiou" and verb[-1] not in "aeiouwxy"


def ing_form(verb: str) -> str:
    """Return the participle: "run" to "running"."""
    if verb.endswith("e") and not verb.endswith("ee"):
        return verb[:-1] + "ing"
    return verb + (verb[-1] if _doubles(verb) else "") + "ing"


def past_form(verb: str) -> str | None:
    """Return the past where it is regular, as only then it has the verb's stem."""
    if verb in _NO_PAST:
        return None
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ied"
    return verb + (verb[-1] if _doubles(verb) else "") + "ed"


def number_form(noun: str) -> str | None:
    """Return the plural where it is regular, as only then it has the noun's stem."""
    return None if noun in _NO_PLURAL else plural(noun)


def _thing(rng: random.Random, nouns: tuple[str, ...], adjectives: tuple[str, ...]) -> _Part:
    noun = rng.choice(nouns)
    words = [rng.choice(adjectives)] if rng.random() < 0.4 else []
    many = number_form(noun)
    if many is not None and rng.random() < 0.15:
        text = " ".join([rng.choice(_NUMBERS), *words, many])
    elif rng.random() < 0.5 and noun not in ("bread", "soup", "cheese"):
        text = article(" ".join([*words, noun]))
    else:
        text = " ".join(["the", *words, noun])
    return _Part(text, (*words, noun))


def _agent(rng: random.Random) -> _Agent:
    is_animal = rng.random() < 0.35
    noun = rng.choice(ANIMALS if is_animal else PEOPLE)
    words = [rng.choice(MOODS)] if rng.random() < 0.4 else []
    many = number_form(noun)
    is_plural = many is not None and rng.random() < 0.2
    if is_plural:
        text = " ".join([rng.choice(_NUMBERS), *words, str(many)])
    elif rng.random() < 0.6:
        text = article(" ".join([*words, noun]))
    else:
        text = " ".join(["the", *words, noun])
    words.append(noun)
    if rng.random() < 0.12:
        carried = _thing(rng, THINGS, LOOKS)
        text += f" with {carried.text}"
        words += carried.words
    return _Agent(text, tuple(words), is_plural, is_animal)


def _place(rng: random.Random, is_way: bool = False) -> _Part:
    place = rng.choice(tuple(PLACES))
    return _Part(f" {PLACES[place][is_way]} the {place}", (place,))


def _near(rng: random.Random, chance: float) -> _Part:
    return _place(rng) if rng.random() < chance else _Part("", ())


def _action(rng: random.Random, is_animal: bool) -> _Action:
    verbs = rng.choices(
        (MOVING, RESTING, HANDLING, EATING, MEETING, RIDING), (20, 18, 30, 10, 14, 8)
    )[0]
    if is_animal and verbs not in (MOVING, RESTING, MEETING):
        verbs = rng.choice(_OF_ANIMALS)
    verb = rng.choice(verbs)
    if verbs is MOVING:
        return _Action(verb, _place(rng, is_way=True))
    if verbs is RESTING:
        return _Action(verb, _near(rng, 0.6))
    if verbs is MEETING:
        met = _agent(rng)
        what: _Part = met
    elif verb in RIDING:
        what = _thing(rng, VEHICLES, LOOKS)
    elif verb in EATING:
        what = _thing(rng, FOODS, LOOKS)
    else:
        what = _thing(rng, THINGS, LOOKS)
    near = _near(rng, 0.35)
    rest = _Part(f" {what.text}{near.text}", what.words + near.words)
    return _Action(verb, rest, has_object=True)


def _finite(rng: random.Random, agent: _Agent, action: _Action) -> str:
    """Write the action as the agent's: "throws a ball", "was throwing a ball"."""
    one = not agent.is_plural
    forms = [
        (s_form(action.verb) if one else action.verb) + action.rest.text,
        f"{'is' if one else 'are'} {action.ing()}",
        f"{'was' if one else 'were'} {action.ing()}",
        f"{'wants' if one else 'want'} to {action.base()}",
        f"{'likes' if one else 'like'} to {action.base()}",
        f"will {action.base()}",
        f"{'starts' if one else 'start'} {action.ing()}",
    ]
    weights = [6, 4, 3, 1, 1, 1, 1]
    past = past_form(action.verb)
    if past is not None:
        forms.append(past + action.rest.text)
        weights.append(4)
    text = rng.choices(forms, weights)[0]
    return f"{rng.choice(_LISTS['adverbs'])} {text}" if rng.random() < 0.08 else text


_Frame = Callable[[random.Random, _Agent], _Part]


def _plain(rng: random.Random, agent: _Agent) -> _Part:
    action = _action(rng, agent.is_animal)
    return _Part(f"{agent.text} {_finite(rng, agent, action)}", agent.words + action.words)


def _and(rng: random.Random, agent: _Agent) -> _Part:
    first, second = _action(rng, agent.is_animal), _action(rng, agent.is_animal)
    one = not agent.is_plural
    if rng.random() < 0.5:
        acts = [(s_form(a.verb) if one else a.verb) + a.rest.text for a in (first, second)]
        text = f"{agent.text} {acts[0]} and {acts[1]}"
    else:
        text = f"{agent.text} {'is' if one else 'are'} {first.ing()} and {second.ing()}"
    return _Part(text, agent.words + first.words + second.words)


def _while(rng: random.Random, agent: _Agent) -> _Part:
    other = _agent(rng)
    first, second = _plain(rng, agent), _plain(rng, other)
    link = rng.choice((" while ", ", and ", ", but ", " because ", " when "))
    return _Part(first.text + link + second.text, first.words + second.words)


def _after(rng: random.Random, agent: _Agent) -> _Part:
    first, second = _action(rng, agent.is_animal), _plain(rng, agent)
    link = rng.choice(("after", "before", "while", "instead of"))
    if rng.random() < 0.5:
        text = f"{link} {first.ing()}, {second.text}"
    else:
        text = f"{second.text} {link} {first.ing()}"
    return _Part(text, first.words + second.words)


def _there(rng: random.Random, agent: _Agent) -> _Part:
    action = _action(rng, agent.is_animal)
    who = article(agent.text.removeprefix("the ")) if agent.text.startswith("the ") else agent.text
    if agent.is_plural:
        text = f"there are {agent.text} {action.ing()}"
    else:
        text = f"there is {who} {action.ing()}"
    return _Part(text, agent.words + action.words)


def _seen(rng: random.Random, agent: _Agent) -> _Part:
    other = _agent(rng)
    action = _action(rng, other.is_animal)
    sees = rng.choice((("sees", "see"), ("hears", "hear"), ("saw", "saw")))[agent.is_plural]
    words = agent.words + other.words + action.words
    return _Part(f"{agent.text} {sees} {other.text} {action.ing()}", words)


def _passive(rng: random.Random, agent: _Agent) -> _Part:
    if agent.is_animal:
        return _plain(rng, agent)
    verb = rng.choice([verb for verb in HANDLING + RIDING if past_form(verb)])
    what = _thing(rng, VEHICLES if verb in RIDING else THINGS, LOOKS)
    place = _near(rng, 0.5)
    be = "are" if what.text.split()[-1] != what.words[-1] else rng.choice(("is", "was"))
    text = f"{what.text} {be} {past_form(verb)} by {agent.text}{place.text}"
    return _Part(text, (verb, *what.words, *agent.words, *place.words))


def _whose(rng: random.Random, agent: _Agent) -> _Part:
    """Return a relative clause: "the boy who throws a ball is running along the river"."""
    first, second = _action(rng, agent.is_animal), _action(rng, agent.is_animal)
    who = "that" if agent.is_animal else "who"
    does = f"{'is' if not agent.is_plural else 'are'} {first.ing()}"
    text = f"{agent.text} {who} {does} {_finite(rng, agent, second)}"
    return _Part(text, agent.words + first.words + second.words)


_FRAMES: tuple[tuple[_Frame, int], ...] = (
    (_plain, 5),
    (_and, 5),
    (_while, 4),
    (_after, 3),
    (_there, 2),
    (_seen, 2),
    (_passive, 2),
    (_whose, 2),
)


def _sentence(rng: random.Random) -> _Part:
    """Return a sentence with at least `MIN_CONCEPTS` different words that may be concepts."""
    while True:
        [frame] = rng.choices([frame for frame, _ in _FRAMES], [share for _, share in _FRAMES])
        part = frame(rng, _agent(rng))
        if len(part.words) < MIN_CONCEPTS or len(set(part.words)) < len(part.words):
            continue
        text = part.text
        if rng.random() < 0.2:
            text = f"{rng.choice(_LISTS['openers'])} {text}"
        if rng.random() < 0.2:
            text = f"{text} {rng.choice(_LISTS['ends'])}"
        return _Part(f"{text[0].upper()}{text[1:]}.", part.words)


def draw_concepts(rng: random.Random, held_out: bool) -> tuple[tuple[str, ...], str]:
    """Return a set of 3 to 5 concepts, shuffled, and a sentence that uses them all.

    Args:
        rng: source of every choice.
        held_out: which side of the split the set is from.
    """
    while True:
        sentence = _sentence(rng)
        least = max(MIN_CONCEPTS, len(sentence.words) - _MAX_OTHERS)
        most = min(MAX_CONCEPTS, len(sentence.words))
        if least > most:
            continue
        chosen = rng.sample(sentence.words, rng.randint(least, most))
        if not any(word in VERBS for word in chosen):
            continue
        if is_held_out(" ".join(sorted(chosen))) == held_out:
            return tuple(chosen), sentence.text


def held_out_sets(count: int, seed: int) -> list[tuple[str, ...]]:
    """Return `count` different concept sets that training never contains, in any order.

    Args:
        count: how many.
        seed: of the choice; the same seed gives the same sets, a greater count only more of them.
    """
    rng = random.Random(f"concept sets:{seed}")
    found: dict[frozenset[str], tuple[str, ...]] = {}
    while len(found) < count:
        concepts, _ = draw_concepts(rng, held_out=True)
        found.setdefault(frozenset(concepts), concepts)
    return list(found.values())


def prompt_of(concepts: tuple[str, ...]) -> str:
    """Return the user's turn that asks for a sentence with these concepts."""
    return f"Write one sentence with: {', '.join(concepts)}."


def make_concept_task(rng: random.Random, held_out: bool) -> Conversation:
    """Return a request for a sentence with some concepts, and such a sentence."""
    concepts, sentence = draw_concepts(rng, held_out)
    return ask(prompt_of(concepts), sentence)
