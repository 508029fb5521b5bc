"""The functions that the demo pair learns to call: what they are named, asked for and return.

Invariant: every argument of a call stands word for word in the request. Exceptions are enumerated
ones, and items, which are in the singular.
"""

import random

from models.demo.data.records import city_name, date_text, item_name, person_name
from models.demo.data.tools import Parameter, ToolKind, Values
from models.demo.data.words import COLORS, Pools, made_up, plural

_SKY = ("sunny", "cloudy", "rainy", "windy", "snowy", "clear", "foggy", "warm", "cold")
_OPERATORS = {"+": ("plus", "+"), "-": ("minus", "-"), "*": ("times", "*"), "/": ("over", "/")}


def _weather(rng: random.Random, pools: Pools) -> Values:
    return {
        "city": city_name(rng, pools),
        "sky": rng.choice(_SKY),
        "degrees": rng.randint(-15, 38),
        **({"unit": rng.choice(("celsius", "fahrenheit"))} if rng.random() < 0.3 else {}),
    }


def _sum(rng: random.Random, _: Pools) -> Values:
    high = rng.choice((12, 99, 999))
    a, b = rng.randint(1, high), rng.randint(1, high)
    operator = rng.choice(tuple(_OPERATORS))
    result = {"+": a + b, "-": a - b, "*": a * b, "/": round(a / b, 2)}[operator]
    said = rng.choice(_OPERATORS[operator])
    return {"a": a, "b": b, "operator": operator, "said": said, "result": result}


def _timer(rng: random.Random, pools: Pools) -> Values:
    return {"minutes": rng.randint(1, 90), "label": made_up(rng, pools)}


def _message(rng: random.Random, pools: Pools) -> Values:
    words = [made_up(rng, pools) for _ in range(rng.randint(1, 2))]
    text = rng.choice(
        (
            "I am late",
            "see you soon",
            "happy birthday",
            f"bring the {' '.join(words)}",
            f"I am in {city_name(rng, pools)}",
            f"call me on {date_text(rng)}",
        )
    )
    return {"to": person_name(rng, pools), "text": text}


def _order(rng: random.Random, pools: Pools) -> Values:
    item, quantity = item_name(rng, pools), rng.choice((rng.randint(2, 12), rng.randint(2, 400)))
    return {
        "customer": person_name(rng, pools),
        "item": item,
        "items": plural(item),
        "quantity": quantity,
        "number": rng.randint(100, 99999),
    }


def _status(rng: random.Random, _: Pools) -> Values:
    letters = rng.choice(("", "A", "B-", "X", "ORD-"))
    number = f"{letters}{rng.randint(10, 999999)}"
    return {"id": number, "state": rng.choice(("shipped", "ready", "lost", "on its way", "open"))}


def _light(rng: random.Random, pools: Pools) -> Values:
    room = rng.choice(("kitchen", "hall", "garden", "bath", "office", made_up(rng, pools)))
    return {"room": room, "color": rng.choice(COLORS)}


_CITY = Parameter(("city", "location", "city", "place", "town"), "string", "Name of the city")
KINDS = (
    ToolKind(
        ("get_weather", "weather", "get_current_weather", "current_weather", "check_weather"),
        "Get the weather in a city.",
        {
            "city": _CITY,
            "unit": Parameter(
                ("unit", "units"), "string", "Unit", ("celsius", "fahrenheit"), is_required=False
            ),
        },
        _weather,
        (
            "What is the weather in {city}?",
            "What's the weather in {city}?",
            "What is the weather like in {city} today?",
            "How is the weather in {city}?",
            "Weather in {city}, please.",
            "Is it warm in {city}?",
            "Tell me the weather in {city}.",
        ),
        (
            ("{sky}, {degrees} degrees", "The weather in {city} is {sky}, {degrees} degrees."),
            (
                '{{"sky": "{sky}", "degrees": {degrees}}}',
                "The weather in {city} is {sky}, {degrees} degrees.",
            ),
            ('{{"temperature": {degrees}}}', "The temperature in {city} is {degrees} degrees."),
            ("{degrees}", "The temperature in {city} is {degrees} degrees."),
        ),
    ),
    ToolKind(
        ("calculate", "calculator", "compute", "arithmetic"),
        "Calculate with two numbers.",
        {
            "a": Parameter(("a", "x", "first"), "number", "First number"),
            "operator": Parameter(
                ("operator", "operation", "op"), "string", "What to do", ("+", "-", "*", "/")
            ),
            "b": Parameter(("b", "y", "second"), "number", "Second number"),
        },
        _sum,
        ("What is {a} {said} {b}?", "Calculate {a} {said} {b}.", "How much is {a} {said} {b}?"),
        (("{result}", "The result is {result}."), ('{{"result": {result}}}', "It is {result}.")),
    ),
    ToolKind(
        ("set_timer", "start_timer", "timer"),
        "Start a timer.",
        {"minutes": Parameter(("minutes", "duration", "length"), "integer", "Minutes")},
        _timer,
        (
            "Set a timer for {minutes} minutes.",
            "Start a timer of {minutes} minutes.",
            "Wake me up in {minutes} minutes.",
        ),
        (("ok", "The timer is set for {minutes} minutes."),),
    ),
    ToolKind(
        ("send_message", "send_text", "message", "send_sms"),
        "Send a message to a person.",
        {
            "to": Parameter(("to", "recipient", "name"), "string", "Who gets it"),
            "text": Parameter(("text", "message", "body"), "string", "What it says"),
        },
        _message,
        (
            'Tell {to}: "{text}".',
            "Send a message to {to}: {text}",
            "Send {to} the message: {text}",
            'Write to {to}: "{text}"',
        ),
        (
            ("sent", "I sent the message to {to}."),
            ('{{"sent": true}}', "I sent the message to {to}."),
        ),
    ),
    ToolKind(
        ("create_order", "place_order", "order_item", "add_order"),
        "Order items for a customer.",
        {
            "customer": Parameter(("customer", "name", "client"), "string", "Who orders"),
            "item": Parameter(("item", "product", "article"), "string", "What, singular"),
            "quantity": Parameter(("quantity", "count", "amount"), "integer", "How many"),
        },
        _order,
        (
            "{customer} wants {quantity} {items}.",
            "Order {quantity} {items} for {customer}.",
            "Please order {quantity} {items} for {customer}.",
            "{customer} ordered {quantity} {items}.",
        ),
        (
            ("{number}", "The order of {customer} has the number {number}."),
            ('{{"order": {number}}}', "The order of {customer} has the number {number}."),
        ),
    ),
    ToolKind(
        ("get_order", "order_status", "find_order", "get_order_status"),
        "Get the status of an order.",
        {"id": Parameter(("order_id", "id", "order", "number"), "string", "Number of the order")},
        _status,
        (
            "Where is order {id}?",
            "What is the status of order {id}?",
            "Look up order {id}.",
            "Has order {id} been sent?",
        ),
        (
            ("{state}", "Order {id} is {state}."),
            ('{{"status": "{state}"}}', "Order {id} is {state}."),
        ),
    ),
    ToolKind(
        ("set_light", "set_color", "light", "change_light"),
        "Set the color of a light.",
        {
            "room": Parameter(("room", "light", "place"), "string", "Which room"),
            "color": Parameter(("color", "colour"), "string", "Which color"),
        },
        _light,
        (
            "Make the light in the {room} {color}.",
            "Turn the {room} light {color}.",
            "Set the light in the {room} to {color}.",
        ),
        (("done", "The light in the {room} is {color}."),),
    ),
)
