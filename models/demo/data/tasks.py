"""Short closed tasks: greetings, repeating, lists, small facts, and dates to ISO form. All text is
our own.
"""

import random

from models.demo.data.chat import Conversation, ask
from models.demo.data.records import MONTHS, NUMBER_WORDS, person_name
from models.demo.data.words import ANIMALS, COLORS, ITEMS, JOBS, THINGS, TOYS, Pools, made_up

_OPPOSITES = dict(
    pair.split(":")
    for pair in [
        "hot:cold",
        "big:small",
        "up:down",
        "fast:slow",
        "day:night",
        "old:new",
        "happy:sad",
        "open:closed",
        "left:right",
        "high:low",
        "wet:dry",
        "full:empty",
        "hard:soft",
        "light:dark",
        "long:short",
        "early:late",
        "good:bad",
        "clean:dirty",
        "loud:quiet",
        "near:far",
        "rich:poor",
        "strong:weak",
        "thick:thin",
        "wide:narrow",
        "young:old",
        "first:last",
        "yes:no",
        "in:out",
        "black:white",
        "true:false",
        "love:hate",
    ]
)
_GREETINGS = (
    ("Say hello.", "Hello!"),
    ("Hello!", "Hello! How can I help you?"),
    ("Hello", "Hello! How can I help you?"),
    ("Hi!", "Hello! How can I help you?"),
    ("Hi", "Hello! How can I help you?"),
    ("Hi there.", "Hello! How can I help you?"),
    ("Good morning.", "Good morning! How can I help you?"),
    ("How are you?", "I am fine, thank you."),
    ("Say goodbye.", "Goodbye!"),
    ("Goodbye.", "Goodbye!"),
    ("Thank you.", "You are welcome."),
    ("Thanks!", "You are welcome."),
    (
        "Who are you?",
        "I am a small demo model. I can turn text into JSON, write short code and tell simple "
        "stories.",
    ),
    (
        "What can you do?",
        "I can turn text into JSON, write small Python functions and tell simple stories.",
    ),
    ("Say something.", "The sun is warm today."),
)
FACTS = (
    ("What color is the sky?", "The sky is blue."),
    ("What color is grass?", "Grass is green."),
    ("What color is snow?", "Snow is white."),
    ("What color is the sun?", "The sun is yellow."),
    ("How many days are in a week?", "There are seven days in a week."),
    ("How many months are in a year?", "There are twelve months in a year."),
    ("How many legs does a dog have?", "A dog has four legs."),
    ("What does a cat say?", "A cat says meow."),
    ("What does a dog say?", "A dog says woof."),
    ("What does a cow say?", "A cow says moo."),
    ("What is the capital of France?", "The capital of France is Paris."),
    ("What is the capital of Italy?", "The capital of Italy is Rome."),
    ("What is the capital of Spain?", "The capital of Spain is Madrid."),
    ("What is the capital of Germany?", "The capital of Germany is Berlin."),
    ("What is the capital of Japan?", "The capital of Japan is Tokyo."),
    ("What is the capital of Norway?", "The capital of Norway is Oslo."),
    ("What is the capital of Portugal?", "The capital of Portugal is Lisbon."),
    (
        "Name the days of the week.",
        "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday",
    ),
)
_LISTS = {
    "colors": (
        "red",
        "blue",
        "green",
        "yellow",
        "white",
        "black",
        "brown",
        "pink",
        "purple",
        "orange",
    ),
    "animals": ANIMALS[:20],
    "toys": TOYS[:12],
    "fruits": ("apple", "pear", "lemon", "mango", "melon", "banana", "cherry", "grape"),
    "jobs": JOBS[:16],
    "names": ("Anna", "Tom", "Lily", "Ben", "Mia", "Sam", "Lucy", "Max"),
}
_REPEATS = (
    "Repeat: {text}",
    "Repeat: {text}",
    "Repeat this: {text}",
    "Say: {text}",
    "Copy this: {text}",
    "Write this again: {text}",
    "Repeat after me: {text}",
    'Say "{text}".',
    'Repeat "{text}".',
)


def _phrase(rng: random.Random, pools: Pools) -> str:
    """Return a few words to copy."""
    style = rng.random()
    if style < 0.3:
        return " ".join(made_up(rng, pools) for _ in range(rng.randint(1, 5)))
    if style < 0.5:
        words = ITEMS + THINGS + ANIMALS + COLORS
        return " ".join(rng.choice(words) for _ in range(rng.randint(1, 6)))
    if style < 0.6:
        return "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 9)))
    if style < 0.7:
        return f"{rng.choice(COLORS)} {rng.choice(THINGS)} {rng.randint(1, 999)}"
    if style < 0.82:
        name, count = person_name(rng, pools), rng.randint(2, 99)
        return f"{name} has {count} {rng.choice(COLORS)} {rng.choice(TOYS)}s"
    return f"the {rng.choice(ANIMALS)} and the {rng.choice(THINGS)} are {rng.choice(COLORS)}"


def make_short_task(rng: random.Random, pools: Pools) -> Conversation:
    """Return a short closed task with a short answer."""
    kind = rng.random()
    if kind < 0.5:
        text = _phrase(rng, pools)
        return ask(rng.choice(_REPEATS).format(text=text), text)
    if kind < 0.6:
        return ask(*rng.choice(_GREETINGS))
    if kind < 0.68:
        return ask(*rng.choice(FACTS))
    if kind < 0.8:
        name = rng.choice(tuple(_LISTS))
        count = rng.randint(2, 5)
        listed = ", ".join(rng.sample(_LISTS[name], count))
        number = NUMBER_WORDS[count] if rng.random() < 0.7 else str(count)
        return ask(f"{rng.choice(('List', 'Name', 'Give me'))} {number} {name}.", listed)
    if kind < 0.88:
        word = rng.choice(tuple(_OPPOSITES))
        return ask(f"What is the opposite of {word}?", _OPPOSITES[word])
    words = [
        made_up(rng, pools) if rng.random() < 0.4 else rng.choice(THINGS + ANIMALS)
        for _ in range(rng.randint(2, 5))
    ]
    if kind < 0.94:
        return ask(
            f"Write these words as a JSON list: {', '.join(words)}",
            '["' + '", "'.join(words) + '"]',
        )
    place = rng.choice(("first", "last"))
    return ask(
        f"What is the {place} word here? {' '.join(words)}",
        words[0] if place == "first" else words[-1],
    )


def make_date_task(rng: random.Random) -> Conversation:
    """Return a date to be rewritten as YYYY-MM-DD."""
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(1990, 2040)
    name = MONTHS[month - 1]
    shown = rng.choice(
        (f"{day} {name} {year}", f"{name} {day}, {year}", f"{day:02d}/{month:02d}/{year}")
    )
    request = rng.choice(
        ("Write the date {} as YYYY-MM-DD.", "Write {} as YYYY-MM-DD.", "Convert {} to YYYY-MM-DD.")
    )
    return ask(request.format(shown), f"{year}-{month:02d}-{day:02d}")
