"""Matchers that hit a limit within a text: a second try on a fresh lexer, then a refusal."""

from __future__ import annotations

import json

import pytest

from models.grammar.limits import ParserLimits
from models.protocol.messages import (
    Grammar,
    GrammarClose,
    GrammarCommitted,
    GrammarRefused,
    GrammarStale,
    MaskMiss,
    Masks,
)
from models.protocol.token_sequence import TokenSequence
from tests.cases.grammar import Vocabulary, json_schema
from tests.harness.grammar_host import (
    EPOCH,
    CountingCompiler,
    commit,
    make_host,
    masks,
    open_session,
)


@pytest.fixture
def counting(vocabulary: Vocabulary) -> CountingCompiler:
    return CountingCompiler(vocabulary.compiler())


NESTED_REPEATS = Grammar(kind="regex", text=r"(?:(?:[a-z ]{1,20}){1,20}){1,20}\.")
MANY_KEYS = json_schema(
    {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {f"k{i}": {"type": "integer"} for i in range(300)},
        },
    }
)


@pytest.mark.parametrize("num_committed", [0, 10])
def test_masks_that_break_a_matcher_twice_refuse_its_grammar(
    vocabulary: Vocabulary, counting: CountingCompiler, num_committed: int
) -> None:
    host = make_host(counting)
    open_session(host, "fine")
    # The matcher takes these tokens, but cannot tell what may follow them.
    ids = vocabulary.encode("the cat sat on the mat and it ")[:25]
    committed = TokenSequence(ids[:num_committed])
    open_session(host, "s", NESTED_REPEATS)
    assert isinstance(commit(host, committed.ids), GrammarCommitted)
    reply = masks(host, ids[num_committed:], 1, base=committed)
    assert isinstance(reply, MaskMiss)
    assert reply.reason == "failed"
    assert "the grammar became too complex" in reply.message
    gone = masks(host, [], 1)
    assert isinstance(gone, MaskMiss)
    assert gone.reason == "unknown"
    open_session(host, "s", NESTED_REPEATS)
    refused = commit(host, committed.ids)
    assert isinstance(refused, GrammarRefused)
    assert refused.is_client_error
    assert "the grammar became too complex" in refused.message
    assert isinstance(masks(host, [], 1, session_id="fine"), Masks)
    # Another session is not held to blame, and gets a lexer of its own.
    open_session(host, "t", NESTED_REPEATS)
    assert counting.compiled.count(NESTED_REPEATS) == 3
    assert isinstance(commit(host, committed.ids, session_id="t"), GrammarCommitted)


def test_a_commit_that_breaks_a_matcher_twice_refuses_its_grammar(vocabulary: Vocabulary) -> None:
    host = make_host(
        CountingCompiler(vocabulary.compiler(parser_limits=ParserLimits(step_max_items=400)))
    )
    open_session(host, "s", MANY_KEYS)
    tokens = vocabulary.encode('[{"k')
    assert commit(host, tokens) == GrammarStale(session_id="s", seq=1, is_unknown=True)
    open_session(host, "s", MANY_KEYS)
    refused = commit(host, tokens)
    assert isinstance(refused, GrammarRefused)
    assert refused.is_client_error
    assert "limit 400" in refused.message


@pytest.mark.parametrize("is_ended", [False, True], ids=["opened again", "ended"])
def test_what_broke_a_session_is_kept_until_it_ends(vocabulary: Vocabulary, is_ended: bool) -> None:
    host = make_host(
        CountingCompiler(vocabulary.compiler(parser_limits=ParserLimits(step_max_items=400)))
    )
    tokens = vocabulary.encode('[{"k')
    close = GrammarClose(session_id="s", epoch=EPOCH)
    open_session(host, "s", MANY_KEYS)
    assert isinstance(commit(host, tokens), GrammarStale)
    host.answer(close)  # as a router does before it opens a session again
    open_session(host, "s", MANY_KEYS)
    if is_ended:
        host.answer(close)
        open_session(host, "s", MANY_KEYS)
        assert isinstance(commit(host, tokens), GrammarStale)
        open_session(host, "s", MANY_KEYS)
    assert isinstance(commit(host, tokens), GrammarRefused)
    assert not host._broken, "a refusal is the end"


def test_a_lexer_that_others_have_filled_is_no_fault_of_the_session(vocabulary: Vocabulary) -> None:
    # Every choice is a path of its own: the third one finds the lexer they share full.
    choices = [f"{letter}{i}" * 60 for i, letter in enumerate("abcd")]
    grammar = Grammar(kind="choice", text=json.dumps(choices))
    compiler = CountingCompiler(
        vocabulary.compiler(parser_limits=ParserLimits(max_lexer_states=300))
    )
    host = make_host(compiler)
    for name, text in zip("abcd", choices, strict=True):
        open_session(host, name, grammar)
        tokens = vocabulary.encode(text)
        reply = commit(host, tokens, session_id=name)
        if isinstance(reply, GrammarStale):
            open_session(host, name, grammar)
            reply = commit(host, tokens, session_id=name)
        assert isinstance(reply, GrammarCommitted)
        assert reply.is_complete
    assert len(compiler.compiled) == 2
