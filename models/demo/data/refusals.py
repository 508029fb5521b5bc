"""Questions that so small a model cannot answer, and answers that say so. All text is our own."""

import random

from models.demo.data.chat import Conversation, ask
from models.demo.data.records import city_name, person_name
from models.demo.data.tasks import FACTS
from models.demo.data.words import ANIMALS, ITEMS, JOBS, THINGS, Pools, made_up, plural

ABILITIES = "I can turn text into JSON, write small Python functions and tell simple stories."
_OPERATORS = ("+", "-", "*", "/", " + ", " - ", " * ", " / ", " plus ", " minus ", " times ")
_SUMS = (
    "What is {sum}?",
    "What's {sum}?",
    "How much is {sum}?",
    "Calculate {sum}.",
    "{sum} = ?",
    "Solve {sum}.",
    "Solve for x: {a}x + {b} = {c}.",
    "What is {a} percent of {b}?",
    "What is the square root of {b}?",
    "{name} has {a} {items} and buys {b} more. How many {items} are there?",
    "A box holds {a} {items}. How many {items} are in {b} boxes?",
    "Is {b} a prime number?",
)
_UNKNOWN = (
    "Who is {name}?",
    "Who was {name}?",
    "Who invented the {thing}?",
    "Who wrote {word}?",
    "When was {name} born?",
    "What is the capital of {place}?",
    "How many people live in {place}?",
    "Where is {place}?",
    "How far is {place} from {other}?",
    "Why is the {thing} so {word}?",
    "Why do {animals} sleep?",
    "How old can a {animal} get?",
    "What does {word} mean?",
    "Explain how a {thing} works.",
    "Explain {word}.",
    "What is {word}?",
    "What is the best {thing}?",
    "How do I become a {job}?",
    "How do I cook {items}?",
    "What happened in {year}?",
    "Who is the president of {place}?",
    "What is the meaning of life?",
    "Tell me about {place}.",
    "Tell me something about {animals}.",
)
_LIVE = (
    "What is the weather in {place}?",
    "What's the weather like in {place} today?",
    "How is the weather in {place}?",
    "What time is it?",
    "What time is it in {place}?",
    "What day is today?",
    "What is the date today?",
    "What is in the news?",
    "Where is order {b}?",
    "Set a timer for {a} minutes.",
    "Send a message to {name}.",
    "Search the web for {word}.",
    "Turn on the light.",
    "Book a flight to {place}.",
)
_LANGUAGES = ("French", "German", "Spanish", "Italian", "Dutch", "Polish", "Chinese", "Japanese")
_TRANSLATE = (
    "Translate into {language}: the {animal} and the {thing}",
    "Translate this into {language}: {name} has {a} {items}.",
    "Say {thing} in {language}.",
    "How do you say {thing} in {language}?",
    "What is {thing} in {language}?",
)
_OTHER = (
    "Write a poem about the {thing}.",
    "Write an essay about {animals}.",
    "Write a letter to {name}.",
    "Tell me a joke.",
    "Sing a song.",
    "Summarize this text: {name} from {place} bought {a} {items}.",
    "Give me advice.",
    "Draw a {animal}.",
    "Play chess with me.",
    "Write a Java program.",
    "Write a web page about {word}.",
)
# The request, and the answer's text before it names what the model can do.
_KINDS = (
    (_SUMS, "I cannot do arithmetic."),
    (_UNKNOWN, "I do not know that."),
    (_LIVE, "I cannot look that up or do that here."),
    (_TRANSLATE, "I cannot translate."),
    (_OTHER, "I cannot do that."),
)
_KNOWN = frozenset(question for question, _ in FACTS)


def make_refusal(rng: random.Random, pools: Pools) -> Conversation:
    """Return a question beyond the model, and an answer that says so and what it can do."""
    while True:
        requests, answer = rng.choice(_KINDS)
        high = rng.choice((12, 99, 999, 9999))
        a, b = rng.randint(1, high), rng.randint(1, high)
        question = rng.choice(requests).format(
            sum=f"{a}{rng.choice(_OPERATORS)}{b}",
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
            language=rng.choice(_LANGUAGES),
        )
        if question not in _KNOWN:
            return ask(question, f"{answer} {ABILITIES}")
