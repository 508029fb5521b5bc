import json
import random

import jsonschema
import pytest

from models.demo.data.extraction import json_schema, make_extraction, make_record_task
from models.demo.data.records import KINDS, make_record
from models.demo.data.words import Pools, is_held_out, load_pools


def strings_in(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for entry in value.values() for text in strings_in(entry)]
    if isinstance(value, list):
        return [text for entry in value for text in strings_in(entry)]
    return []


@pytest.mark.parametrize("kind", KINDS)
def test_records_parse_and_copy_their_strings(kind: str, pools: Pools) -> None:
    rng = random.Random(5)
    for _ in range(200):
        record = make_record(rng, pools, kind)
        value = json.loads(record.to_json())
        assert list(value) == [key for key in KINDS[kind] if key in value]
        for text in strings_in(value):
            assert text in record.text


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "order"])
def test_records_satisfy_their_schema(kind: str, pools: Pools) -> None:
    record = make_record(random.Random(6), pools, kind)
    jsonschema.validate(json.loads(record.to_json()), json_schema(kind))


def test_orders_state_their_numbers(pools: Pools) -> None:
    rng = random.Random(7)
    for _ in range(200):
        record = make_record(rng, pools, "order")
        price = record.fields.get("price")
        if price is not None:
            assert price.removesuffix(".00") in record.text
            assert len(price.partition(".")[2]) == 2


def test_json_style_is_one_line_with_default_separators(pools: Pools) -> None:
    record = make_record(random.Random(8), pools, "contact")
    assert record.to_json() == json.dumps(json.loads(record.to_json()), ensure_ascii=False)


def test_same_seed_gives_same_text(pools: Pools) -> None:
    def draw(seed: int) -> list[object]:
        rng = random.Random(seed)
        return [make_extraction(rng, pools) for _ in range(50)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_answers_hold_the_named_fields_alone(pools: Pools) -> None:
    rng = random.Random(9)
    found = 0
    for _ in range(300):
        chat = make_extraction(rng, pools, kind="contact")
        answer = json.loads(chat.answer)
        if "Fields: " in chat.prompt:
            found += 1
            listed = chat.prompt.partition("Fields: ")[2]
            assert all(key in listed for key in answer)
    assert found


def test_held_out_words_and_combinations_differ_from_training(pools: Pools) -> None:
    other = load_pools(None, held_out=True)
    for name in ("first_names", "last_names", "cities", "items", "jobs", "animals"):
        assert not set(getattr(pools, name)) & set(getattr(other, name))
        assert all(is_held_out(word) for word in getattr(other, name))
    rng = random.Random(10)
    trained = {make_extraction(rng, pools).prompt for _ in range(500)}
    kept = {make_extraction(rng, pools, held_out=True).prompt for _ in range(500)}
    assert not trained & kept


def test_record_tasks_hold_json_on_one_side(pools: Pools) -> None:
    rng = random.Random(11)
    for _ in range(100):
        chat = make_record_task(rng, pools)
        text = chat.answer if chat.answer.startswith("{") else chat.turns[0][1].split("\n")[1]
        assert json.loads(text)
