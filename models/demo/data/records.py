"""Random records of a few kinds, each with a plain-English text that states it and its JSON.

The JSON has one style: one line, with keys in the order of `KINDS`. Separators are ", " and ": ",
and prices have two decimals. Text is copied as it stands in the prose, without escapes for letters
beyond ASCII. This is what `json.dumps(..., ensure_ascii=False)` writes, but for the second decimal.
Invariant: every string value occurs word for word in the text. Knows nothing about prompts or chat
turns.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from models.demo.data.words import (
    ADJECTIVES,
    COLORS,
    EVENTS,
    MONTHS,
    NUMBER_WORDS,
    WEEKDAYS,
    Pools,
    made_up,
    plural,
    templates,
)

SIZES = ("small", "medium", "large")
_ORDERS = templates("orders")
_TEMPLATES = templates("records")

# The content of each kind's record: key -> JSON type, in output order. A JSON schema follows from
# it.
KINDS: dict[str, dict[str, str]] = {
    "order": {
        "customer": "string",
        "item": "string",
        "quantity": "integer",
        "price": "number",
        "city": "string",
    },
    "contact": {"name": "string", "phone": "string", "email": "string", "city": "string"},
    "person": {"name": "string", "age": "integer", "job": "string", "city": "string"},
    "event": {"event": "string", "date": "string", "time": "string", "place": "string"},
    "product": {"product": "string", "color": "string", "price": "number", "stock": "integer"},
    "booking": {"guest": "string", "room": "integer", "nights": "integer", "breakfast": "boolean"},
    "shirt": {"customer": "string", "size": "enum", "color": "string", "express": "boolean"},
    "pet": {"name": "string", "animal": "string", "age": "integer", "owner": "string"},
    "basket": {"customer": "string", "items": "items"},
}


@dataclass(frozen=True)
class Record:
    """One record: kind, JSON literal of every field in order, prose, number of the phrasing."""

    kind: str
    fields: dict[str, str]
    text: str
    phrasing: int

    def to_json(self, keys: tuple[str, ...] | None = None) -> str:
        """Return the JSON line, of all fields or of `keys` alone."""
        chosen = (
            self.fields
            if keys is None
            else {key: self.fields[key] for key in self.fields if key in keys}
        )
        return "{" + ", ".join(f'"{key}": {literal}' for key, literal in chosen.items()) + "}"


def quoted(text: str) -> str:
    """Return the JSON string literal of `text`, letters beyond ASCII kept."""
    return json.dumps(text, ensure_ascii=False)


def person_name(rng: random.Random, pools: Pools) -> str:
    """Return a first name, or a first and last name; about a third of the words are made up."""
    first = made_up(rng, pools, True) if rng.random() < 0.35 else rng.choice(pools.first_names)
    if rng.random() < 0.45:
        return first
    last = made_up(rng, pools, True) if rng.random() < 0.4 else rng.choice(pools.last_names)
    if rng.random() < 0.04:
        last += "-" + rng.choice(pools.last_names)
    return f"{first} {last}"


def city_name(rng: random.Random, pools: Pools) -> str:
    """Return a city, a quarter of them made up."""
    if rng.random() < 0.3:
        return made_up(rng, pools, capital=True)
    return rng.choice(pools.cities)


def item_name(rng: random.Random, pools: Pools) -> str:
    """Return a singular item with up to two adjectives; a quarter of the nouns are made up."""
    noun = made_up(rng, pools) if rng.random() < 0.3 else rng.choice(pools.items)
    adjectives = rng.sample(ADJECTIVES, rng.choice((0, 0, 1, 1, 1, 2)))
    return " ".join((*adjectives, noun))


def counted(rng: random.Random, quantity: int, item: str) -> tuple[str, str]:
    """Return the words for `quantity` items and the item as written there."""
    if quantity == 1:
        word = rng.choice(("1", "one", "an" if item[0].lower() in "aeiou" else "a"))
        return word, item
    if quantity < len(NUMBER_WORDS) and rng.random() < 0.4:
        return NUMBER_WORDS[quantity], plural(item)
    return str(quantity), plural(item)


def small_number(rng: random.Random) -> int:
    """Return a quantity; small ones are more likely."""
    return rng.choice(
        (1, 1, 2, 2, 3, 3, 4, 5, 6, rng.randint(1, 12), rng.randint(7, 30), rng.randint(10, 500))
    )


def price_text(rng: random.Random) -> str:
    """Return a price with two decimals."""
    whole = rng.choice(
        (rng.randint(0, 9), rng.randint(1, 99), rng.randint(1, 99), rng.randint(100, 1999))
    )
    any_cents = [f"{rng.randint(0, 99):02d}" for _ in range(2)]
    return f"{whole}.{rng.choice(('00', '50', '99', '95', *any_cents))}"


def money(rng: random.Random, price: str) -> str:
    """Return a price as prose writes it; cents may be left out when they are zero."""
    shown = price[:-3] if price.endswith(".00") and rng.random() < 0.5 else price
    return rng.choice(
        (f"${shown}", f"${shown}", f"${shown}", f"{shown} dollars", f"{shown} USD", f"€{shown}")
    )


def make_order(rng: random.Random, pools: Pools) -> Record:
    """Return an order; one in ten states no price or no city."""
    quantity, price = small_number(rng), price_text(rng)
    customer, city = person_name(rng, pools), city_name(rng, pools)
    count, item = counted(rng, quantity, item_name(rng, pools))
    names = {
        "customer": customer,
        "city": city,
        "n": count,
        "item": item,
        "money": money(rng, price),
    }
    missing = None
    if rng.random() < 0.22:
        phrasing = rng.randrange(len(_ORDERS["forms"]))
        text = _ORDERS["forms"][phrasing].format(**names)
        if phrasing == 0:
            text = text.replace(f"Quantity: {count}", f"Quantity: {quantity}")
    else:
        missing = rng.choice(("price", "city")) if rng.random() < 0.12 else None
        phrasing, text = _compose_order(rng, names, missing)
    fields = {
        "customer": quoted(customer),
        "item": quoted(item),
        "quantity": str(quantity),
        "price": price,
        "city": quoted(city),
    }
    if missing is not None:
        del fields[missing]
    return Record("order", fields, text, phrasing)


def _compose_order(
    rng: random.Random, names: dict[str, str], missing: str | None
) -> tuple[int, str]:
    """Join an opening, a place and a price, the latter two inside it or in sentences after it."""
    first = rng.randrange(len(_ORDERS["openings"]))
    place = rng.randrange(len(_ORDERS["city_inline"]))
    cost = rng.randrange(len(_ORDERS["price_inline"]))
    opening = _ORDERS["openings"][first]
    later: list[str] = []
    inline = rng.random() < 0.6 and missing != "city"
    joined = _ORDERS["city_inline"][place] if inline else ""
    closing = (
        _ORDERS["price_inline"][cost] if rng.random() < 0.6 and not opening.endswith("?") else ""
    )
    closing = "" if missing == "price" else closing
    if not inline and missing != "city":
        later.append(rng.choice(_ORDERS["city_sentences"]))
    if not closing and missing != "price":
        later.append(rng.choice(_ORDERS["price_sentences"]))
    rng.shuffle(later)
    if opening.endswith(("{place}", "{place}?")) or "{place}:" in opening:
        joined = joined.rstrip(",")
    opening = opening.replace("{place}", joined).replace(
        "{to}", joined.rstrip(",").replace(" from", " in")
    )
    if rng.random() < 0.2:
        later.append(rng.choice(_ORDERS["closings"]))
    sentence = opening + closing + ("" if opening.endswith("?") else ".")
    text = " ".join((sentence, *later)).format(**names)
    if rng.random() < 0.12:
        text = f"{rng.choice(_ORDERS['greetings'])} {text}"
    return first * 100 + place * 10 + cost, text


def _contact(rng: random.Random, pools: Pools) -> tuple[dict[str, str], dict[str, str]]:
    name = person_name(rng, pools)
    user = rng.choice((name.lower().replace(" ", rng.choice((".", "_", ""))), made_up(rng, pools)))
    host = rng.choice((made_up(rng, pools), "example", "mail", "post", "work"))
    email = f"{user}@{host}.{rng.choice(('com', 'org', 'net', 'io'))}".replace("'", "")
    digits = "".join(rng.choice("0123456789") for _ in range(7))
    phone = rng.choice(
        (f"555-{digits[:4]}", f"{digits[:3]}-{digits[3:]}", digits, f"+{digits[:2]} {digits[2:]}")
    )
    values = {"name": name, "phone": phone, "email": email, "city": city_name(rng, pools)}
    return values, {key: quoted(value) for key, value in values.items()}


def _person(rng: random.Random, pools: Pools) -> tuple[dict[str, str], dict[str, str]]:
    values = {
        "name": person_name(rng, pools),
        "age": str(rng.randint(5, 98)),
        "job": rng.choice(pools.jobs),
        "city": city_name(rng, pools),
    }
    return values, {key: value if key == "age" else quoted(value) for key, value in values.items()}


def date_text(rng: random.Random) -> str:
    """Return a date in one of the forms that people write."""
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(2019, 2035)
    name = MONTHS[month - 1]
    forms = (
        f"{day} {name} {year}",
        f"{name} {day}",
        f"{day} {name}",
        f"{year}-{month:02d}-{day:02d}",
    )
    return rng.choice((*forms, f"{name} {day}, {year}", rng.choice(WEEKDAYS)))


def _event(rng: random.Random, pools: Pools) -> tuple[dict[str, str], dict[str, str]]:
    hour, minute = (
        rng.randint(0, 23),
        rng.choice(("00", "15", "30", "45", f"{rng.randint(0, 59):02d}")),
    )
    place = rng.choice(
        (
            city_name(rng, pools),
            f"room {rng.randint(1, 40)}",
            f"{made_up(rng, pools, capital=True)} Hall",
        )
    )
    values = {
        "event": rng.choice(EVENTS) if rng.random() < 0.8 else f"{made_up(rng, pools)} show",
        "date": date_text(rng),
        "time": rng.choice(
            (f"{hour:02d}:{minute}", f"{hour}:{minute}", f"{rng.randint(1, 12)} pm")
        ),
        "place": place,
    }
    return values, {key: quoted(value) for key, value in values.items()}


def _product(rng: random.Random, pools: Pools) -> tuple[dict[str, str], dict[str, str]]:
    price = price_text(rng)
    noun = made_up(rng, pools) if rng.random() < 0.35 else rng.choice(pools.items)
    texts = {"product": noun, "color": rng.choice(COLORS), "stock": str(rng.randint(2, 400))}
    literals = {
        "product": quoted(noun),
        "color": quoted(texts["color"]),
        "price": price,
        "stock": texts["stock"],
    }
    return texts | {"money": money(rng, price)}, literals


def _booking(rng: random.Random, pools: Pools) -> tuple[dict[str, str], dict[str, str]]:
    breakfast = rng.random() < 0.5
    nights = rng.randint(2, 12)
    texts = {
        "guest": person_name(rng, pools),
        "room": str(rng.randint(1, 999)),
        "nights": NUMBER_WORDS[nights] if rng.random() < 0.4 else str(nights),
        "breakfast": "with breakfast"
        if breakfast
        else rng.choice(("without breakfast", "no breakfast")),
        "yes": "yes" if breakfast else "no",
    }
    literals = {
        "guest": quoted(texts["guest"]),
        "room": texts["room"],
        "nights": str(nights),
        "breakfast": str(breakfast).lower(),
    }
    return texts, literals


def _shirt(rng: random.Random, pools: Pools) -> tuple[dict[str, str], dict[str, str]]:
    express = rng.random() < 0.5
    said = ("Send it by express.", "Express, please.", "It is urgent, use express.")
    unsaid = ("Normal delivery is fine.", "No express.", "There is no hurry.")
    texts = {
        "customer": person_name(rng, pools),
        "size": rng.choice(SIZES),
        "color": rng.choice(COLORS),
        "express": rng.choice(said if express else unsaid),
        "yes": "yes" if express else "no",
    }
    literals = {key: quoted(texts[key]) for key in ("customer", "size", "color")}
    return texts, literals | {"express": str(express).lower()}


def _pet(rng: random.Random, pools: Pools) -> tuple[dict[str, str], dict[str, str]]:
    name = (
        made_up(rng, pools, capital=True) if rng.random() < 0.5 else rng.choice(pools.first_names)
    )
    values = {
        "name": name,
        "animal": rng.choice(pools.animals),
        "age": str(rng.randint(1, 20)),
        "owner": person_name(rng, pools),
    }
    return values, {key: value if key == "age" else quoted(value) for key, value in values.items()}


_FILLERS: dict[str, Callable[[random.Random, Pools], tuple[dict[str, str], dict[str, str]]]] = {
    "contact": _contact,
    "person": _person,
    "event": _event,
    "product": _product,
    "booking": _booking,
    "shirt": _shirt,
    "pet": _pet,
}


def make_basket(rng: random.Random, pools: Pools) -> Record:
    """Return an order of one to three items, as a list of objects."""
    customer = person_name(rng, pools)
    pairs = []
    for _ in range(rng.randint(1, 3)):
        quantity = rng.choice((1, 2, 3, 4, 5, rng.randint(1, 12), rng.randint(2, 60)))
        count, item = counted(rng, quantity, item_name(rng, pools))
        pairs.append((count, item, quantity))
    shown = [f"{count} {item}" for count, item, _ in pairs]
    listed = shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1]
    openings = _ORDERS["baskets"]
    phrasing = rng.randrange(len(openings))
    items = ", ".join(
        f'{{"item": {quoted(item)}, "quantity": {quantity}}}' for _, item, quantity in pairs
    )
    text = openings[phrasing].format(customer, listed)
    return Record("basket", {"customer": quoted(customer), "items": f"[{items}]"}, text, phrasing)


def make_record(rng: random.Random, pools: Pools, kind: str) -> Record:
    """Return a random record of `kind` (a key of `KINDS`)."""
    if kind == "order":
        return make_order(rng, pools)
    if kind == "basket":
        return make_basket(rng, pools)
    texts, literals = _FILLERS[kind](rng, pools)
    phrasing = rng.randrange(len(_TEMPLATES[kind]))
    return Record(kind, literals, _TEMPLATES[kind][phrasing].format(**texts), phrasing)
