"""Requests for small Python functions with their answers, from templates of our own.

Invariant: every answer is valid Python, standard library only, indented by four spaces. Knows
nothing about tokens.
"""

import keyword
import random

from models.demo.data.chat import Conversation, ask
from models.demo.data.words import Pools, made_up

_REQUESTS = (
    "Write a Python function that {does}.",
    "Write a Python function that {does}.",
    "Write a function that {does}.",
    "Write a small Python function that {does}.",
    "Python function that {does}, please.",
    "Give me a Python function that {does}.",
    "In Python, write a function that {does}.",
)
_NAMED = ("{request} Call it {name}.", "{request} Name it {name}.", "{request} The name is {name}.")
_PAIRS = (("a", "b"), ("x", "y"), ("first", "second"), ("left", "right"), ("m", "n"))
_SINGLES = ("n", "x", "number", "value")
_LISTS = ("numbers", "values", "items", "data")
_TEXTS = ("text", "word", "name", "line")

# (what it does, function name, parameters, body); `{a}` and `{b}` are the parameter names.
_TWO = (
    ("adds two numbers", "add", "return {a} + {b}"),
    ("returns the sum of two numbers", "add", "return {a} + {b}"),
    ("subtracts two numbers", "subtract", "return {a} - {b}"),
    ("multiplies two numbers", "multiply", "return {a} * {b}"),
    ("returns the product of two numbers", "multiply", "return {a} * {b}"),
    ("divides two numbers", "divide", "return {a} / {b}"),
    ("returns the remainder of two numbers", "remainder", "return {a} % {b}"),
    ("returns the larger of two numbers", "maximum", "if {a} > {b}:\n    return {a}\nreturn {b}"),
    ("returns the smaller of two numbers", "minimum", "if {a} < {b}:\n    return {a}\nreturn {b}"),
    ("returns the average of two numbers", "average", "return ({a} + {b}) / 2"),
    ("returns the difference of two numbers", "difference", "return abs({a} - {b})"),
    ("checks if two numbers are equal", "is_equal", "return {a} == {b}"),
    ("swaps two values", "swap", "return {b}, {a}"),
    ("joins two strings", "join", "return {a} + {b}"),
    ("returns the area of a rectangle", "area", "return {a} * {b}"),
    (
        "returns the greatest common divisor of two numbers",
        "gcd",
        "while {b}:\n    {a}, {b} = {b}, {a} % {b}\nreturn {a}",
    ),
    ("raises one number to the power of another", "power", "return {a} ** {b}"),
)
_ONE = (
    ("doubles a number", "double", "return {a} * 2"),
    ("triples a number", "triple", "return {a} * 3"),
    ("squares a number", "square", "return {a} * {a}"),
    ("returns the cube of a number", "cube", "return {a} ** 3"),
    ("halves a number", "half", "return {a} / 2"),
    ("negates a number", "negate", "return -{a}"),
    ("checks if a number is even", "is_even", "return {a} % 2 == 0"),
    ("checks if a number is odd", "is_odd", "return {a} % 2 == 1"),
    ("checks if a number is positive", "is_positive", "return {a} > 0"),
    ("checks if a number is negative", "is_negative", "return {a} < 0"),
    (
        "returns the absolute value of a number",
        "absolute",
        "if {a} < 0:\n    return -{a}\nreturn {a}",
    ),
    (
        "returns the factorial of a number",
        "factorial",
        "result = 1\nfor i in range(1, {a} + 1):\n    result *= i\nreturn result",
    ),
    ("sums the numbers up to a number", "sum_to", "return sum(range({a} + 1))"),
    ("returns the next number", "next_number", "return {a} + 1"),
    (
        "checks if a number is prime",
        "is_prime",
        "if {a} < 2:\n    return False\n"
        "for i in range(2, {a}):\n    if {a} % i == 0:\n        return False\n"
        "return True",
    ),
    ("converts Celsius to Fahrenheit", "to_fahrenheit", "return {a} * 9 / 5 + 32"),
)
_OF_LIST = (
    ("returns the sum of a list", "total", "return sum({a})"),
    (
        "adds all numbers in a list",
        "total",
        "total = 0\nfor item in {a}:\n    total += item\nreturn total",
    ),
    ("returns the length of a list", "count", "return len({a})"),
    ("returns the largest number in a list", "largest", "return max({a})"),
    ("returns the smallest number in a list", "smallest", "return min({a})"),
    ("returns the average of a list", "average", "return sum({a}) / len({a})"),
    ("reverses a list", "reverse", "return {a}[::-1]"),
    ("sorts a list", "sort", "return sorted({a})"),
    ("returns the first item of a list", "first", "return {a}[0]"),
    ("returns the last item of a list", "last", "return {a}[-1]"),
    ("prints every item of a list", "show", "for item in {a}:\n    print(item)"),
    ("removes duplicates from a list", "unique", "return list(set({a}))"),
    (
        "returns the even numbers in a list",
        "evens",
        "return [item for item in {a} if item % 2 == 0]",
    ),
    ("doubles every number in a list", "double_all", "return [item * 2 for item in {a}]"),
    ("checks if a list is empty", "is_empty", "return len({a}) == 0"),
)
_OF_TEXT = (
    ("reverses a string", "reverse", "return {a}[::-1]"),
    ("returns the length of a string", "length", "return len({a})"),
    ("converts a string to upper case", "upper", "return {a}.upper()"),
    ("converts a string to lower case", "lower", "return {a}.lower()"),
    ("checks if a string is a palindrome", "is_palindrome", "return {a} == {a}[::-1]"),
    ("counts the words in a string", "count_words", "return len({a}.split())"),
    ("splits a string into words", "words", "return {a}.split()"),
    ("removes spaces from a string", "remove_spaces", 'return {a}.replace(" ", "")'),
    ("returns the first letter of a string", "first_letter", "return {a}[0]"),
    ("greets a person by name", "greet", 'return "Hello, " + {a} + "!"'),
    (
        "counts the vowels in a string",
        "count_vowels",
        "count = 0\n"
        'for letter in {a}:\n    if letter in "aeiou":\n        count += 1\n'
        "return count",
    ),
)


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
        does, name, body = rng.choice(_TWO)
        names: tuple[str, ...] = rng.choice(_PAIRS) if rng.random() < 0.5 else ("a", "b")
    elif group < 0.5:
        does, name, body = rng.choice(_ONE)
        names = (rng.choice(_SINGLES),)
    elif group < 0.65:
        does, name, body = _numbered(rng)
        names = () if "{a}" not in body else (rng.choice(_SINGLES),)
    elif group < 0.85:
        does, name, body = rng.choice(_OF_LIST)
        names = (rng.choice(_LISTS),)
    else:
        does, name, body = rng.choice(_OF_TEXT)
        names = (rng.choice(_TEXTS),)
    request = rng.choice(_REQUESTS).format(does=does)
    if rng.random() < 0.4:
        word = made_up(rng, pools)
        alone = f"{word}_it" if keyword.iskeyword(word) else word
        name = rng.choice((name, alone, f"{word}_{name}"))
        request = rng.choice(_NAMED).format(request=request, name=name)
    lines = body.format(a=names[0] if names else "", b=names[-1] if names else "").split("\n")
    code = f"def {name}({', '.join(names)}):\n" + "\n".join("    " + line for line in lines)
    return ask(request, code)
