import ast
import random

from models.demo.data.code import make_code
from models.demo.data.words import Pools


def test_answers_are_one_valid_function(pools: Pools) -> None:
    rng = random.Random(1)
    for _ in range(500):
        body = ast.parse(make_code(rng, pools).answer).body
        assert [type(node) for node in body] == [ast.FunctionDef]


def test_names_in_the_request_are_used(pools: Pools) -> None:
    rng = random.Random(2)
    chats = [make_code(rng, pools) for _ in range(300)]
    named = [chat for chat in chats if " Call it " in chat.prompt]
    assert named
    for chat in named:
        name = chat.turns[0][1].rpartition(" ")[2].rstrip(".")
        assert chat.answer.startswith(f"def {name}(")
