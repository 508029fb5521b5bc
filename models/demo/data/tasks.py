"""Short closed tasks: greetings, repeating, lists, small facts, and dates to ISO form. All text is
our own.
"""

import random

from models.demo.data.chat import Conversation, ask
from models.demo.data.records import person_name
from models.demo.data.words import (
    ANIMALS,
    COLORS,
    ITEMS,
    JOBS,
    MONTHS,
    NUMBER_WORDS,
    THINGS,
    TOYS,
    Pools,
    made_up,
    templates,
)

_TEMPLATES = templates("tasks")
_OPPOSITES: dict[str, str] = _TEMPLATES["opposites"]
FACTS: list[tuple[str, str]] = _TEMPLATES["facts"]
_LISTS = {
    "colors": _TEMPLATES["colors"],
    "animals": ANIMALS[:20],
    "toys": TOYS[:12],
    "fruits": _TEMPLATES["fruits"],
    "jobs": JOBS[:16],
    "names": _TEMPLATES["names"],
}


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
        return ask(rng.choice(_TEMPLATES["repeats"]).format(text=text), text)
    if kind < 0.6:
        return ask(*rng.choice(_TEMPLATES["greetings"]))
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
