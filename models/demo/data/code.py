"""Requests for small Python functions with their answers, from templates of our own.

Invariant: every answer is valid Python, standard library only, indented by four spaces. Knows
nothing about tokens.
"""

import keyword
import random
from collections.abc import Sequence

from models.demo.data.chat import Conversation, ask
from models.demo.data.words import Pools, made_up, templates

# A function of `two`, `one`, `of_list` or `of_text`: what it does, its name and its body, in which
# `{a}` and `{b}` are the parameters.
_TEMPLATES = templates("code")


def _numbered(rng: random.Random) -> tuple[str, str, str]:
    """Return a task with a number in it, which the answer has to copy."""
    number = rng.choice((rng.randint(2, 12), rng.randint(2, 1000)))
    return rng.choice(
        (
            (f"adds {number} to a number", f"add_{number}", f"return {{a}} + {number}"),
            (f"subtracts {number} from a number", f"subtract_{number}", f"return {{a}} - {number}"),
            (f"multiplies a number by {number}", f"times_{number}", f"return {{a}} * {number}"),
            (f"divides a number by {number}", f"divide_by_{number}", f"return {{a}} / {number}"),
            (
                f"checks if a number is divisible by {number}",
                f"is_divisible_by_{number}",
                f"return {{a}} % {number} == 0",
            ),
            (
                f"checks if a number is greater than {number}",
                f"is_greater_than_{number}",
                f"return {{a}} > {number}",
            ),
            (f"returns {number}", "constant", f"return {number}"),
            (
                f"prints hello {number} times",
                "hello",
                f'for i in range({number}):\n    print("hello")',
            ),
        )
    )


def make_code(rng: random.Random, pools: Pools) -> Conversation:
    """Return a request for a function and the function."""
    group = rng.random()
    if group < 0.3:
        does, name, body = rng.choice(_TEMPLATES["two"])
        names: Sequence[str] = rng.choice(_TEMPLATES["pairs"]) if rng.random() < 0.5 else ("a", "b")
    elif group < 0.5:
        does, name, body = rng.choice(_TEMPLATES["one"])
        names = (rng.choice(_TEMPLATES["singles"]),)
    elif group < 0.65:
        does, name, body = _numbered(rng)
        names = () if "{a}" not in body else (rng.choice(_TEMPLATES["singles"]),)
    elif group < 0.85:
        does, name, body = rng.choice(_TEMPLATES["of_list"])
        names = (rng.choice(_TEMPLATES["lists"]),)
    else:
        does, name, body = rng.choice(_TEMPLATES["of_text"])
        names = (rng.choice(_TEMPLATES["texts"]),)
    request = rng.choice(_TEMPLATES["requests"]).format(does=does)
    if rng.random() < 0.4:
        word = made_up(rng, pools)
        alone = f"{word}_it" if keyword.iskeyword(word) else word
        name = rng.choice((name, alone, f"{word}_{name}"))
        request = rng.choice(_TEMPLATES["named"]).format(request=request, name=name)
    lines = body.format(a=names[0] if names else "", b=names[-1] if names else "").split("\n")
    code = f"def {name}({', '.join(names)}):\n" + "\n".join("    " + line for line in lines)
    return ask(request, code)
