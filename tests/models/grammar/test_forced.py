"""Forced tokens are those of the canonical text, for a byte-level BPE and for the demo's tokenizer.

The reference is the whole text, encoded at once: at any place within it, what is forced there must
be the next tokens of it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from models.protocol.forced import NOTHING_FORCED, Forced
from models.protocol.messages import Grammar
from tests.cases.grammar import Vocabulary, json_schema

DEMO_TOKENIZER = Path(__file__).parents[3] / "models" / "demo" / "target" / "tokenizer.json"
PLENTY = 64


def object_of(**properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT = {"type": "string"}
TEXTS = {
    "long keys": (
        object_of(customer_full_name=TEXT, ordered_quantity={"type": "integer"}, city=TEXT),
        {"customer_full_name": "Imogen Park", "ordered_quantity": 62, "city": "K\u00f6ln"},
    ),
    "enum and const": (
        object_of(
            status={"enum": ["received", "processing", "done"]}, kind={"const": 'a "point" \u00fc'}
        ),
        {"status": "processing", "kind": 'a "point" \u00fc'},
    ),
    "nested": (
        object_of(order=object_of(item=TEXT, price={"type": "number"}), tags={"const": [1, "b"]}),
        {"order": {"item": "lamp", "price": 6.25}, "tags": [1, "b"]},
    ),
}


@pytest.fixture(scope="module", params=["bpe", "demo"])
def cutter(request: pytest.FixtureRequest, vocabulary: Vocabulary) -> Vocabulary:
    if request.param == "bpe":
        return vocabulary
    tokenizer = Tokenizer.from_file(str(DEMO_TOKENIZER))
    return Vocabulary(tokenizer, tokenizer.get_vocab_size(), (0,))


def forced_along(vocabulary: Vocabulary, grammar: Grammar, ids: list[int]) -> list[Forced]:
    """What is forced before each of `ids` and after the last."""
    state = vocabulary.compiler().compile(grammar).start()
    forced = [state.forced([], PLENTY)]
    for at, token in enumerate(ids):
        assert state.advance(token)
        forced.append(state.forced(ids[at : at + 1], PLENTY))
    return forced


@pytest.mark.parametrize("name", TEXTS)
def test_forced_tokens_are_the_next_ones_of_the_whole_text(cutter: Vocabulary, name: str) -> None:
    schema, value = TEXTS[name]
    ids = cutter.encode(json.dumps(value, ensure_ascii=False))
    forced = forced_along(cutter, json_schema(schema), ids)
    for at, here in enumerate(forced):
        settled = here.tokens[: here.num_settled]
        assert settled == ids[at : at + len(settled)], (at, cutter.decode(settled))
    # In rounds that draft what is forced, each brings that and one token of the model's own.
    num_rounds, at = 0, 0
    while at < len(ids):
        tokens = forced[at].tokens
        assert tokens == ids[at : at + len(tokens)], (at, cutter.decode(tokens))
        at += len(tokens) + 1
        num_rounds += 1
    assert num_rounds < len(ids) / 1.5


def test_the_edge_is_what_may_merge_with_what_follows(cutter: Vocabulary) -> None:
    """After a key comes `": "`, and then whatever the string begins with."""
    ids = cutter.encode('{"city')
    forced = forced_along(cutter, json_schema(object_of(city=TEXT)), ids)[-1]
    assert cutter.decode(forced.tokens) == '": "'
    assert forced.num_settled < len(forced.tokens)


def test_a_text_that_is_cut_unusually_goes_on_canonically(cutter: Vocabulary) -> None:
    """Here every byte of the text so far is a token of its own."""
    grammar = json_schema(object_of(customer_name=TEXT))
    pieces = [cutter.encode(char)[0] for char in '{"cust']
    forced = forced_along(cutter, grammar, pieces)[-1]
    assert cutter.decode(forced.tokens) == 'omer_name": "'
    assert forced.tokens[: forced.num_settled]


def test_half_a_character_may_be_forced(cutter: Vocabulary) -> None:
    """Both choices begin with the first two of four bytes."""
    grammar = Grammar(kind="choice", text=json.dumps(["\U0001f600!", "\U0001f700!"]))
    forced = forced_along(cutter, grammar, [])[0]
    state = cutter.compiler().compile(grammar).start()
    assert forced.tokens
    assert all(state.advance(token) for token in forced.tokens)


def test_no_more_than_asked_for_and_nothing_where_all_is_open(cutter: Vocabulary) -> None:
    compiled = cutter.compiler().compile(json_schema(object_of(customer_full_name=TEXT)))
    state = compiled.start()
    everything = state.forced([], PLENTY)
    for most in range(len(everything.tokens) + 2):
        fewer = state.forced([], most)
        assert fewer.tokens == everything.tokens[:most]
        assert fewer.num_settled == min(everything.num_settled, most)
    opened = cutter.encode('{"customer_full_name": "Im')
    assert forced_along(cutter, json_schema(object_of(customer_full_name=TEXT)), opened)[-1] == (
        NOTHING_FORCED
    )


def test_nothing_is_forced_where_the_text_may_end(cutter: Vocabulary) -> None:
    grammar = Grammar(kind="choice", text=json.dumps(["yes", "yes please"]))
    yes, please = cutter.encode("yes"), cutter.encode("yes please")
    assert forced_along(cutter, grammar, yes)[-1] == NOTHING_FORCED
    state = cutter.compiler().compile(grammar).start()
    assert all(state.advance(token) for token in please)
    assert state.forced(please[-1:], PLENTY) == NOTHING_FORCED
    assert state.advance(cutter.eos_ids[0])
    assert state.forced(cutter.eos_ids[:1], PLENTY) == NOTHING_FORCED


def test_an_eos_that_is_written_out_is_not_forced(vocabulary: Vocabulary) -> None:
    name = vocabulary.tokenizer.id_to_token(vocabulary.eos_ids[0])
    grammar = json_schema({"const": f"ab {name} cd"})
    state = vocabulary.compiler().compile(grammar).start()
    forced = state.forced([], PLENTY)
    assert forced.tokens
    assert vocabulary.eos_ids[0] not in forced.tokens


def test_asking_leaves_the_state_as_it_was(cutter: Vocabulary) -> None:
    schema, value = TEXTS["nested"]
    ids = cutter.encode(json.dumps(value))
    compiled = cutter.compiler().compile(json_schema(schema))
    asked, untouched = compiled.start(), compiled.start()
    for at, token in enumerate(ids):
        asked.forced(ids[max(0, at - 1) : at], PLENTY)
        assert asked.row() == untouched.row()
        assert asked.advance(token)
        assert untouched.advance(token)
    asked.truncate(3)
    untouched.truncate(3)
    assert asked.row() == untouched.row()


def test_what_is_forced_without_an_end_is_cut(vocabulary: Vocabulary) -> None:
    """The walk ends where the matcher's limit on its work is."""
    endless = Grammar(kind="lark", text='start: "the cat " start')
    state = vocabulary.compiler().compile(endless).start()
    text = vocabulary.encode("the cat " * PLENTY)
    assert state.forced([], PLENTY) == Forced(text[:PLENTY], PLENTY)
