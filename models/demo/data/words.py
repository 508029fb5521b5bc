"""Word pools for the generated training text, split into a training part and a held-out part.

`word_lists.json` is written by this project, so the generators run with no outside text. It has
their templates too. Larger lists in the public domain are merged in when a corpus folder is given.
Invariant: a word is held out by a checksum of its spelling alone. So no seed or list order can move
it from one side to the other. Knows nothing about prompts or tokenizers.
"""

import json
import random
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORD_LISTS = "cc0_word_lists"  # folder of a corpus
HELD_OUT_MODULUS = 10  # one word in ten is kept for evaluation

_LISTS = json.loads((Path(__file__).parents[1] / "word_lists.json").read_text(encoding="utf-8"))
GIRLS: tuple[str, ...] = tuple(_LISTS["girls"])
BOYS: tuple[str, ...] = tuple(_LISTS["boys"])
LAST_NAMES: tuple[str, ...] = tuple(_LISTS["last_names"])
CITIES: tuple[str, ...] = tuple(_LISTS["cities"])
ITEMS: tuple[str, ...] = tuple(_LISTS["items"])
ADJECTIVES: tuple[str, ...] = tuple(_LISTS["adjectives"])
COLORS: tuple[str, ...] = tuple(_LISTS["colors"])
JOBS: tuple[str, ...] = tuple(_LISTS["jobs"])
ANIMALS: tuple[str, ...] = tuple(_LISTS["animals"])
TOYS: tuple[str, ...] = tuple(_LISTS["toys"])
PLACES: tuple[str, ...] = tuple(_LISTS["places"])
THINGS: tuple[str, ...] = tuple(_LISTS["things"])
EVENTS: tuple[str, ...] = tuple(_LISTS["events"])
ONSETS: tuple[str, ...] = tuple(_LISTS["onsets"])
VOWELS: tuple[str, ...] = tuple(_LISTS["vowels"])
CODAS: tuple[str, ...] = tuple(_LISTS["codas"])
GLUED_WORDS: tuple[str, ...] = tuple(_LISTS["glued_words"])
NUMBER_WORDS: tuple[str, ...] = tuple(_LISTS["number_words"])
MONTHS: tuple[str, ...] = tuple(_LISTS["months"])
WEEKDAYS: tuple[str, ...] = tuple(_LISTS["weekdays"])

_CORPUS_LISTS = {
    "first_names": ("humans/firstNames.json",),
    "last_names": ("humans/lastNames.json",),
    "cities": ("geography/us_cities.json", "geography/english_towns_cities.json"),
    "items": (
        "objects/clothing.json",
        "technology/appliances.json",
        "foods/fruits.json",
        "foods/vegetables.json",
    ),
    "jobs": ("humans/occupations.json",),
    "animals": ("animals/common.json",),
}


@dataclass(frozen=True)
class Pools:
    """Words for one side of the split; every tuple is sorted and free of duplicates."""

    first_names: tuple[str, ...]
    last_names: tuple[str, ...]
    cities: tuple[str, ...]
    items: tuple[str, ...]
    jobs: tuple[str, ...]
    animals: tuple[str, ...]
    held_out: bool = False
    pieces: tuple[str, ...] = ()  # letters that a tokenizer spells with one token; see `made_up`


def templates(kind: str) -> dict[str, Any]:
    """Return the templates of one kind of text, by name; fields are in braces."""
    found: dict[str, Any] = _LISTS["templates"][kind]
    return found


def is_held_out(text: str) -> bool:
    """Return whether a word is for evaluation, by a checksum of its lower-case spelling."""
    return zlib.crc32(text.lower().encode()) % HELD_OUT_MODULUS == 0


def load_pools(corpus: Path | None, held_out: bool) -> Pools:
    """Merge our own lists with those under `corpus` and keep one side of the split.

    Args:
        corpus: folder that holds `cc0_word_lists/`, or None for our own lists alone.
        held_out: True for the evaluation words, False for the training words.
    """
    own = {
        "first_names": GIRLS + BOYS,
        "last_names": LAST_NAMES,
        "cities": CITIES,
        "items": ITEMS,
        "jobs": JOBS,
        "animals": ANIMALS,
    }
    merged: dict[str, tuple[str, ...]] = {}
    for name, words in own.items():
        extra = [] if corpus is None else _read_lists(corpus, _CORPUS_LISTS[name])
        chosen = sorted({word for word in (*words, *extra) if is_held_out(word) == held_out})
        merged[name] = tuple(chosen)
    return Pools(**merged, held_out=held_out)


def _read_lists(corpus: Path, names: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for name in names:
        path = corpus / WORD_LISTS / name
        if path.exists():
            found.extend(_strings(json.loads(path.read_text(encoding="utf-8"))))
    return found


def _strings(node: object) -> list[str]:
    """Collect list entries that look like plain short phrases; titles are not in lists."""
    if isinstance(node, dict):
        if isinstance(node.get("city"), str):
            return _strings([node["city"]])
        return [
            word for value in node.values() if isinstance(value, list) for word in _strings(value)
        ]
    if not isinstance(node, list):
        return []
    words = []
    for entry in node:
        if isinstance(entry, str):
            if (
                len(entry) <= 24
                and entry.replace(" ", "").replace("-", "").replace("'", "").isalpha()
            ):
                words.append(entry)
        else:
            words.extend(_strings(entry))
    return words


def random_word(rng: random.Random) -> str:
    """Return a pronounceable lower-case word that is most likely in no list."""
    count = rng.choice((1, 2, 2, 2, 3))
    return "".join(
        rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(count)
    )


def made_up(rng: random.Random, pools: Pools, capital: bool = False) -> str:
    """Return a word that is in no list, from syllables or from the pools' pieces.

    Words from pieces make training copy every token now and then. If there were none, a token that
    only held-out words use would never be copied. The model would take another for it.
    """
    while True:
        word = random_word(rng)
        if pools.pieces and rng.random() < 0.6:
            word = "".join(rng.choice(pools.pieces) for _ in range(rng.choice((1, 1, 2, 2, 3))))
        if capital:
            word = word[0].upper() + word[1:]
        if is_held_out(word) == pools.held_out and word not in GLUED_WORDS:
            return word


def article(noun: str) -> str:
    """Return the noun with its indefinite article."""
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"


def plural(noun: str) -> str:
    """Return a regular English plural of the head noun (before `of`)."""
    head, of, rest = noun.partition(" of ")
    if head.endswith(("ss", "x", "ch", "sh", "z")):
        head += "es"
    elif head.endswith("s"):
        pass  # most list entries in -s are plurals already
    elif head.endswith("y") and head[-2:-1] not in "aeiou":
        head = head[:-1] + "ies"
    elif head == "loaf":
        head = "loaves"
    elif head == "shelf":
        head = "shelves"
    elif head == "knife":
        head = "knives"
    else:
        head += "s"
    return head + of + rest
