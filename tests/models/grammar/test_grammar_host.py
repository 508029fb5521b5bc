from __future__ import annotations

import json
import random

import pytest

from models.grammar.compiler import GrammarCompiler
from models.grammar.host import GrammarHost
from models.grammar.limits import ParserLimits
from models.protocol.forced import NOTHING_FORCED, Forced
from models.protocol.messages import (
    Grammar,
    GrammarClose,
    GrammarCommitted,
    GrammarOpen,
    GrammarReady,
    GrammarRefused,
    GrammarStale,
    MaskMiss,
    MaskRequest,
    Masks,
)
from models.protocol.token_sequence import EMPTY_HASH, TokenSequence
from tests.cases.grammar import (
    EOS_IDS,
    TEN_SCHEMAS,
    Vocabulary,
    allowed,
    json_schema,
    random_text,
)
from tests.harness.grammar_host import (
    EPOCH,
    OPTIONAL,
    CountingCompiler,
    commit,
    make_host,
    masks,
    open_session,
    rows_of,
)


@pytest.fixture
def counting(compiler: GrammarCompiler) -> CountingCompiler:
    return CountingCompiler(compiler)


@pytest.fixture
def host(counting: CountingCompiler) -> GrammarHost:
    return make_host(counting)


# --- open and cache -------------------------------------------------------------------------------


def test_open_compiles_once_and_is_idempotent(
    host: GrammarHost, counting: CountingCompiler, vocabulary: Vocabulary
) -> None:
    first = open_session(host)
    assert isinstance(first, GrammarReady)
    assert first.compile_ms > 0
    assert first.committed_len == 0
    ids = vocabulary.encode('{"b": true')
    commit(host, ids)
    again = open_session(host)
    assert again == GrammarReady(session_id="s", compile_ms=0.0, committed_len=len(ids))
    other = open_session(host, "other")
    assert other == GrammarReady(session_id="other", compile_ms=0.0, committed_len=0)
    assert len(counting.compiled) == 1


@pytest.mark.parametrize("changed", ["grammar", "epoch"])
def test_open_with_another_grammar_or_epoch_starts_again(
    host: GrammarHost, vocabulary: Vocabulary, changed: str
) -> None:
    open_session(host)
    commit(host, vocabulary.encode('{"b"'))
    grammar = json_schema({"type": "null"}) if changed == "grammar" else OPTIONAL
    epoch = EPOCH + 1 if changed == "epoch" else EPOCH
    reply = open_session(host, grammar=grammar, epoch=epoch)
    assert isinstance(reply, GrammarReady)
    assert reply.committed_len == 0


def test_refusals_are_cached(host: GrammarHost, counting: CountingCompiler) -> None:
    bad = json_schema({"not": {"const": 1}})
    replies = [open_session(host, f"s{i}", bad) for i in range(3)]
    assert len(counting.compiled) == 1
    for i, reply in enumerate(replies):
        assert isinstance(reply, GrammarRefused)
        assert reply.is_client_error
        assert reply.session_id == f"s{i}"
        assert "$.not" in reply.message
    assert len(host) == 0


def test_cache_drops_the_least_recently_used(counting: CountingCompiler) -> None:
    host = make_host(counting, max_cached_grammars=2)
    a, b, c = (json_schema({"const": name}) for name in "abc")
    for i, grammar in enumerate([a, b, a, c, a, b]):
        assert isinstance(open_session(host, str(i), grammar), GrammarReady)
    assert counting.compiled == [a, b, c, b]


def test_a_full_table_refuses_until_a_session_is_idle(counting: CountingCompiler) -> None:
    now = [0.0]
    host = make_host(counting, lambda: now[0], max_sessions=2, session_idle_s=10)
    open_session(host, "a")
    open_session(host, "b")
    now[0] = 9.0
    masks(host, [], 1, session_id="a")
    refused = open_session(host, "c")
    assert isinstance(refused, GrammarRefused)
    assert not refused.is_client_error
    assert "2 sessions" in refused.message
    now[0] = 11.0
    assert isinstance(open_session(host, "c"), GrammarReady)
    assert isinstance(masks(host, [], 1, session_id="a"), Masks)
    assert masks(host, [], 1, session_id="b") == MaskMiss(
        session_id="b", ticket=41, reason="unknown"
    )


def test_close_is_idempotent_and_checks_the_epoch(host: GrammarHost) -> None:
    open_session(host)
    assert host.answer(GrammarClose(session_id="s", epoch=EPOCH - 1)) is None
    assert len(host) == 1
    for _ in range(2):
        assert host.answer(GrammarClose(session_id="s", epoch=EPOCH)) is None
        assert len(host) == 0


def test_handle_answers_in_order_and_skips_closes(host: GrammarHost) -> None:
    replies = host.handle(
        [
            GrammarOpen(session_id="a", epoch=EPOCH, grammar=OPTIONAL),
            GrammarClose(session_id="a", epoch=EPOCH),
            GrammarOpen(session_id="b", epoch=EPOCH, grammar=OPTIONAL),
        ]
    )
    assert [reply.session_id for reply in replies] == ["a", "b"]


# --- commit ---------------------------------------------------------------------------------------


def test_commit_takes_the_valid_prefix(host: GrammarHost, vocabulary: Vocabulary) -> None:
    open_session(host)
    good = vocabulary.encode('{"b": true')
    bad = vocabulary.encode("]")[0]
    reply = commit(host, [*good, bad, *good])
    assert isinstance(reply, GrammarCommitted)
    assert reply.num_valid == len(good)
    assert not reply.is_complete
    assert f"token {bad} at position {len(good)}" in reply.message
    # The same message again has the same answer.
    assert commit(host, [*good, bad, *good]) == reply
    done = commit(host, vocabulary.encode("}"), seq=2, base=TokenSequence(good))
    assert isinstance(done, GrammarCommitted)
    assert (done.num_valid, done.is_complete, done.message) == (1, True, "")


def test_repeats_are_answered_as_the_first_time(host: GrammarHost, vocabulary: Vocabulary) -> None:
    open_session(host)
    ids = [*vocabulary.encode('{"b": true}'), EOS_IDS[1]]
    replies = []
    log = TokenSequence()
    for seq, token in enumerate(ids):
        replies.append(commit(host, [token], seq=seq, base=log))
        log.extend([token])
    assert [r.is_complete for r in replies] == [False] * (len(ids) - 2) + [True, True]  # type: ignore[attr-defined]
    for seq in random.Random(0).sample(range(len(ids)), len(ids)):
        assert commit(host, [ids[seq]], seq=seq, base=TokenSequence(ids[:seq])) == replies[seq]
    whole = commit(host, ids, seq=99)
    assert isinstance(whole, GrammarCommitted)
    assert whole.num_valid == len(ids)


def test_nothing_follows_an_eos(host: GrammarHost, vocabulary: Vocabulary) -> None:
    open_session(host)
    ids = [*vocabulary.encode('{"b": true}'), EOS_IDS[0]]
    reply = commit(host, [*ids, EOS_IDS[0]])
    assert isinstance(reply, GrammarCommitted)
    assert reply.num_valid == len(ids)
    assert reply.is_complete
    assert "end of the text" in reply.message
    assert rows_of(masks(host, ids, 1)) == []
    assert [allowed(row) for row in rows_of(masks(host, ids, 2))] == [list(EOS_IDS)]


def test_commit_from_an_unknown_prefix_is_stale(host: GrammarHost, vocabulary: Vocabulary) -> None:
    open_session(host)
    ids = vocabulary.encode('{"b": true}')
    held = TokenSequence(ids[:2])
    commit(host, ids[:2])
    ahead = commit(host, ids[4:], seq=2, base=TokenSequence(ids[:4]))
    assert ahead == GrammarStale(
        session_id="s", seq=2, committed_len=2, committed_hash=held.hash_at(2)
    )
    other = commit(host, ids[2:], seq=3, base=TokenSequence([5, 6]))
    assert other == GrammarStale(session_id="s", seq=3, committed_len=0, committed_hash=EMPTY_HASH)
    unknown = commit(host, ids, session_id="nobody")
    assert unknown == GrammarStale(session_id="nobody", seq=1, is_unknown=True)
    assert commit(host, ids, epoch=EPOCH + 1) == GrammarStale(
        session_id="s", seq=1, is_unknown=True
    )


def test_a_new_commit_may_contradict_and_a_late_one_may_not(
    host: GrammarHost, vocabulary: Vocabulary
) -> None:
    open_session(host)
    yes, no = vocabulary.encode('{"b": true}'), vocabulary.encode('{"b": false}')
    commit(host, yes, seq=1)
    reply = commit(host, no, seq=2)
    assert isinstance(reply, GrammarCommitted)
    assert reply.num_valid == len(no)
    assert commit(host, yes, seq=1) is None
    asked = masks(host, [], 1, base=TokenSequence(no))
    assert isinstance(asked, Masks)
    assert asked.committed_hash == TokenSequence(no).hash_at(len(no))
    # A sender that opens again counts from the start again.
    open_session(host)
    assert isinstance(commit(host, yes, seq=1), GrammarCommitted)


# --- masks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nested", "ranges", "any_of", "unicode"])
def test_masks_from_any_known_length_equal_a_fresh_replay(
    counting: CountingCompiler, vocabulary: Vocabulary, name: str
) -> None:
    grammar = json_schema(TEN_SCHEMAS[name])
    compiled = vocabulary.compiler().compile(grammar)
    rng = random.Random(5)
    ids = [*random_text(compiled, vocabulary, rng), EOS_IDS[0]]
    expected = []
    state = compiled.start()
    for token in ids:
        expected.append(state.row())
        state.advance(token)
    host = make_host(counting)
    open_session(host, grammar=grammar)
    log = TokenSequence()
    while len(log) < len(ids):
        for _ in range(4):
            base_len = rng.randint(0, len(log))
            end = rng.randint(base_len, min(len(ids) - 1, len(log) + 4))
            num_rows = rng.randint(1, min(end - base_len + 1, 64))
            chain = ids[base_len:end]
            reply = masks(host, chain, num_rows, base=TokenSequence(ids[:base_len]))
            assert rows_of(reply) == expected[end - num_rows + 1 : end + 1]
            assert isinstance(reply, Masks)
            assert (reply.committed_len, reply.committed_hash) == (
                len(log),
                log.hash_at(len(log)),
            )
            assert reply.ticket == 41
        step = ids[len(log) : len(log) + rng.randint(1, 3)]
        reply = commit(host, step, seq=len(log) + 1, base=log)
        assert isinstance(reply, GrammarCommitted)
        assert reply.num_valid == len(step)
        log.extend(step)


def test_an_illegal_draft_token_shortens_the_rows(
    host: GrammarHost, vocabulary: Vocabulary
) -> None:
    open_session(host)
    good = vocabulary.encode('{"b": ')
    commit(host, good)
    base = TokenSequence(good)
    legal = rows_of(masks(host, [], 1, base=base))
    bad = vocabulary.encode("9")[0]
    for chain in ([bad, bad, bad], [bad, -1, 10**30 % 2**60], [10**6, 0, 0]):
        reply = masks(host, chain, 4, base=base)
        assert rows_of(reply) == legal
    true = vocabulary.encode("true")
    assert len(rows_of(masks(host, [*true, bad, bad], len(true) + 3, base=base))) == len(true) + 1
    # Drafts leave no trace.
    assert rows_of(masks(host, [], 1, base=base)) == legal


def test_mask_requests_that_cannot_be_served(host: GrammarHost, vocabulary: Vocabulary) -> None:
    open_session(host)
    ids = vocabulary.encode('{"b": true}')
    commit(host, ids[:3])
    held = TokenSequence(ids[:3])
    assert masks(host, [], 1, base=TokenSequence(ids)) == MaskMiss(
        session_id="s",
        ticket=41,
        reason="stale",
        committed_len=3,
        committed_hash=held.hash_at(3),
    )
    assert masks(host, [], 1, base=TokenSequence([3, 4])) == MaskMiss(
        session_id="s", ticket=41, reason="stale", committed_len=0, committed_hash=EMPTY_HASH
    )
    for unknown in ({"session_id": "nobody"}, {"epoch": EPOCH + 1}):
        reply = masks(host, [], 1, **unknown)  # type: ignore[arg-type]  # one of two fields
        assert isinstance(reply, MaskMiss)
        assert reply.reason == "unknown"
    for chain, num_rows in (([], 2), ([], 0), (ids * 10, 65)):
        reply = masks(host, chain, num_rows)
        assert isinstance(reply, MaskMiss)
        assert reply.reason == "failed"
        assert f"num_rows {num_rows}" in reply.message
    negative = MaskRequest(
        session_id="s",
        epoch=EPOCH,
        ticket=1,
        base_len=-1,
        prefix_hash=0,
        chain=[],
        num_rows=1,
    )
    reply = host.answer(negative)
    assert isinstance(reply, MaskMiss)
    assert reply.reason == "stale"


# --- forced text ----------------------------------------------------------------------------------


def test_answers_bring_forced_tokens_if_they_are_wanted(
    counting: CountingCompiler, vocabulary: Vocabulary
) -> None:
    grammar = json_schema(TEN_SCHEMAS["const"])
    whole = vocabulary.encode('{"kind": "point", "at": [1, 2.5, {"a": "\\"q\\""}]}')
    host = make_host(counting)
    ready = open_session(host, grammar=grammar, max_forced=8)
    assert isinstance(ready, GrammarReady)
    assert ready.forced == Forced(whole[:8], 8)
    done = commit(host, whole[:3])
    assert isinstance(done, GrammarCommitted)
    assert done.forced == Forced(whole[3:11], 8)
    assert commit(host, whole[:3]) == done  # a repeat
    again = open_session(host, grammar=grammar, max_forced=2)
    assert isinstance(again, GrammarReady)
    assert again.forced == Forced(whole[3:5], 2)
    refused = commit(host, [*whole[:3], whole[0]], seq=2)
    assert isinstance(refused, GrammarCommitted)
    assert refused.num_valid == 3
    assert refused.forced == Forced(whole[3:5], 2)
    ended = commit(host, [*whole, vocabulary.eos_ids[0]], seq=3)
    assert isinstance(ended, GrammarCommitted)
    assert ended.forced == NOTHING_FORCED
    behind = commit(host, whole[:3], seq=4)  # of what is committed already
    assert isinstance(behind, GrammarCommitted)
    assert behind.forced == NOTHING_FORCED
    unasked = open_session(host, "other", grammar)
    assert isinstance(unasked, GrammarReady)
    assert unasked.forced == NOTHING_FORCED


# --- matchers that break -------------------------------------------------------------------------

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


@pytest.mark.parametrize("end", ["stays open", "opened again", "ended"])
def test_a_commit_that_breaks_a_matcher_twice_refuses_its_grammar(
    vocabulary: Vocabulary, end: str
) -> None:
    """The host keeps the reason of a broken session until it ends."""
    host = make_host(
        CountingCompiler(vocabulary.compiler(parser_limits=ParserLimits(step_max_items=400)))
    )
    tokens = vocabulary.encode('[{"k')
    close = GrammarClose(session_id="s", epoch=EPOCH)
    open_session(host, "s", MANY_KEYS)
    assert commit(host, tokens) == GrammarStale(session_id="s", seq=1, is_unknown=True)
    if end != "stays open":
        host.answer(close)  # as a router does before it opens a session again
    open_session(host, "s", MANY_KEYS)
    if end == "ended":
        host.answer(close)
        open_session(host, "s", MANY_KEYS)
        assert isinstance(commit(host, tokens), GrammarStale)
        open_session(host, "s", MANY_KEYS)
    refused = commit(host, tokens)
    assert isinstance(refused, GrammarRefused)
    assert refused.is_client_error
    assert "limit 400" in refused.message
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
