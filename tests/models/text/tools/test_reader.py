"""Turns are read the same however their text is cut."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from models.text.tools.formats import HERMES, PLAIN_JSON
from models.text.tools.layout import ToolLayout
from models.text.tools.reader import ArgumentsPart, CallBegun, Piece, Said, Thought, TurnReader
from models.text.tools.reasoning import REASONING
from models.text.tools.turn import Turn
from tests.cases.tools.turns import ALL_LAYOUTS, LAYOUT_IDS, cases_of, turn_of

_NUM_SPLITS = 40


def read(turn: Turn, parts: Sequence[str]) -> tuple[str, str, list[tuple[str, str]], int]:
    reader = TurnReader(turn)
    pieces: list[Piece] = []
    for part in parts:
        pieces += reader.push(part)
    pieces += reader.end()
    said = "".join(piece.text for piece in pieces if isinstance(piece, Said))
    thought = "".join(piece.text for piece in pieces if isinstance(piece, Thought))
    calls: list[tuple[str, str]] = []
    for piece in pieces:
        if isinstance(piece, CallBegun):
            assert piece.index == len(calls)
            calls.append((piece.name, ""))
        elif isinstance(piece, ArgumentsPart):
            name, arguments = calls[piece.index]
            calls[piece.index] = (name, arguments + piece.text)
    return said, thought, calls, reader.num_calls


def cut(text: str, randomness: random.Random) -> list[str]:
    places = sorted(randomness.sample(range(len(text) + 1), min(len(text), 12)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("layout", ALL_LAYOUTS, ids=LAYOUT_IDS)
@pytest.mark.parametrize("number", range(16))
def test_a_turn_is_read_the_same_however_it_is_cut(layout, number):
    case = cases_of(layout)[number]
    wanted = (case.said, case.thought, case.calls, len(case.calls))
    assert read(case.turn, [case.text]) == wanted
    assert read(case.turn, list(case.text)) == wanted
    randomness = random.Random(number)
    for _ in range(_NUM_SPLITS):
        assert read(case.turn, cut(case.text, randomness)) == wanted


@pytest.mark.parametrize("layout", ALL_LAYOUTS, ids=LAYOUT_IDS)
def test_a_turn_that_was_cut_off_is_read_the_same_however_its_text_is_cut(layout):
    randomness = random.Random(1)
    for case in cases_of(layout):
        text = case.text[: randomness.randrange(len(case.text))]
        whole = read(case.turn, [text])
        assert read(case.turn, list(text)) == whole
        assert whole[0].strip() in case.text  # which may be the beginning of a sign
        assert [name for name, _ in whole[2]] == [name for name, _ in case.calls[: len(whole[2])]]
        for (_, some), (_, arguments) in zip(whole[2], case.calls, strict=False):
            assert arguments.startswith(some)


def test_arguments_come_out_as_their_text_comes():
    reader = TurnReader(turn_of(HERMES, must_call=True))
    assert reader.push('<tool_call>\n{"name": "get') == []
    assert reader.push('_weather", "arguments": {"ci') == [
        CallBegun(0, "get_weather"),
        ArgumentsPart(0, '{"ci'),
    ]
    assert reader.push('ty": "}') == [ArgumentsPart(0, 'ty": "}')]
    assert reader.num_calls == 0
    assert reader.push('"}}\n</tool_call>') == [ArgumentsPart(0, '"}')]
    assert reader.num_calls == 1


def test_text_that_only_looks_like_a_call_is_text():
    turn = turn_of(PLAIN_JSON)
    text = 'An object: {"name": "x"}, or\n {"name": "y"} and {"name'
    assert read(turn, list(text)) == (text, "", [], 0)


def test_text_that_ends_within_a_sign_is_text():
    assert read(turn_of(HERMES), ["See <tool", "_ca"]) == ("See <tool_ca", "", [], 0)


BODIES = [
    '{"name": "Ann", "age": 3}',
    '{"name": "get_weather", "age": 3}',  # the name of a tool
    '{"name": "get_weather", "arg',  # cut off
    " yes ",
    "\nno",
]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("layout", ALL_LAYOUTS, ids=LAYOUT_IDS)
def test_a_body_is_itself_though_it_may_begin_like_a_call(layout: ToolLayout, body: str) -> None:
    turn = replace(turn_of(layout), body="BODY")
    assert read(turn, [body]) == read(turn, list(body)) == (body, "", [], 0)
    reasoning = replace(turn, reasoning=REASONING["qwen3"], reasoning_start="optional")
    bare = body.lstrip()
    for text in (f"<think>So</think>\n \n{bare}", f"<think>So</think>{bare}"):
        assert read(reasoning, [text]) == read(reasoning, list(text)) == (bare, "So", [], 0)


@pytest.mark.parametrize("layout", ALL_LAYOUTS, ids=LAYOUT_IDS)
@pytest.mark.parametrize("thought", ["", "<think>So</think>\n\n"])
def test_a_call_in_the_place_of_a_body_is_a_call(layout: ToolLayout, thought: str) -> None:
    call = layout.opening + layout.before_name + "get_weather" + layout.before_arguments
    text = thought + call + "{}" + layout.after + layout.closing
    turn = replace(
        turn_of(layout), body="BODY", reasoning=REASONING["qwen3"], reasoning_start="optional"
    )
    wanted = ("", "So" if thought else "", [("get_weather", "{}")], 1)
    assert read(turn, [text]) == read(turn, list(text)) == wanted


def test_white_space_is_held_until_text_follows():
    reader = TurnReader(turn_of(HERMES))
    assert reader.push("\n Well \n") == [Said("Well")]
    assert reader.push("so") == [Said(" \nso")]
    assert reader.push(" ") == []
    assert reader.end() == [Said(" ")]


def test_reasoning_that_never_ends_is_all_there_is():
    turn = Turn(layout=HERMES, reasoning=REASONING["qwen3"], reasoning_start="open")
    assert read(turn, list("First, </thin or so ")) == ("", "First, </thin or so", [], 0)


def test_a_tag_that_the_prompt_had_may_be_repeated():
    turn = Turn(layout=HERMES, reasoning=REASONING["deepseek_r1"], reasoning_start="open")
    assert read(turn, list("<think>So</think>Yes")) == ("Yes", "So", [], 0)


@pytest.mark.parametrize(
    ("name", "prompt_end", "start"),
    [
        ("qwen3", "<|im_start|>assistant\n", "optional"),
        ("qwen3", "assistant\n<think>\n", "open"),
        ("qwen3", "assistant\n<think>\n\n</think>\n\n", "none"),
        ("deepseek_r1", "<Assistant>", "open"),
        ("deepseek_r1", "<Assistant></think>", "none"),
    ],
)
def test_the_end_of_the_prompt_says_whether_a_block_is_open(name, prompt_end, start):
    assert REASONING[name].start_after(prompt_end) == start
