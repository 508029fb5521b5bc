"""The grammar of a turn, by the real compiler: it allows what the reader reads, no more."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping

import pytest
import tokenizers

from models.grammar.compiler import GrammarCompiler, VocabularyInfo
from models.protocol.errors import UnsupportedGrammar
from models.protocol.messages import Grammar
from models.text.tokenizer import Tokenizer
from models.text.tools.formats import HERMES, MISTRAL
from models.text.tools.grammar import tool_line, turn_grammar
from models.text.tools.reasoning import REASONING
from models.text.tools.turn import CallableTool, Turn
from tests.cases.tools.turns import ALL_LAYOUTS, CALLS, LAYOUT_IDS, TOOLS, cases_of, turn_of
from tests.harness.local import DEMO, VOCAB_SIZE, demo_tokenizer


@functools.cache
def compiler() -> GrammarCompiler:
    text = (DEMO / "target" / "tokenizer.json").read_text(encoding="utf-8")
    return GrammarCompiler(VocabularyInfo(text, VOCAB_SIZE, demo_tokenizer().eos_ids))


def walk(
    turn: Turn,
    ids: list[int],
    specials: Mapping[str, int] | None = None,
    by: GrammarCompiler | None = None,
) -> tuple[int, bool]:
    """How many of the tokens are allowed, and whether the text may end there."""
    grammar = Grammar(kind="lark", text=turn_grammar(turn, specials or {}))
    state = (by or compiler()).compile(grammar).start()
    for number, token in enumerate(ids):
        if not state.advance(token):
            return number, state.is_complete
    return len(ids), state.is_complete


def allows(turn: Turn, text: str) -> bool:
    """Whether this is a whole turn."""
    ids = demo_tokenizer().encode_piece(text)
    return walk(turn, ids) == (len(ids), True)


@pytest.mark.parametrize("layout", ALL_LAYOUTS, ids=LAYOUT_IDS)
def test_all_that_the_reader_reads_is_allowed(layout):
    for case in cases_of(layout):
        assert allows(case.turn, case.text), case.text


@pytest.mark.parametrize("layout", ALL_LAYOUTS, ids=LAYOUT_IDS)
def test_from_the_trigger_on_there_is_only_a_call(layout):
    turn = turn_of(layout)
    rest = (layout.opening + layout.before_name).removeprefix(layout.trigger)
    start = f"Well,\n{layout.trigger}{rest}"
    for end in ("unknown", "get_weather_", "get" + layout.before_arguments + '{"city'):
        ids = demo_tokenizer().encode_piece(start + end)
        number, is_complete = walk(turn, ids)
        assert number < len(ids), end
        assert not is_complete
    assert not allows(turn, start)
    assert allows(turn, "Well, no.")


@pytest.mark.parametrize("layout", ALL_LAYOUTS, ids=LAYOUT_IDS)
def test_a_turn_that_must_call_begins_with_a_call_and_ends_after_it(layout):
    turn = turn_of(layout, must_call=True)
    one = layout.written(CALLS[:1])
    assert allows(turn, one)
    assert not allows(turn, "")
    assert not allows(turn, f"Well,\n{one}")
    assert not allows(turn, f"{one} Done.")
    assert allows(turn, layout.written(CALLS)) == layout.is_parallel
    assert not allows(turn, layout.written([*CALLS, CALLS[0]]))  # over `max_calls`


def test_a_body_stands_in_the_place_of_text():
    turn = Turn(layout=HERMES, tools=TOOLS, body='%json {"type": "integer"}')
    assert allows(turn, "12")
    assert allows(turn, HERMES.written(CALLS[:1]))
    assert not allows(turn, "Twelve")


@pytest.mark.parametrize("start", ["open", "optional"])
def test_a_body_stands_after_reasoning(start):
    turn = Turn(
        layout=HERMES,
        reasoning=REASONING["qwen3"],
        reasoning_start=start,
        body='"yes" | "no"',
    )
    tag = "" if start == "open" else "<think>"
    assert allows(turn, f"{tag}Is it? no, or so.</think>\n\nyes")
    assert not allows(turn, f"{tag}Hm.</think>maybe")
    assert allows(turn, "yes") == (start == "optional")


def test_text_without_tools_needs_no_grammar():
    turn = Turn(layout=HERMES, reasoning=REASONING["qwen3"], reasoning_start="open")
    assert turn_grammar(turn, {}) == ""


@pytest.mark.parametrize("must_call", [False, True])
def test_special_tokens_are_written_as_tokens(must_call):
    tokenizer = demo_tokenizer()
    special = tokenizer.special_ids["<|user|>"]  # in the place of Mistral's own
    turn = turn_of(MISTRAL, must_call=must_call)
    call = MISTRAL.written(CALLS[:1]).removeprefix("[TOOL_CALLS]")
    specials = {"[TOOL_CALLS]": special}
    ids = [special, *tokenizer.encode_piece(call)]
    assert walk(turn, ids, specials) == (len(ids), True)
    said = tokenizer.encode_piece("Let me see.")
    assert walk(turn, [*said, *ids], specials) == (
        (0, False) if must_call else (len(said) + len(ids), True)
    )
    as_text = tokenizer.encode_piece(MISTRAL.written(CALLS[:1]))
    assert walk(turn, as_text, specials)[0] < len(as_text)  # spelt out it is no call


@pytest.mark.parametrize("is_special", [False, True], ids=["added", "special"])
@pytest.mark.parametrize("layout", ALL_LAYOUTS, ids=LAYOUT_IDS)
def test_signs_that_are_tokens_of_their_own_are_written_as_such(layout, is_special):
    """Qwen's and DeepSeek's are added tokens, Mistral's special ones."""
    signs = re.findall(r"<[^>]+>|\[[A-Z_]+\]", f"<think></think>{layout.written([('f', '')])}")
    text = json.loads((DEMO / "target" / "tokenizer.json").read_text(encoding="utf-8"))
    kept = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    for token_id, sign in enumerate(dict.fromkeys(signs), VOCAB_SIZE):
        added = {"id": token_id, "content": sign, "special": is_special, **kept}
        text["added_tokens"].append(added)
    vocabulary = VocabularyInfo(json.dumps(text), VOCAB_SIZE + 64, demo_tokenizer().eos_ids)
    own = GrammarCompiler(vocabulary)
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(text)), {})
    call = layout.written([("get", '{"text": "a"}')])

    for start in ("open", "optional"):
        tag = "" if start == "open" else "<think>"
        for turn, said in (
            (turn_of(layout, start=start), "Well,\n"),
            (turn_of(layout, start=start, must_call=True), ""),
        ):
            ids = tokenizer.encode_piece(f"{tag}Hm.</think>\n{said}{call}")
            assert max(ids) >= VOCAB_SIZE
            assert walk(turn, ids, tokenizer.special_ids, own) == (len(ids), True)
    spelt = demo_tokenizer().encode_piece(f"Well,\n{layout.trigger}no")
    assert walk(turn_of(layout), spelt, tokenizer.special_ids, own)[0] < len(spelt)


def test_a_complaint_names_the_line_of_its_tool():
    bad = CallableTool(name="bad", schema=json.dumps({"type": "object", "minimum": "x"}))
    worse = CallableTool(
        name="worse", schema=json.dumps({"type": "object", "properties": {"a": {"type": "strin"}}})
    )
    turn = Turn(layout=HERMES, tools=(*TOOLS, worse, bad))
    with pytest.raises(UnsupportedGrammar, match=rf"^line {tool_line(2)}\b.*strin"):
        compiler().compile(Grammar(kind="lark", text=turn_grammar(turn, {})))
