"""Questions that so small a model cannot answer, and answers that say so. All text is our own."""

import random

from models.demo.data.chat import Conversation, ask
from models.demo.data.records import city_name, person_name
from models.demo.data.tasks import FACTS
from models.demo.data.words import ANIMALS, ITEMS, JOBS, THINGS, Pools, made_up, plural, templates

ABILITIES = "I can turn text into JSON, write small Python functions and tell simple stories."
_TEMPLATES = templates("refusals")
# The request, and the answer's text before it names what the model can do.
_KINDS = (
    (_TEMPLATES["sums"], "I cannot do arithmetic."),
    (_TEMPLATES["unknown"], "I do not know that."),
    (_TEMPLATES["live"], "I cannot look that up or do that here."),
    (_TEMPLATES["translate"], "I cannot translate."),
    (_TEMPLATES["other"], "I cannot do that."),
)
_KNOWN = frozenset(question for question, _ in FACTS)


def make_refusal(rng: random.Random, pools: Pools) -> Conversation:
    """Return a question beyond the model, and an answer that says so and what it can do."""
    while True:
        requests, answer = rng.choice(_KINDS)
        high = rng.choice((12, 99, 999, 9999))
        a, b = rng.randint(1, high), rng.randint(1, high)
        question = rng.choice(requests).format(
            sum=f"{a}{rng.choice(_TEMPLATES['operators'])}{b}",
            a=a,
            b=b,
            c=rng.randint(1, 999),
            year=rng.randint(1500, 2030),
            name=person_name(rng, pools),
            place=city_name(rng, pools),
            other=city_name(rng, pools),
            thing=rng.choice(THINGS),
            word=made_up(rng, pools),
            animal=rng.choice(ANIMALS),
            animals=plural(rng.choice(ANIMALS)),
            items=plural(rng.choice(ITEMS)),
            job=rng.choice(JOBS),
            language=rng.choice(_TEMPLATES["languages"]),
        )
        if question not in _KNOWN:
            return ask(question, f"{answer} {ABILITIES}")
