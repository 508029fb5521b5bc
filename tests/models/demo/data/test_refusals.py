import random

from models.demo.data.refusals import ABILITIES, make_refusal
from models.demo.data.tasks import FACTS
from models.demo.data.words import Pools


def test_every_answer_says_no_and_what_can_be_asked(pools: Pools) -> None:
    chats = [make_refusal(random.Random(seed), pools) for seed in range(300)]
    assert all(chat.answer.endswith(ABILITIES) for chat in chats)
    assert all(" not " in chat.answer or "cannot" in chat.answer for chat in chats)
    assert len({chat.turns[0][1] for chat in chats}) > 250


def test_what_the_model_knows_is_not_refused(pools: Pools) -> None:
    known = {question for question, _ in FACTS}
    asked = {make_refusal(random.Random(seed), pools).turns[0][1] for seed in range(5000)}
    assert not known & asked
