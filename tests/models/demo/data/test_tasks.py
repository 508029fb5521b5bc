import random
from datetime import date

from models.demo.data.tasks import make_date_task, make_short_task
from models.demo.data.words import Pools


def test_dates_are_real_and_iso() -> None:
    rng = random.Random(1)
    for _ in range(100):
        assert date.fromisoformat(make_date_task(rng).answer).year >= 1990


def test_repeat_tasks_copy(pools: Pools) -> None:
    rng = random.Random(2)
    chats = [make_short_task(rng, pools) for _ in range(200)]
    repeats = [chat for chat in chats if chat.turns[0][1].startswith("Repeat: ")]
    assert repeats
    assert all(chat.turns[0][1] == f"Repeat: {chat.answer}" for chat in repeats)
    assert all(chat.answer for chat in chats)
